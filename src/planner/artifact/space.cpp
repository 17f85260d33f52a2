#include "planner/artifact/space.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/worker_threads.hpp"

namespace sailor::planner::artifact {

namespace {

// Labels for each number of layers: of a first pass, which finds a good plan, of a second and of a third.
constexpr std::size_t narrow = 6;
constexpr std::size_t medium = 30;
constexpr std::size_t wide = 5'000;
// Of further orders of zones, which differ in stages over several zones only.
constexpr std::size_t further = 50;
// Stages priced in the third pass, unless the caller says how much work there may be.
constexpr std::uint64_t last_pass_work = 600'000;
constexpr std::uint64_t max_effort = 60'000'000;  // of all passes
constexpr std::uint64_t part_work = 300'000;
constexpr std::size_t many_pools = 8;  // then the first pass keeps fewer labels
constexpr std::size_t max_orders = 6;
constexpr std::size_t max_parts = 48;     // parts of the cluster that are searched first
constexpr std::size_t max_zone_sets = 5;  // zones, of which all sets are tried
// Searches between which the best plan is made known to all. Not the number of threads: that must not matter.
constexpr std::size_t round_size = 4;

/// Stages' GPU types and tensor parallelism, equal neighbours once.
std::vector<std::vector<std::pair<int, int>>> kind_of(const Pipelines& pipelines) {
  std::vector<std::vector<std::pair<int, int>>> kind;
  for (const StageRuns& stage : pipelines.stages) {
    std::vector<std::pair<int, int>> types;
    for (const Run& run : stage.runs)
      if (types.empty() || types.back() != std::pair(run.gpu, run.tensor_parallel))
        types.emplace_back(run.gpu, run.tensor_parallel);
    if (kind.empty() || kind.back() != types) kind.push_back(types);
  }
  return kind;
}

/// Smaller is better: value, then USD, then devices.
bool better(const Ranked& a, const Ranked& b) {
  if (a.value != b.value) return a.value < b.value;
  if (a.score.cost_per_iteration != b.score.cost_per_iteration)
    return a.score.cost_per_iteration < b.score.cost_per_iteration;
  return devices_of(a.pipelines) < devices_of(b.pipelines);
}

class Best {
 public:
  explicit Best(const Inputs& inputs) : inputs_(inputs) {}

  /// Empty when the plan breaks a limit.
  [[nodiscard]] std::optional<Ranked> judge(const Pipelines& pipelines) const {
    const auto score = evaluate(pipelines, inputs_.tables);
    if (!score) return std::nullopt;
    const double time = score->iteration_time.value();
    const double cost = score->cost_per_iteration.value();
    if (time > inputs_.goal.max_time || cost > inputs_.goal.max_cost) return std::nullopt;
    return Ranked{pipelines, *score, inputs_.goal.value(time, cost)};
  }
  void add(Ranked ranked) {
    value_ = std::min(value_, ranked.value);
    const auto [place, is_new] = plans_.try_emplace(kind_of(ranked.pipelines), ranked);
    if (!is_new && better(ranked, place->second)) place->second = std::move(ranked);
  }
  /// What the next plan must beat.
  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] std::vector<Ranked> plans() const {
    std::vector<Ranked> plans;
    for (const auto& [kind, ranked] : plans_) plans.push_back(ranked);
    std::stable_sort(plans.begin(), plans.end(), better);
    return plans;
  }

 private:
  const Inputs& inputs_;
  double value_ = unlimited;
  std::map<std::vector<std::vector<std::pair<int, int>>>, Ranked> plans_;
};

std::vector<int> zones_of(const std::vector<Pool>& pools) {
  std::vector<int> zones;
  for (const Pool& pool : pools)
    if (std::find(zones.begin(), zones.end(), pool.zone) == zones.end()) zones.push_back(pool.zone);
  return zones;
}

/// What makes pools different: types, numbers of devices, links and prices of traffic between them.
std::vector<double> signature(const Tables& tables, const std::vector<Pool>& pools) {
  constexpr double message_bytes = 16e6;
  std::vector<double> told;
  for (const Pool& a : pools) {
    for (const std::int64_t number : {std::int64_t{a.gpu}, std::int64_t{a.chunk}, a.devices})
      told.push_back(static_cast<double>(number));
    for (const Pool& b : pools) {
      told.push_back(tables.egress_price(a.zone, b.zone));
      for (const int degree : {1, 4}) {
        const Curve* curve = tables.link(a.gpu, a.zone, degree, b.gpu, b.zone, degree);
        told.push_back(curve == nullptr ? 0.0 : message_time(message_bytes, *curve));
      }
    }
  }
  return told;
}

/// False: there is nearly the same among `seen`. Else it is added.
bool is_new(std::vector<double> told, std::vector<std::vector<double>>& seen) {
  constexpr double alike = 1.25;
  const auto near = [](double a, double b) { return a <= b * alike && b <= a * alike; };
  for (const auto& other : seen)
    if (std::equal(told.begin(), told.end(), other.begin(), other.end(), near)) return false;
  seen.push_back(std::move(told));
  return true;
}

/// Orders in which stages over several zones fill them: indices of pools.
std::vector<std::vector<int>> pool_orders(const Inputs& inputs) {
  const std::vector<Pool>& pools = inputs.pools;
  const std::vector<int> zones = zones_of(pools);
  std::vector<std::vector<int>> orders;
  std::vector<int> order(zones.size());
  std::iota(order.begin(), order.end(), 0);
  if (zones.size() <= 3) {
    do orders.push_back(order);
    while (std::next_permutation(order.begin(), order.end()));
  } else {
    for (std::size_t start = 0; start < zones.size(); ++start) {
      orders.push_back(order);
      std::rotate(order.begin(), order.begin() + 1, order.end());
    }
    std::reverse(order.begin(), order.end());
    orders.push_back(order);
  }
  std::vector<std::vector<int>> found;
  for (const auto& one : orders) {
    found.emplace_back();
    for (const int index : one)
      for (std::size_t p = 0; p < pools.size(); ++p)
        if (pools[p].zone == zones[index]) found.back().push_back(static_cast<int>(p));
  }
  if (found.size() > max_orders) found.resize(max_orders);
  return found;
}

/// Parts of the cluster, smaller ones first, those that look like others last: sets of zones, with one, two or all
/// types.
std::vector<std::vector<Pool>> parts_of(const Inputs& inputs) {
  const std::vector<Pool>& pools = inputs.pools;
  const std::vector<int> zones = zones_of(pools);
  std::vector<std::set<int>> zone_sets;
  if (zones.size() <= max_zone_sets) {
    for (unsigned bits = 1; bits < 1U << zones.size(); ++bits) {
      zone_sets.emplace_back();
      for (std::size_t z = 0; z < zones.size(); ++z)
        if ((bits >> z & 1U) != 0) zone_sets.back().insert(zones[z]);
    }
  } else {
    for (const int a : zones) {
      zone_sets.push_back({a});
      std::set<int> region{a};
      for (const int b : zones) {
        if (b > a) zone_sets.push_back({a, b});
        if (inputs.tables.egress_price(a, b) <= inputs.tables.egress_price(zones[0], zones[0]) + 0.011e-9)
          region.insert(b);
      }
      zone_sets.push_back(region);
    }
    zone_sets.emplace_back(zones.begin(), zones.end());
  }
  std::set<int> gpus;
  for (const Pool& pool : pools) gpus.insert(pool.gpu);
  std::vector<std::set<int>> gpu_sets{gpus};
  for (const int a : gpus)
    for (const int b : gpus)
      if (a <= b) gpu_sets.push_back({a, b});
  std::vector<std::vector<Pool>> parts;
  for (const auto& zone_set : zone_sets)
    for (const auto& gpu_set : gpu_sets) {
      std::vector<Pool> part;
      for (const Pool& pool : pools)
        if (zone_set.contains(pool.zone) && gpu_set.contains(pool.gpu)) part.push_back(pool);
      if (!part.empty() && part.size() < pools.size()) parts.push_back(std::move(part));
    }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::vector<std::vector<double>> seen;
  std::stable_partition(parts.begin(), parts.end(),
                        [&](const std::vector<Pool>& part) { return is_new(signature(inputs.tables, part), seen); });
  if (parts.size() > max_parts) parts.resize(max_parts);
  return parts;
}

/// Searches of all micro-batches and data-parallel degrees over some pools.
struct Task {
  double bound = 0.0;  // before any search
  std::unique_ptr<StageSearch> search;
  std::vector<int> order;  // of the pools, in the last search
  bool complete = false;   // that search
};

std::vector<Task> tasks_of(const Inputs& inputs, const std::vector<int>& micro_batches, int replicas) {
  // Of all degrees with the same number of micro-batches only the smallest can be best: fewer replicas of the same
  // stages take no longer, reduce no longer and cost less.
  std::int64_t devices = 0;
  for (const Pool& pool : inputs.pools) devices += pool.devices;
  devices = std::min(devices, inputs.goal.max_devices);
  std::vector<Task> tasks;
  for (const int micro_batch : micro_batches) {
    const auto kinds = std::make_shared<const Kinds>(inputs, micro_batch);
    if (kinds->candidates().empty()) continue;
    const int batches = inputs.tables.global_batch() / micro_batch;
    std::set<int> degrees;
    if (replicas > 0) {
      if (replicas <= batches) degrees.insert(replicas);
    } else {
      for (int count = 1; count <= batches; ++count) degrees.insert((batches + count - 1) / count);
    }
    for (const int degree : degrees) {
      if (degree > devices) continue;
      auto search = std::make_unique<StageSearch>(inputs, kinds, micro_batch, degree);
      if (const double bound = search->bound(); bound < unlimited)
        tasks.push_back({bound, std::move(search), {}, false});
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.bound < b.bound; });
  return tasks;
}

class Search {
 public:
  Search(const Inputs& inputs, const SearchLimits& limits, Outcome& outcome)
      : limits_(limits), outcome_(outcome), best_(inputs), threads_(limits.threads), workspaces_(threads_.size()) {}

  [[nodiscard]] const Best& best() const { return best_; }
  [[nodiscard]] bool stopped() const { return outcome_.stop != Stop::done; }
  /// `most_work`: stages priced in this pass, unless the caller set a limit.
  void pass(std::vector<Task>& tasks, std::size_t width, const std::vector<int>& order, std::uint64_t max_work,
            bool last = false) {
    const std::uint64_t end = outcome_.counters.considered + max_work;
    std::vector<Task*> round;
    for (std::size_t next = 0; next < tasks.size();) {
      round.clear();
      for (; next < tasks.size() && round.size() < round_size; ++next) {
        Task& task = tasks[next];
        if (task.bound >= best_.value()) next = tasks.size() - 1;  // and all others
        if ((task.complete && task.order == order) || task.search->bound() >= best_.value()) continue;
        round.push_back(&task);
        if (best_.value() == unlimited) {
          ++next;
          break;  // the first plan makes the others quick
        }
      }
      if (round.empty()) return;
      if (check(outcome_.counters, end, last, outcome_.stop)) return;
      struct Done {
        std::vector<Ranked> plans;
        Counters counters;
        Stop stop = Stop::done;
      };
      std::vector<Done> done(round.size());
      threads_.for_each(round.size(), [&](std::size_t index, std::size_t thread) {
        Done& mine = done[index];
        mine.counters = outcome_.counters;
        double value = best_.value();
        const Solution found = [&](const Pipelines& pipelines) {
          if (auto ranked = best_.judge(pipelines)) {
            value = std::min(value, ranked->value);
            mine.plans.push_back(*std::move(ranked));
          }
          return value;
        };
        const Interrupt interrupt = [&] { return check(mine.counters, end, last, mine.stop); };
        round[index]->complete =
            round[index]->search->run(value, width, order, found, interrupt, mine.counters, workspaces_[thread]);
        round[index]->order = order;
      });
      const Counters before = outcome_.counters;
      for (Done& one : done) {
        outcome_.counters.considered += one.counters.considered - before.considered;
        outcome_.counters.did_not_fit += one.counters.did_not_fit - before.did_not_fit;
        outcome_.counters.effort += one.counters.effort - before.effort;
        if (one.stop != Stop::done) outcome_.stop = one.stop;
        for (Ranked& ranked : one.plans) best_.add(std::move(ranked));
      }
    }
  }

 private:
  /// True: stop this pass. Sets `stop` when nothing may follow.
  bool check(const Counters& counters, std::uint64_t end, bool last, Stop& stop) const {
    if (limits_.work ? counters.considered >= *limits_.work : counters.effort >= max_effort) stop = Stop::work_limit;
    if (limits_.seconds &&
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() >= *limits_.seconds)
      stop = Stop::time_limit;
    if (stop != Stop::done) return true;
    if (limits_.work || counters.considered < end) return false;
    if (last) stop = Stop::work_limit;
    return true;
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const SearchLimits& limits_;
  Outcome& outcome_;
  Best best_;
  WorkerThreads threads_;
  std::vector<Workspace> workspaces_;  // by thread
};

}  // namespace

std::int64_t devices_of(const Pipelines& pipelines) {
  std::int64_t devices = 0;
  for (const StageRuns& stage : pipelines.stages)
    for (const Run& run : stage.runs) devices += std::int64_t{run.tensor_parallel} * run.count;
  return devices;
}

Outcome search_space(const Inputs& inputs, const std::vector<int>& micro_batches, int replicas,
                     const SearchLimits& limits) {
  Outcome outcome;
  Search search(inputs, limits, outcome);
  // The best over parts of the cluster first: what more devices must not make worse.
  for (const std::vector<Pool>& part : parts_of(inputs)) {
    if (search.stopped()) break;
    Inputs fewer = inputs;
    fewer.pools = part;
    std::vector<Task> tasks = tasks_of(fewer, micro_batches, replicas);
    const auto orders = pool_orders(fewer);
    search.pass(tasks, narrow, orders.front(), part_work);
    for (const auto& order : orders) search.pass(tasks, part.size() == 1 ? wide : medium, order, part_work);
  }
  std::vector<Task> tasks = tasks_of(inputs, micro_batches, replicas);
  const auto orders = pool_orders(inputs);
  search.pass(tasks, inputs.pools.size() > many_pools ? 2 : narrow, orders.front(), max_effort);
  const std::uint64_t work = last_pass_work * std::clamp<std::size_t>(inputs.pools.size() - 1, 1, 4);
  for (const auto& order : orders)
    search.pass(tasks, medium, order, orders.size() == 1 ? work : 2 * work / orders.size());
  for (const auto& order : orders)
    search.pass(tasks, &order == &orders.front() ? wide : further, order, work / orders.size() + 1, true);
  // Other orders of zones, other mixes of types could still be better where there are several pools.
  double open_bound = unlimited;
  for (const Task& task : tasks)
    if (!task.complete || inputs.pools.size() > 1) open_bound = std::min(open_bound, task.search->bound());
  outcome.plans = search.best().plans();
  outcome.bound = std::min(open_bound, search.best().value());
  return outcome;
}

}  // namespace sailor::planner::artifact
