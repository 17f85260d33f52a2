#include "planner/template_mix.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/assert.hpp"
#include "planner/index.hpp"

namespace sailor::planner {

namespace {

int rounds_by(const GroupTime& group, double deadline) {
  if (deadline < group.fixed) return 1;
  const double more = group.round > 0.0 ? std::floor((deadline - group.fixed) / group.round * (1.0 + 1e-12)) : 1e9;
  return static_cast<int>(std::min({more + 1.0, static_cast<double>(group.max_micro_batches), 1e9}));
}

std::int64_t sequences_by(std::span<const GroupTime> groups, double deadline, std::int64_t enough) {
  std::int64_t sum = 0;
  for (const GroupTime& group : groups) {
    sum += std::int64_t{rounds_by(group, deadline)} * group.micro_batch * group.count;
    if (sum >= enough) return sum;
  }
  return sum;
}

double given_sequences(const MixRequest& request, double deadline) {
  double sum = 0.0;
  for (const Group& group : request.given)
    sum += static_cast<double>(group.column.sequences_by(deadline)) * group.count;
  return std::min(sum, 1e9);
}

/// Above this table size, pipelines with micro-batches of several sizes are divided without trying all sums.
constexpr std::size_t max_sums = std::size_t{1} << 16;

/// For assertions: whether the shares are all pipelines of the groups, each with a micro-batch, and together the batch.
bool is_division(std::span<const GroupTime> groups, const std::vector<Share>& shares, int batch) {
  std::vector<int> pipelines(groups.size(), 0);
  std::int64_t sequences = 0;
  for (const Share& share : shares) {
    if (share.micro_batches < 1) return false;
    pipelines[share.group] += share.count;
    sequences += std::int64_t{share.count} * share.micro_batches * groups[share.group].micro_batch;
  }
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (pipelines[g] != groups[g].count) return false;
  return sequences == batch;
}

/// Rounds of each group, over all of its copies, with which exactly the batch is done by the deadline: sums of a
/// limited number of each size. std::nullopt if none is the batch.
std::optional<std::vector<int>> exact_rounds(std::span<const GroupTime> groups, int batch, double deadline) {
  int rest = batch;
  for (const GroupTime& group : groups) rest -= group.micro_batch * group.count;
  const auto sums = static_cast<std::size_t>(rest) + 1;
  std::vector<int> used(groups.size() * sums, -1);  // min further rounds of the group with which a sum is reached
  std::vector<bool> reached(sums, false);
  reached[0] = true;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto size = static_cast<std::size_t>(groups[g].micro_batch);
    const std::int64_t most = std::int64_t{rounds_by(groups[g], deadline) - 1} * groups[g].count;
    int* row = used.data() + g * sums;
    for (std::size_t sum = 0; sum < sums; ++sum) {
      if (reached[sum])
        row[sum] = 0;
      else if (sum >= size && row[sum - size] >= 0 && row[sum - size] < most)
        row[sum] = row[sum - size] + 1;
    }
    for (std::size_t sum = 0; sum < sums; ++sum) reached[sum] = row[sum] >= 0;
  }
  if (!reached.back()) return std::nullopt;
  std::vector<int> rounds(groups.size(), 0);
  std::size_t sum = sums - 1;
  for (std::size_t g = groups.size(); g-- > 0;) {
    const int further = used[g * sums + sum];
    sum -= static_cast<std::size_t>(further) * static_cast<std::size_t>(groups[g].micro_batch);
    rounds[g] = groups[g].count + further;
  }
  return rounds;
}

/// share_batch() for micro-batches of several sizes: the min deadline from `low` to `high` by which exactly the batch
/// can be done. Only deadlines at which some pipeline ends matter.
std::optional<std::vector<Share>> share_mixed(std::span<const GroupTime> groups, int batch, double low, double high) {
  auto rounds = exact_rounds(groups, batch, low);
  if (!rounds && !exact_rounds(groups, batch, high)) return std::nullopt;
  for (double deadline = low; !rounds && deadline <= high;) {
    double next = infinity;
    for (const GroupTime& group : groups) {
      const int done = rounds_by(group, deadline);
      if (done < group.max_micro_batches) next = std::min(next, std::max(group.fixed + group.round * done, deadline));
    }
    deadline = next > deadline ? next : deadline * (1.0 + 1e-12);
    if (next == infinity) break;
    rounds = exact_rounds(groups, batch, deadline);
  }
  if (!rounds) return std::nullopt;
  std::vector<Share> shares;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const int each = (*rounds)[g] / groups[g].count;
    const int longer = (*rounds)[g] % groups[g].count;
    if (longer > 0) shares.push_back({g, longer, each + 1});
    shares.push_back({g, groups[g].count - longer, each});
  }
  SAILOR_ASSERT(is_division(groups, shares, batch), "micro-batches of several sizes do not add up to the batch");
  return shares;
}

}  // namespace

namespace {

struct Deadlines {
  double least = infinity;    ///< before it the groups cannot process the batch
  double longest = infinity;  ///< by it each of them alone could
};

Deadlines deadlines_of(std::span<const GroupTime> groups, int batch) {
  std::int64_t least = 0;
  double low = 0.0;
  double high = 0.0;
  for (const GroupTime& group : groups) {
    least += std::int64_t{group.micro_batch} * group.count;
    high = std::max(high, group.fixed + group.round * (static_cast<double>(batch) / group.micro_batch));
  }
  if (groups.empty() || least > batch || sequences_by(groups, high, batch) < batch) return {};
  Deadlines deadlines{.longest = high};
  for (int step = 0; step < 60 && high - low > 1e-13 * high; ++step) {
    const double middle = 0.5 * (low + high);
    (sequences_by(groups, middle, batch) >= batch ? high : low) = middle;
  }
  deadlines.least = high;
  return deadlines;
}

}  // namespace

double min_deadline(std::span<const GroupTime> groups, int batch) { return deadlines_of(groups, batch).least; }

std::optional<std::vector<Share>> share_batch(std::span<const GroupTime> groups, int batch) {
  const auto [high, longest] = deadlines_of(groups, batch);
  if (high == infinity) return std::nullopt;
  const bool mixed = std::any_of(groups.begin(), groups.end(), [&](const GroupTime& group) {
    return group.micro_batch != groups.front().micro_batch;
  });
  // All rounds by `high`, less the excess, taken from those that end last.
  std::vector<int> rounds;
  std::int64_t excess = -batch;
  for (const GroupTime& group : groups) {
    rounds.push_back(rounds_by(group, high));
    excess += std::int64_t{rounds.back()} * group.micro_batch * group.count;
  }
  std::vector<std::int64_t> removed(groups.size(), 0);
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto end_of = [&](std::size_t g) {
    const std::int64_t gone = (removed[g] + groups[g].count - 1) / groups[g].count;
    return groups[g].fixed + groups[g].round * static_cast<double>(rounds[g] - 1 - gone);
  };
  while (excess > 0) {
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const double ends_a = end_of(a);
      const double ends_b = end_of(b);
      return ends_a != ends_b ? ends_a > ends_b : a < b;
    });
    bool any = false;
    for (const std::size_t g : order) {
      const std::int64_t spare = std::int64_t{rounds[g] - 1} * groups[g].count - removed[g];
      const std::int64_t here =
          std::min({excess / groups[g].micro_batch, spare, groups[g].count - removed[g] % groups[g].count});
      if (here <= 0) continue;
      removed[g] += here;
      excess -= here * groups[g].micro_batch;
      any = true;
      break;
    }
    if (any) continue;
    // Taking rounds away does not work: which sums can be made at all?
    if (!mixed || groups.size() * static_cast<std::size_t>(batch) > max_sums) return std::nullopt;
    return share_mixed(groups, batch, high, longest);
  }
  std::vector<Share> shares;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const int full = rounds[g] - static_cast<int>(removed[g] / groups[g].count);
    const int shorter = static_cast<int>(removed[g] % groups[g].count);
    if (groups[g].count > shorter) shares.push_back({g, groups[g].count - shorter, full});
    if (shorter > 0) shares.push_back({g, shorter, full - 1});
  }
  SAILOR_ASSERT(is_division(groups, shares, batch), "the shares of the pipelines do not add up to the batch");
  return shares;
}

namespace {

void divide_into_chunks(Pipeline& pipeline, const SearchSpace& space, const std::vector<int>& cuts) {
  const std::size_t stages = pipeline.stages.size();
  for (std::size_t v = 0; v + 1 < cuts.size(); ++v) {
    const LayerRange range{space.cuts[at(cuts[v])], space.cuts[at(cuts[v + 1])]};
    Stage& stage = pipeline.stages[v % stages];
    if (v < stages)
      stage.layers = range;
    else
      stage.later_chunks.push_back(range);
  }
}

}  // namespace

double min_reduction(StagePrices& prices, const PipelineTemplate& column, int pipelines) {
  if (pipelines < 2 || prices.env().framework.overlaps_reduction) return 0.0;
  const TemplateStage& first = column.stages.front();
  const double amount = prices.summed(first.first, first.last, first.tensor_parallel);
  const double least = prices.min_reduction(first.pool, first.tensor_parallel, pipelines, amount);
  return least < infinity ? least : 0.0;
}

double least_time(StagePrices& prices, const TemplateMix& mix, int batch) {
  int pipelines = 0;
  for (const Group& group : mix.groups) pipelines += group.count;
  std::vector<GroupTime> times;
  for (const Group& group : mix.groups)
    times.push_back({.fixed = group.column.through + min_reduction(prices, group.column, pipelines),
                     .round = group.column.round,
                     .micro_batch = group.column.micro_batch,
                     .max_micro_batches = group.column.max_micro_batches,
                     .count = group.count});
  // A pipeline with a single micro-batch may end after the deadline of the others.
  double end = deadlines_of(times, batch).least;
  for (const GroupTime& time : times) end = std::max(end, time.fixed);
  return end;
}

Plan make_plan(const Request& request, const SearchSpace& space, const TemplateMix& mix,
               std::span<const Share> shares) {
  Plan plan;
  plan.job = request.job;
  plan.schedule = mix.schedule;
  plan.optimizer_sharding = mix.sharding;
  plan.sharding_degree = space.sharding_degree;
  plan.context_parallel = space.context_parallel;
  plan.expert_parallel = space.expert_parallel;
  plan.micro_batch = mix.groups.empty() ? 1 : mix.groups.front().column.micro_batch;
  for (const Share& share : shares) {
    const PipelineTemplate& column = mix.groups[share.group].column;
    Pipeline pipeline{.count = share.count, .micro_batches = share.micro_batches};
    pipeline.micro_batch = column.micro_batch == plan.micro_batch ? 0 : column.micro_batch;
    for (const TemplateStage& stage : column.stages) {
      pipeline.stages.push_back({.layers = {space.cuts[at(stage.first)], space.cuts[at(stage.last)]},
                                 .gpu = space.pools[stage.pool].gpu,
                                 .tensor_parallel = stage.tensor_parallel,
                                 .zone = space.pools[stage.pool].zone});
      choose(stage.choice, pipeline.stages.back());
    }
    if (!mix.chunk_cuts.empty()) divide_into_chunks(pipeline, space, mix.chunk_cuts);
    plan.pipelines.push_back(std::move(pipeline));
  }
  return plan;
}

int weight_of(const PipelineTemplate& column, int node) {
  if (column.degrees_multiple > 0 && node % column.degrees_multiple == 0) return column.devices;
  int weight = 0;
  for (const TemplateStage& stage : column.stages) {
    const int groups = std::max(1, node / stage.tensor_parallel);
    weight += std::max(stage.tensor_parallel, (node + groups - 1) / groups);
  }
  return weight;
}

int max_copies(const PipelineTemplate& column, const DevicePool& pool, const SearchSpace& space, int devices) {
  devices = std::min(devices, space.max_gpus.value_or(devices));
  int most = devices / column.devices;
  const int degree = column.stages.front().tensor_parallel;
  const bool one_degree = std::all_of(column.stages.begin(), column.stages.end(),
                                      [&](const TemplateStage& stage) { return stage.tensor_parallel == degree; });
  if (!one_degree) most = std::min(most, devices / weight_of(column, pool.largest_node()));
  std::int64_t groups = 0;  // on the nodes that may be used, the largest first
  int nodes = space.max_nodes.value_or(INT_MAX);
  for (const NodeSize& size : pool.nodes) {
    const int here = std::min(size.nodes, nodes);
    nodes -= here;
    groups += std::int64_t{here} * (size.devices / degree);
  }
  if (one_degree) return static_cast<int>(std::min<std::int64_t>(most, groups / std::ssize(column.stages)));
  return most;
}

void Knapsack::fill(std::span<const PipelineTemplate* const> columns, int devices, int node, double deadline) {
  items_.clear();
  for (const PipelineTemplate* column : columns) {
    const int value = column->sequences_by(deadline);
    if (value == 0) continue;
    if (const int weight = weight_of(*column, node); weight <= devices) items_.push_back({column, weight, value});
  }
  // Keeps only the best of equal weight, and none that a lighter one beats.
  std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.value > b.value;
  });
  std::vector<Item> kept;
  for (const Item& item : items_) {
    const bool beaten = std::any_of(kept.begin(), kept.end(), [&](const Item& other) {
      return static_cast<std::int64_t>(other.value) * (item.weight / other.weight) >= item.value;
    });
    if (!beaten) kept.push_back(item);
  }
  items_ = std::move(kept);
  value_.assign(static_cast<std::size_t>(devices) + 1, 0);
  pick_.assign(static_cast<std::size_t>(devices) + 1, -1);
  constexpr int most = 1 << 30;
  for (int n = 1; n <= devices; ++n) {
    int best = value_[static_cast<std::size_t>(n) - 1];
    int pick = -1;
    for (std::size_t i = 0; i < items_.size() && items_[i].weight <= n; ++i) {
      const int sum = std::min(most, value_[static_cast<std::size_t>(n - items_[i].weight)] + items_[i].value);
      if (sum > best) {
        best = sum;
        pick = static_cast<int>(i);
      }
    }
    value_[static_cast<std::size_t>(n)] = best;
    pick_[static_cast<std::size_t>(n)] = pick;
  }
}

int Knapsack::devices_for(int sequences) const {
  const auto found = std::lower_bound(value_.begin(), value_.end(), sequences);
  return found == value_.end() ? -1 : static_cast<int>(found - value_.begin());
}

std::vector<std::pair<const PipelineTemplate*, int>> Knapsack::columns(int devices) const {
  std::vector<std::pair<const PipelineTemplate*, int>> list;
  while (devices > 0) {
    const int pick = pick_[static_cast<std::size_t>(devices)];
    if (pick < 0) {
      --devices;
      continue;
    }
    const Item& item = items_[static_cast<std::size_t>(pick)];
    const auto known = std::find_if(list.begin(), list.end(), [&](const auto& e) { return e.first == item.column; });
    if (known != list.end())
      ++known->second;
    else
      list.emplace_back(item.column, 1);
    devices -= item.weight;
  }
  SAILOR_ASSERT(devices == 0, "the templates of the knapsack occupy more devices than it has");
  return list;
}

double MixBuilder::best_rate(const MixRequest& request, std::size_t type, double deadline) const {
  double best = 0.0;
  for (const PipelineTemplate* column : request.columns[type])
    best = std::max(best, static_cast<double>(column->sequences_by(deadline)) / column->devices);
  return best;
}

std::vector<int> MixBuilder::free_devices(const MixRequest& request) const {
  std::vector<int> devices;
  for (const std::size_t p : request.pools) {
    int left = space_.pools[p].devices();
    for (const Group& group : request.given) left -= group.column.uses(p) * group.count;
    devices.push_back(std::max(left, 0));
  }
  return devices;
}

double MixBuilder::min_deadline(const MixRequest& request) const {
  std::vector<double> devices(space_.types.size(), 0.0);
  const std::vector<int> available = free_devices(request);
  for (std::size_t i = 0; i < request.pools.size(); ++i) devices[space_.pools[request.pools[i]].type] += available[i];
  if (space_.max_gpus) {  // at best all of them of any type
    for (double& count : devices) count = std::min(count, static_cast<double>(*space_.max_gpus));
  }
  const auto sequences = [&](double deadline) {
    double sum = given_sequences(request, deadline);
    for (std::size_t type = 0; type < devices.size(); ++type)
      if (devices[type] > 0.0) sum += devices[type] * best_rate(request, type, deadline);
    return sum;
  };
  double low = infinity;
  for (const Group& group : request.given) low = std::min(low, group.column.through);
  for (std::size_t type = 0; type < devices.size(); ++type)
    if (devices[type] > 0.0)
      for (const PipelineTemplate* column : request.columns[type]) low = std::min(low, column->through);
  if (low == infinity) return infinity;
  double high = low;
  for (int doubling = 0; sequences(high) < request.batch; ++doubling) {
    if (doubling > 60) return infinity;
    low = high;
    high *= 2.0;
  }
  while (high - low > 1e-6 * high) {
    const double middle = 0.5 * (low + high);
    (sequences(middle) >= request.batch ? high : low) = middle;
  }
  return high;
}

int MixBuilder::fill(const MixRequest& request, double deadline) {
  knapsacks_.resize(std::max(knapsacks_.size(), request.pools.size()));
  const auto given = static_cast<std::int64_t>(given_sequences(request, deadline));
  std::int64_t sum = 0;
  const std::vector<int> available = free_devices(request);
  for (std::size_t i = 0; i < request.pools.size(); ++i) {
    const DevicePool& pool = space_.pools[request.pools[i]];
    int devices = available[i];
    if (space_.max_gpus) devices = std::min(devices, *space_.max_gpus);
    knapsacks_[i].fill(request.columns[pool.type], devices, pool.largest_node(), deadline);
    sum += knapsacks_[i].sequences(devices);
  }
  if (space_.max_gpus || space_.max_nodes) limited(request, sum);
  return static_cast<int>(std::min<std::int64_t>(sum + given, 1 << 30));
}

/// Devices of every pool under the limits on devices and nodes: pools with the best rate first.
std::vector<int> MixBuilder::limited(const MixRequest& request, std::int64_t& sequences) const {
  const std::size_t count = request.pools.size();
  const std::vector<int> most = free_devices(request);
  std::vector<int> best(count, 0);
  std::int64_t best_sequences = -1;
  const auto take = [&](const std::vector<std::size_t>& order) {
    int gpus = space_.max_gpus.value_or(1 << 30);
    for (const Group& group : request.given) gpus = std::max(0, gpus - group.column.devices * group.count);
    int nodes = space_.max_nodes.value_or(1 << 30);
    std::vector<int> devices(count, 0);
    std::int64_t sum = 0;
    for (const std::size_t i : order) {
      const int node = space_.pools[request.pools[i]].largest_node();
      const std::int64_t by_nodes = std::int64_t{nodes} * node;
      devices[i] = static_cast<int>(std::min<std::int64_t>({most[i], gpus, by_nodes}));
      sum += knapsacks_[i].sequences(devices[i]);
      gpus -= devices[i];
      nodes -= (devices[i] + node - 1) / node;
    }
    if (sum > best_sequences) {
      best_sequences = sum;
      best = devices;
    }
  };
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto rate = [&](std::size_t i) {
    const int devices = std::min(most[i], space_.max_gpus.value_or(most[i]));
    return devices > 0 ? static_cast<double>(knapsacks_[i].sequences(devices)) / devices : 0.0;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rate(a) > rate(b); });
  if (count <= 5) {
    std::sort(order.begin(), order.end());
    do take(order);
    while (std::next_permutation(order.begin(), order.end()));
  } else {
    take(order);
  }
  sequences = std::max<std::int64_t>(best_sequences, 0);
  return best;
}

TemplateMix MixBuilder::pick(const MixRequest& request, const std::vector<int>& devices) const {
  TemplateMix mix;
  mix.groups = request.given;
  for (std::size_t i = 0; i < request.pools.size(); ++i)
    for (const auto& [column, count] : knapsacks_[i].columns(devices[i])) {
      Group group{.column = *column, .count = count};
      for (TemplateStage& stage : group.column.stages) stage.pool = request.pools[i];
      mix.groups.push_back(std::move(group));
    }
  // Nodes of several sizes are filled in the order of the pipelines: large groups first, where small ones would be in
  // their way.
  const auto largest = [](const Group& group) {
    int degree = 0;
    for (const TemplateStage& stage : group.column.stages) degree = std::max(degree, stage.tensor_parallel);
    return degree;
  };
  std::stable_sort(mix.groups.begin(), mix.groups.end(),
                   [&](const Group& a, const Group& b) { return largest(a) > largest(b); });
  return mix;
}

std::optional<TemplateMix> MixBuilder::fastest(const MixRequest& request) {
  double low = min_deadline(request) * (1.0 - 1e-5);
  if (low == infinity) return std::nullopt;
  double high = low;
  double step = 0.01;
  for (int tries = 0; fill(request, high) < request.batch; ++tries) {
    if (tries > 40) return std::nullopt;
    low = high;
    high *= 1.0 + step;
    step *= 1.6;
  }
  while (high - low > 1e-4 * high) {
    const double middle = 0.5 * (low + high);
    (fill(request, middle) >= request.batch ? high : low) = middle;
  }
  fill(request, high);
  std::int64_t sum = 0;
  std::vector<int> devices = space_.max_gpus || space_.max_nodes ? limited(request, sum) : free_devices(request);
  // Leaves out what is not needed, the pools of the lowest rate first.
  sum = static_cast<std::int64_t>(given_sequences(request, high));
  for (std::size_t i = 0; i < devices.size(); ++i) sum += knapsacks_[i].sequences(devices[i]);
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto rate = [&](std::size_t i) {
      return devices[i] == 0 ? 0.0 : static_cast<double>(knapsacks_[i].sequences(devices[i])) / devices[i];
    };
    return rate(a) < rate(b);
  });
  for (const std::size_t i : order) {
    const int here = knapsacks_[i].sequences(devices[i]);
    const auto needed = static_cast<int>(std::max<std::int64_t>(0, request.batch - (sum - here)));
    devices[i] = std::min(devices[i], std::max(0, knapsacks_[i].devices_for(needed)));
    sum += knapsacks_[i].sequences(devices[i]) - here;
  }
  return pick(request, devices);
}

std::optional<TemplateMix> MixBuilder::cheapest(const MixRequest& request, double deadline, bool by_price) {
  if (fill(request, deadline) < request.batch) return std::nullopt;
  const std::size_t count = request.pools.size();
  std::int64_t ignored = 0;
  const std::vector<int> most = space_.max_gpus || space_.max_nodes ? limited(request, ignored) : free_devices(request);
  const auto price = [&](std::size_t i) { return by_price ? space_.pools[request.pools[i]].price.value() : 1.0; };
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto per_unit = [&](std::size_t i) {
    const double cost = price(i) * most[i];
    return cost > 0.0 ? knapsacks_[i].sequences(most[i]) / cost : most[i] > 0 ? infinity : 0.0;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return per_unit(a) > per_unit(b); });
  // Pools in the order of value for price; the last one only as far as needed. Any of them may be the last.
  std::vector<int> best;
  double best_price = infinity;
  for (std::size_t last = 0; last < count; ++last) {
    std::vector<int> devices(count, 0);
    int missing = request.batch - static_cast<int>(given_sequences(request, deadline));
    double sum = 0.0;
    const auto use = [&](std::size_t i) {
      if (missing <= 0) return;
      const int enough = knapsacks_[i].devices_for(missing);
      devices[i] = enough < 0 ? most[i] : std::min(most[i], enough);
      missing -= knapsacks_[i].sequences(devices[i]);
      sum += price(i) * devices[i];
    };
    for (std::size_t k = 0; k < count; ++k) {
      if (k == last) continue;
      // The last one alone may be enough for the rest, and cheaper.
      if (missing > 0) {
        const int alone = knapsacks_[order[last]].devices_for(missing);
        const int here = knapsacks_[order[k]].devices_for(missing);
        if (alone >= 0 && alone <= most[order[last]] &&
            (here < 0 || price(order[last]) * alone < price(order[k]) * here))
          break;
      }
      use(order[k]);
    }
    use(order[last]);
    if (missing > 0 || sum >= best_price) continue;
    best = devices;
    best_price = sum;
  }
  if (best.empty()) return std::nullopt;
  return pick(request, best);
}

}  // namespace sailor::planner
