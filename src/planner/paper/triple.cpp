#include "planner/paper/triple.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr double slack = 1e-12;           // for times that are added up in another order
constexpr std::size_t max_singles = 24;   // plans of one template that are priced
constexpr std::size_t max_in_pairs = 60;  // templates
constexpr int max_pairs = 24;             // that are priced
constexpr std::uint64_t greedy_nodes = 3000;
constexpr std::uint64_t greedy_plans = 24;
constexpr std::size_t max_ordered = 6;  // entries of which every order is tried
constexpr int auction_rounds = 60;

}  // namespace

TripleSolver::TripleSolver(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop,
                           const PaperTriple& triple, const PaperCaps& caps, bool dominance, std::size_t max_templates,
                           std::uint64_t& work, bool improve)
    : prices_(prices),
      space_(prices.space()),
      solutions_(solutions),
      stop_(stop),
      triple_(triple),
      caps_(caps),
      improve_(improve),
      objective_(prices.request().objective) {
  PaperStages& stages = *triple.stages;
  const PaperLimits limits{.pipelines = triple.pipelines,
                           .micro_batches = triple.micro_batches,
                           .time = caps.time,
                           .money = caps.money,
                           .score = improve ? solutions.best_score() : infinity,
                           .price_rest = (triple.pipelines - 1) * stages.min_price(),
                           .tail = stages.min_tail(triple.pipelines)};
  columns_ = stages.columns(limits, dominance, max_templates, work, has_all_);
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    PaperTemplate& column = columns_[c];
    if (column.candidates.size() > 1)
      column.tail = std::max(column.tail,
                             stages.tied_tail(column.candidates.front(), column.candidates.back(), triple.pipelines));
    for (const bool longer : {false, true}) {
      if (longer ? triple.longer == 0 : triple.longer == triple.pipelines) continue;
      const double passes = column.through + column.round * (triple.micro_batches - (longer ? 0 : 1));
      items_.push_back({c, longer, passes, passes + column.tail});
    }
    min_price_ = std::min(min_price_, column.price);
  }
  const std::size_t count = stages.candidates().size();
  mixed_.assign(at(stages.kind().stages) * count * count, -infinity);
  alike_.assign(at(stages.kind().stages) * count, -infinity);
  std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.time < b.time; });
  for (std::size_t i = 0; i < items_.size(); ++i) all_items_.push_back(i);
  for (const DevicePool& pool : space_.pools) devices_.push_back(pool.devices());
  devices_.push_back(std::min(space_.max_gpus.value_or(space_.devices()), space_.devices()));
}

/// Whether fractions of the devices are enough for all pipelines, of these items: no prices of devices are known at
/// which the cheapest items cost more than all devices. Prices, which are returned, go up where too many are asked for.
bool TripleSolver::enough_devices(const Items& items, std::vector<double>* found) const {
  const std::size_t width = devices_.size();
  std::vector<double> prices(width);
  for (std::size_t p = 0; p < width; ++p) prices[p] = 1.0 / devices_[p] / static_cast<double>(width);
  const int missing[] = {triple_.pipelines - triple_.longer, triple_.longer};
  std::vector<double> asked(width);
  bool enough = true;
  for (int step = 0; step < auction_rounds; ++step) {
    double least[] = {infinity, infinity};
    std::size_t best[] = {0, 0};
    for (const std::size_t i : items) {
      const Item& item = items_[i];
      const std::vector<int>& devices = columns_[item.column].devices;
      double price = 0.0;
      for (std::size_t p = 0; p < width; ++p) price += prices[p] * devices[p];
      if (price >= least[item.longer ? 1 : 0]) continue;
      least[item.longer ? 1 : 0] = price;
      best[item.longer ? 1 : 0] = item.column;
    }
    std::fill(asked.begin(), asked.end(), 0.0);
    double total = 0.0;
    for (int k = 0; k < 2; ++k) {
      if (missing[k] == 0) continue;
      if (least[k] == infinity) return false;
      total += least[k] * missing[k];
      for (std::size_t p = 0; p < width; ++p)
        asked[p] += static_cast<double>(missing[k]) * columns_[best[k]].devices[p];
    }
    if (total > 1.0 + 1e-9) return false;
    enough = true;
    for (std::size_t p = 0; p < width; ++p) enough = enough && asked[p] <= devices_[p];
    if (found != nullptr) *found = prices;
    if (enough) return true;
    double sum = 0.0;
    const double pace = 1.0 / (1.0 + 0.1 * step);
    for (std::size_t p = 0; p < width; ++p) {
      prices[p] *= std::exp(std::clamp(asked[p] / devices_[p] - 1.0, -1.0, 2.0) * pace);
      sum += prices[p] * devices_[p];
    }
    for (double& price : prices) price /= sum;
  }
  return true;
}

double TripleSolver::bound() const {
  // Plans are told apart by the item of the last pipeline to end.
  std::size_t low = 0;
  std::size_t high = items_.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (enough_devices(Items(all_items_.begin(), all_items_.begin() + static_cast<std::ptrdiff_t>(middle) + 1)))
      high = middle;
    else
      low = middle + 1;
  }
  double least = infinity;
  double cheapest[2] = {infinity, infinity};
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    cheapest[item.longer ? 1 : 0] = std::min(cheapest[item.longer ? 1 : 0], columns_[item.column].price);
    if (i < low) continue;
    const double price =
        (triple_.longer > 0 ? triple_.longer * cheapest[1] : 0.0) +
        (triple_.longer < triple_.pipelines ? (triple_.pipelines - triple_.longer) * cheapest[0] : 0.0);
    if (price == infinity || item.time > caps_.time * (1.0 + 1e-9) || item.time * price > caps_.money * (1.0 + 1e-9))
      continue;
    least = std::min(least, paper_score(objective_, item.time, price));
    if (objective_ == Objective::throughput) break;
  }
  return least;
}

bool TripleSolver::promising(double time, double price) const {
  return time <= caps_.time * (1.0 + 1e-9) && time * price <= caps_.money * (1.0 + 1e-9) &&
         (!improve_ || paper_score(objective_, time, price) * (1.0 - slack) < solutions_.best_score());
}

bool TripleSolver::compatible(const PaperTemplate& a, const PaperTemplate& b) const {
  const auto& candidates = triple_.stages->candidates();
  for (std::size_t s = 0; s < a.candidates.size(); ++s) {
    const PaperCandidate& one = candidates[a.candidates[s]];
    const PaperCandidate& other = candidates[b.candidates[s]];
    if (space_.pools[one.pool].type == space_.pools[other.pool].type && one.tensor_parallel != other.tensor_parallel)
      return false;
  }
  return true;
}

int TripleSolver::max_pipelines(const PaperTemplate& column) const {
  int most = triple_.pipelines;
  for (std::size_t p = 0; p < devices_.size(); ++p)
    if (column.devices[p] > 0) most = std::min(most, devices_[p] / column.devices[p]);
  return most;
}

/// Prices a plan and returns its score.
double TripleSolver::price(const std::vector<Part>& parts) {
  const PaperStages& stages = *triple_.stages;
  TemplateMix mix;
  std::vector<Share> shares;
  std::vector<std::size_t> groups;  // templates of mix.groups
  for (const Part& part : parts) {
    const Item& item = items_[part.item];
    auto group = static_cast<std::size_t>(std::find(groups.begin(), groups.end(), item.column) - groups.begin());
    if (group == groups.size()) {
      groups.push_back(item.column);
      const PaperTemplate& from = columns_[item.column];
      PipelineTemplate column{.micro_batch = stages.kind().micro_batch, .through = from.through, .round = from.round};
      column.devices = from.devices.back();
      for (std::size_t s = 0; s < from.candidates.size(); ++s) {
        const PaperCandidate& candidate = stages.candidates()[from.candidates[s]];
        const auto [first, last] = stages.layers_of(static_cast<int>(s));
        column.stages.push_back({candidate.pool, candidate.tensor_parallel, {Recompute::none}, first, last});
      }
      mix.groups.push_back({.column = std::move(column), .count = 0});
    }
    mix.groups[group].count += part.count;
    shares.push_back({group, part.count, triple_.micro_batches + (item.longer ? 1 : 0)});
  }
  return solutions_.add(mix, shares).closed_form;
}

bool TripleSolver::try_orders(std::vector<Part> parts, PaperBudget& budget) {
  const bool matters = triple_.stages->kind().stages > 1 && parts.size() > 1;
  bool all = true;
  if (matters && parts.size() > max_ordered) all = false;
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.item < b.item; });
  do {
    if (budget.plans == 0 || stop_()) return false;
    --budget.plans;
    price(parts);
  } while (matters && all && std::next_permutation(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
             return a.item < b.item;
           }));
  return all;
}

void TripleSolver::try_templates(const std::vector<std::pair<std::size_t, int>>& counts) {
  std::vector<int> of_longer(counts.size(), 0);
  std::vector<int> of_others;
  for (const auto& entry : counts) of_others.push_back(entry.second);
  int longer = triple_.longer;
  std::vector<Part> parts;
  double time = 0.0;
  double price_of_all = 0.0;
  for (const bool is_longer : {true, false})  // items are in the order of time
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].longer != is_longer) continue;
      for (std::size_t k = 0; k < counts.size(); ++k) {
        if (counts[k].first != items_[i].column) continue;
        const int count = is_longer ? std::min(longer, of_others[k]) : of_others[k];
        if (count == 0) continue;
        if (is_longer) longer -= count;
        of_others[k] -= count;
        parts.push_back({i, count});
        time = std::max(time, items_[i].time);
        price_of_all += columns_[items_[i].column].price * count;
      }
    }
  if (!promising(time, price_of_all)) return;
  PaperBudget budget{.nodes = 1, .plans = 6};
  try_orders(std::move(parts), budget);
}

void TripleSolver::try_singles() {
  std::vector<std::pair<double, std::size_t>> singles;
  const bool both = triple_.longer > 0;
  for (const Item& item : items_)
    if (item.longer == both && max_pipelines(columns_[item.column]) == triple_.pipelines) {
      const double price_of_all = columns_[item.column].price * triple_.pipelines;
      if (promising(item.time, price_of_all))
        singles.emplace_back(paper_score(objective_, item.time, price_of_all), item.column);
    }
  std::stable_sort(singles.begin(), singles.end());
  if (singles.size() > max_singles) singles.resize(max_singles);
  for (const auto& [score, column] : singles) {
    if (stop_()) return;
    try_templates({{column, triple_.pipelines}});
  }
}

void TripleSolver::try_some() {
  try_singles();
  if (space_.pools.size() < 2 || triple_.pipelines < 2) return;
  try_pairs();
  PaperBudget greedy{.nodes = greedy_nodes, .plans = greedy_plans};
  start(all_items_);
  descend(0, triple_.longer, triple_.pipelines - triple_.longer, 0.0, 0.0, 0.0, true, greedy);
}

void TripleSolver::try_pairs() {
  std::vector<std::size_t> order;  // templates, quickest first
  for (const Item& item : items_)
    if (item.longer == (triple_.longer > 0) && order.size() < max_in_pairs) order.push_back(item.column);
  int priced = 0;
  for (std::size_t j = 1; j < order.size(); ++j)
    for (std::size_t i = 0; i < j; ++i) {
      const PaperTemplate& a = columns_[order[i]];
      const PaperTemplate& b = columns_[order[j]];
      if (!compatible(a, b)) continue;
      // x of the first, the rest of the second: x a + (D - x) b <= devices.
      int low = 1;
      int high = triple_.pipelines - 1;
      for (std::size_t p = 0; p < devices_.size(); ++p) {
        const int more = a.devices[p] - b.devices[p];
        const int room = devices_[p] - triple_.pipelines * b.devices[p];
        if (more > 0)
          high = std::min(high, room < 0 ? 0 : room / more);
        else if (more < 0)
          low = std::max(low, room < 0 ? (-room - more - 1) / -more : 1);
        else if (room < 0)
          high = 0;
      }
      if (low > high) continue;
      const std::uint64_t before = solutions_.considered();
      try_templates({{order[i], high}, {order[j], triple_.pipelines - high}});
      if (low < high) try_templates({{order[i], low}, {order[j], triple_.pipelines - low}});
      if (solutions_.considered() > before && (++priced >= max_pairs || stop_())) return;
    }
}

bool TripleSolver::take(const PaperTemplate& column, int count) {
  for (std::size_t p = 0; p < left_.size(); ++p)
    if (column.devices[p] * count > left_[p]) return false;
  const auto& candidates = triple_.stages->candidates();
  const std::size_t types = space_.types.size();
  for (std::size_t s = 0; s < column.candidates.size(); ++s) {
    const PaperCandidate& candidate = candidates[column.candidates[s]];
    const int degree = degrees_[s * types + space_.pools[candidate.pool].type];
    if (degree != 0 && degree != candidate.tensor_parallel) return false;
  }
  for (std::size_t s = 0; s < column.candidates.size(); ++s) {
    const PaperCandidate& candidate = candidates[column.candidates[s]];
    const std::size_t cell = s * types + space_.pools[candidate.pool].type;
    degrees_[cell] = candidate.tensor_parallel;
    ++uses_[cell];
  }
  for (std::size_t p = 0; p < left_.size(); ++p) left_[p] -= column.devices[p] * count;
  return true;
}

void TripleSolver::give_back(const PaperTemplate& column, int count) {
  const auto& candidates = triple_.stages->candidates();
  const std::size_t types = space_.types.size();
  for (std::size_t s = 0; s < column.candidates.size(); ++s) {
    const std::size_t cell = s * types + space_.pools[candidates[column.candidates[s]].pool].type;
    if (--uses_[cell] == 0) degrees_[cell] = 0;
  }
  for (std::size_t p = 0; p < left_.size(); ++p) left_[p] += column.devices[p] * count;
}

bool TripleSolver::try_all(PaperBudget& budget) { return branch(all_items_, budget); }

}  // namespace sailor::planner
