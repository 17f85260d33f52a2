#include "planner/stage_prices.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "plan/placement.hpp"
#include "planner/index.hpp"

namespace sailor::planner {

namespace {

StageTable make_table(const simulator::LayerTable& layers, const std::vector<int>& cuts, double tied,
                      int tensor_parallel) {
  StageTable table;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const std::size_t cut = at(cuts[i]);
    table.times.push_back(layers.times[cut]);
    table.pass.push_back((layers.times[cut].forward + layers.times[cut].backward).value());
    table.backward.push_back(layers.times[cut].backward.value());
    table.update.push_back(layers.update[cut].value());
    table.parameters.push_back(layers.parameters[cut]);
    if (layers.key.expert_parallel > 1) table.experts.push_back(layers.experts[cut]);
    table.activations.push_back(layers.activations[cut].value());
    if (i + 1 == cuts.size()) break;
    double workspace = 0.0;
    double parameters = 0.0;
    for (std::size_t layer = cut; layer < at(cuts[i + 1]); ++layer) {
      workspace = std::max(workspace, layers.workspace[layer].value());
      parameters = std::max(parameters, layers.parameters[layer + 1] - layers.parameters[layer]);
    }
    const auto add = [&](std::vector<StageTable::Run>& runs, double value) {
      if (runs.empty() || runs.back().value != value) runs.push_back({.first = static_cast<int>(i), .value = value});
    };
    add(table.workspace, workspace);
    add(table.largest, parameters);
  }
  table.logits = layers.logits.value();
  table.extra_logits = layers.extra_logits.value();
  table.stage_input = layers.stage_input.value();
  table.tied_parameters = tied / tensor_parallel;
  table.tied_update = layers.tied_update.value();
  return table;
}

/// ZeRO-2 needs no more memory than ZeRO-1 on any number of replicas, and that no more than none: each keeps less
/// whole, and the gradients of one layer are part of those of a stage. ZeRO-3 keeps weights of two layers whole, which
/// may be more than those of a short stage.
std::vector<OptimizerSharding> lightest_of(const std::vector<OptimizerSharding>& shardings) {
  std::vector<OptimizerSharding> lightest;
  for (const OptimizerSharding sharding : shardings) {
    if (!lightest.empty() && !shards_weights(sharding)) lightest.pop_back();
    lightest.push_back(sharding);
  }
  return lightest;
}

/// Every space in two parts, with the choices that are not `second` and those that are; parts without any are left out.
template <class Choice, class IsSecond>
std::vector<SearchSpace> split_in_two(const std::vector<SearchSpace>& spaces, std::vector<Choice> SearchSpace::*choices,
                                      IsSecond is_second) {
  std::vector<SearchSpace> parts;
  for (const SearchSpace& space : spaces)
    for (const bool second : {false, true}) {
      SearchSpace part = space;
      std::erase_if(part.*choices, [&](Choice choice) { return is_second(choice) != second; });
      if (!(part.*choices).empty()) parts.push_back(std::move(part));
    }
  return parts;
}

}  // namespace

std::vector<SearchSpace> split_by_exchange(const SearchSpace& space) {
  return split_in_two({space}, &SearchSpace::sharding, shards_weights);
}

std::vector<SearchSpace> split_for_bounds(const SearchSpace& space, const simulator::Framework& framework) {
  auto parts = split_in_two({space}, &SearchSpace::schedules,
                            [](Schedule schedule) { return schedule != Schedule::interleaved_1f1b; });
  if (!framework.overlaps_reduction) return parts;
  return split_in_two(parts, &SearchSpace::sharding,
                      [](OptimizerSharding sharding) { return sharding != OptimizerSharding::none; });
}

double min_exchanged(const SearchSpace& space, const simulator::StateBytes& state) {
  double least = infinity;
  for (const OptimizerSharding sharding : space.sharding)
    least = std::min(least, shards_weights(sharding) ? 0.0 : state.exchanged(sharding).value());
  return least;
}

StagePrices::StagePrices(const Request& request, const SearchSpace& space, const simulator::Environment& env)
    : request_(request), space_(space), env_(env), prices_(env) {
  if (const auto state = env.framework.state_of(request.job.precision)) state_ = *state;
  const double exchanged = min_exchanged(space, state_);
  lightest_ = lightest_of(space.sharding);
  summed_.push_back(0.0);
  for (int layer = 0; layer < layers(); ++layer)
    summed_.push_back(summed_.back() + exchanged * parameters(layer, layer + 1));
  for (const DevicePool& pool : space.pools) {
    std::vector<std::uint32_t>& places = places_.emplace_back();
    const auto add = [&](const std::string& zone) {
      const auto known = prices_.place_of({.layers = {0, env.model.layers()}, .gpu = pool.gpu, .zone = zone});
      places.push_back(known ? *known : 0);  // make_search_space() keeps only pools that are known
    };
    if (pool.merged_zones.empty()) add(pool.zone);
    for (const std::string& zone : pool.merged_zones) add(zone);
  }
}

const StageTable* StagePrices::table(std::size_t type, int tensor_parallel, int micro_batch, const StageChoice& choice,
                                     int busy_ranks) {
  if (!space_.allows(type, tensor_parallel, micro_batch)) return nullptr;
  if (busy_ranks == 0)
    for (const DevicePool& pool : space_.pools)
      if (pool.type == type) busy_ranks = std::max(busy_ranks, pool.largest_node());
  const std::uint64_t key = static_cast<std::uint64_t>(type) << 56 | static_cast<std::uint64_t>(tensor_parallel) << 44 |
                            static_cast<std::uint64_t>(micro_batch) << 24 |
                            static_cast<std::uint64_t>(busy_ranks) << 4 | choice.number();
  const auto [entry, is_new] = tables_.try_emplace(key);
  if (is_new) {
    const int node = busy_ranks * space_.context_parallel / space_.joined_nodes;  // devices
    LayerKey question{.model = env_.model.name,
                      .gpu = space_.types[type],
                      .precision = request_.job.precision,
                      .tensor_parallel = tensor_parallel,
                      .micro_batch = micro_batch,
                      .sequence_length = request_.job.sequence_length,
                      .busy_ranks = node,
                      .context_parallel = space_.context_parallel,
                      .expert_parallel = space_.expert_parallel};
    choose(choice, question);
    auto layers = simulator::make_layer_table(env_, *env_.costs, question);
    if (layers && (!space_.is_divided() || add_exchanges(*layers, type, tensor_parallel, node)))
      entry->second = std::make_unique<StageTable>(make_table(*layers, space_.cuts, prices_.tied, tensor_parallel));
  }
  return entry->second.get();
}

bool StagePrices::add_exchanges(simulator::LayerTable& layers, std::size_t type, int tensor_parallel, int node) {
  const auto pool = std::find_if(space_.pools.begin(), space_.pools.end(),
                                 [&](const DevicePool& other) { return other.type == type; });
  Plan plan;
  plan.context_parallel = space_.context_parallel;
  plan.expert_parallel = space_.expert_parallel;
  Stage stage;
  stage.tensor_parallel = tensor_parallel;
  const auto exchanges =
      prices_.make_exchanges(layers, {.place = places_[static_cast<std::size_t>(pool - space_.pools.begin())].front(),
                                      .groups = parts_of(plan, stage, node).groups,
                                      .busy_ranks = std::max(1, node)});
  if (!exchanges) return false;
  for (std::size_t i = 0; i < layers.times.size(); ++i) {
    layers.times[i].forward += exchanges->times[i].forward;
    layers.times[i].backward += exchanges->times[i].backward;
  }
  return true;
}

double StagePrices::message(int micro_batch) const {
  return value_bytes(request_.job.precision) * micro_batch * request_.job.sequence_length *
         env_.model.boundary_width() / space_.context_parallel;
}

BoundaryCost StagePrices::boundary(std::size_t from, int from_tensor_parallel, std::size_t to, int to_tensor_parallel,
                                   int micro_batch, bool one_node) {
  const std::uint64_t key = static_cast<std::uint64_t>(from) << 52 | static_cast<std::uint64_t>(to) << 40 |
                            static_cast<std::uint64_t>(from_tensor_parallel) << 30 |
                            static_cast<std::uint64_t>(to_tensor_parallel) << 20 |
                            static_cast<std::uint64_t>(micro_batch) << 1 | static_cast<std::uint64_t>(one_node);
  const auto [entry, is_new] = boundaries_.try_emplace(key);
  if (!is_new) return entry->second;
  BoundaryCost& least = entry->second = {infinity, infinity};
  for_each_link(from, to, one_node, [&](std::uint32_t a, std::uint32_t b) {
    const auto& price =
        prices_.boundary(a, from_tensor_parallel, b, to_tensor_parallel,
                         one_node ? simulator::Reach::node : simulator::Reach::leaf, Bytes(message(micro_batch)));
    if (!price) return;
    least.forward = std::min(least.forward, price->times.forward.value());
    least.backward = std::min(least.backward, price->times.backward.value());
  });
  return least;
}

double StagePrices::reduction(std::size_t from, std::size_t to, int ranks, int rings, int replicas, bool one_node,
                              double amount) {
  replicas *= space_.context_parallel;
  if (replicas < 2 || amount <= 0.0) return 0.0;
  double least = infinity;
  for_each_link(from, to, one_node, [&](std::uint32_t a, std::uint32_t b) {
    const auto time = prices_.all_reduce_time(
        a, b, ranks, rings, replicas, one_node ? simulator::Reach::node : simulator::Reach::leaf, Bytes(amount));
    if (time) least = std::min(least, time->time.value());
  });
  const double rate = env_.framework.reduction_rate.value();
  return least + (rate > 0.0 ? amount / rate : 0.0);
}

std::size_t ReductionKeyHash::operator()(const ReductionKey& key) const {
  std::uint64_t mixed = key.where * 0x9e3779b97f4a7c15ULL ^ key.ranks;
  mixed = (mixed ^ mixed >> 32) * 0xff51afd7ed558ccdULL ^ std::bit_cast<std::uint64_t>(key.amount);
  mixed *= 0xc4ceb9fe1a85ec53ULL;
  return mixed ^ mixed >> 32;
}

double StagePrices::min_reduction(std::size_t pool, int tensor_parallel, int replicas, double amount) {
  const auto [entry, is_new] = min_reductions_.try_emplace(
      {pool, static_cast<std::uint64_t>(replicas) << 32 | static_cast<std::uint64_t>(tensor_parallel), amount},
      infinity);
  if (!is_new) return entry->second;
  for (std::size_t other = 0; other < space_.pools.size(); ++other) {
    const int node = std::max(space_.pools[pool].largest_node(), space_.pools[other].largest_node());
    entry->second = std::min({entry->second, min_reduction(pool, other, tensor_parallel, replicas, node, amount),
                              min_reduction(other, pool, tensor_parallel, replicas, node, amount)});
  }
  return entry->second;
}

double StagePrices::min_reduction(std::size_t from, std::size_t to, int tensor_parallel, int replicas, int node,
                                  double amount) {
  // Replicas of experts and of other layers differ, and lie elsewhere; sharding groups exchange within and between
  // them.
  if (space_.is_grouped() || replicas < 2 || amount <= 0.0) return 0.0;
  double least = infinity;
  // `ranks` groups on the node that has most of them, where `busy` ranks compute.
  for (int ranks = 1; ranks <= std::min(std::max(1, node / tensor_parallel), replicas); ++ranks) {
    int before = 0;
    for (int busy = ranks * tensor_parallel; busy <= std::max(node, tensor_parallel); ++busy) {
      const int rings = (busy + ranks - 1) / ranks;
      if (rings != before) least = std::min(least, reduction(from, to, ranks, rings, replicas, false, amount));
      before = rings;
    }
    if (from == to && ranks == replicas) least = std::min(least, reduction(from, to, ranks, 1, replicas, true, amount));
  }
  return least;
}

double StagePrices::states(const StageTable& table, int first, int last, const Sharing& sharing) const {
  double parameters = table.parameters[at(last)] - table.parameters[at(first)];
  if (last == layers() && first > 0) parameters += table.tied_parameters;
  const OptimizerSharding how = sharing.sharding;
  double replicas = sharing.replicas;
  if (how != OptimizerSharding::none) {
    replicas *= space_.context_parallel;  // they share the state, too
    if (space_.sharding_degree > 0) replicas = std::min<double>(replicas, space_.sharding_degree);
  }
  double sharded = parameters / replicas;
  if (space_.is_divided()) {
    const double experts = table.experts.empty() ? 0.0 : table.experts[at(last)] - table.experts[at(first)];
    sharded = (parameters - experts) / replicas + experts / std::max(1.0, replicas / space_.expert_parallel);
  }
  if (!shards_gradients(how))
    return parameters * (state_.weight + state_.gradient + state_.copy).value() + sharded * state_.optimizer.value();
  const double largest = StageTable::max_of(table.largest, first, last);
  const double weights = state_.weight.value();
  return (shards_weights(how) ? weights * (sharded + 2.0 * largest) : weights * parameters) +
         (state_.gradient + state_.copy + state_.optimizer).value() * sharded + state_.gradient.value() * largest;
}

double StagePrices::kept(const StageTable& table, int first, int last) const {
  return table.activations[at(last)] - table.activations[at(first)] + (first > 0 ? table.stage_input : 0.0) +
         (last == layers() ? table.logits : 0.0);
}

double StagePrices::fixed(const StageTable& table, int first, int last, int micro_batch, int neighbours) const {
  return StageTable::max_of(table.workspace, first, last) + 2.0 * neighbours * message(micro_batch) +
         (last == layers() ? table.extra_logits : 0.0);
}

int StagePrices::max_in_flight(const StageTable& table, const DevicePool& pool, int first, int last, int micro_batch,
                               int neighbours, const Sharing& sharing, bool copies_gradients, int wanted) const {
  double free = (pool.memory - pool.base).value() - states(table, first, last, sharing) -
                fixed(table, first, last, micro_batch, neighbours);
  if (copies_gradients && env_.framework.copies_reduced_gradients && !shards_gradients(sharing.sharding))
    free -= largest_reduction(table, first, last);
  const double each = kept(table, first, last);
  if (free < 0.0) return 0;
  return each * wanted <= free ? wanted : static_cast<int>(std::floor(free / each));
}

int StagePrices::max_in_flight_of_any(const StageTable& table, const DevicePool& pool, int first, int last,
                                      int micro_batch, int neighbours, int wanted) const {
  int most = 0;
  for (const OptimizerSharding sharding : lightest_) {
    const double replicas = sharding == OptimizerSharding::none ? 1.0 : 1e9;
    most = std::max(
        most, max_in_flight(table, pool, first, last, micro_batch, neighbours, {sharding, replicas}, false, wanted));
  }
  return most;
}

double StagePrices::largest_reduction(const StageTable& table, int first, int last) const {
  // The gradient of a tied embedding is reduced separately, over the ranks of both its stages.
  const bool has_embedding = first == 0;
  const double tied = has_embedding || last == layers() ? table.tied_parameters * state_.gradient.value() : 0.0;
  const double others = gradients(table, first, last) - (has_embedding ? tied : 0.0);
  const double largest = std::max(tied, others);
  const double bucket = env_.framework.reduction_bucket.value();
  return bucket > 0.0 ? std::min(bucket, largest) : largest;
}

double StagePrices::gradients(const StageTable& table, int first, int last) const {
  return (table.parameters[at(last)] - table.parameters[at(first)]) * state_.gradient.value();
}

double StagePrices::parameters(int first, int last) const {
  return prices_.parameters[at(space_.cuts[at(last)])] - prices_.parameters[at(space_.cuts[at(first)])];
}

double StagePrices::summed(int first, int last, int tensor_parallel) const {
  return (summed_[at(last)] - summed_[at(first)]) / tensor_parallel;
}

double StagePrices::update(const StageTable& table, int first, int last) const {
  double time = table.update[at(last)] - table.update[at(first)];
  if (last == layers() && first > 0 && table.tied_parameters > 0.0) time += table.tied_update;
  return time;
}

}  // namespace sailor::planner
