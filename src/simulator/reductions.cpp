#include "simulator/reductions.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace sailor::simulator {

namespace {

/// Load by all-reduces within groups of `group` consecutive replicas, of a node with `load` of all replicas.
Exchange within_groups(const RingLoad& load, int group, int groups, Reach reach) {
  if (groups == 1) return {load, reach};
  const int together = std::gcd(load.ranks, group);  // replicas of one group on a node
  if (together == group) return {{group, 1}, Reach::node};
  return {{together, load.rings * load.ranks / together}, reach};
}
/// The same between groups: of the ranks with the same shard.
Exchange between_groups(const RingLoad& load, int group, Reach reach) {
  const int same = load.ranks % group == 0 ? load.ranks / group : 1;
  return {{same, reach == Reach::node ? load.rings : load.rings * load.ranks / same}, reach};
}

}  // namespace

void add_egress(PricingState& state, PlanCosts& costs, std::uint32_t from, std::uint32_t to, Bytes amount) {
  if (from == to) return;
  const std::string& source = state.places[from].zone;
  const std::string& target = state.places[to].zone;
  const ZoneLink* link = state.zone_link(state.places[from], state.places[to]);
  if (link == nullptr) return;
  const Usd cost(amount.value() * link->egress_usd_per_byte);
  for (EgressCost& row : costs.egress)
    if (row.from == source && row.to == target) {
      row.amount += amount;
      row.cost += cost;
      return;
    }
  costs.egress.push_back({.from = source, .to = target, .amount = amount, .cost = cost});
}

Result<void> ReductionPricer::run() {
  const int layers = s_.env.model.layers();
  s_.cuts.assign({0, layers});
  for (const LayerRange& range : costs_.layers) s_.cuts.push_back(range.first);
  std::sort(s_.cuts.begin(), s_.cuts.end());
  s_.cuts.erase(std::unique(s_.cuts.begin(), s_.cuts.end()), s_.cuts.end());
  for (std::size_t i = s_.cuts.size() - 1; i-- > 0;) {  // last layers first, as backward passes reach them
    const int first = s_.cuts[i];
    const int last = s_.cuts[i + 1];
    hold(first);
    add_layers(first, last);
  }
  if (s_.tied > 0.0 && layers > 1) add_tied();
  for (Reduction& reduction : costs_.reductions) SAILOR_CHECK(price_reduction(reduction));
  if (shards_weights(plan_.optimizer_sharding)) move_into_passes();
  return {};
}

void ReductionPricer::move_into_passes() {
  const double weights = gathered_for_each_scattered();
  for (std::size_t i = 0; i < costs_.stages.size(); ++i) {
    Seconds scatter;
    Seconds between;
    for (const Reduction& reduction : costs_.reductions) {
      if (!costs_.takes_part(i, reduction)) continue;
      scatter += reduction.gather;
      between += reduction.time - reduction.gather * 2.0;
    }
    StageCosts& stage = costs_.stages[i];
    const PipelineCosts& pipeline = costs_.pipelines[static_cast<std::size_t>(stage.entry)];
    const Seconds all_forward = stage.forward;
    stage.forward = stage.backward = Seconds(0);
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
      const std::size_t pass = pipeline.first_pass + static_cast<std::size_t>(chunk * pipeline.stages + stage.stage);
      const int layers = costs_.layers[pass].size();
      const double part = all_forward > Seconds(0) ? costs_.passes[pass].forward / all_forward : 1.0;
      PassTimes& times = costs_.passes[pass];
      times.forward = beside(times.forward, scatter * (weights * part), layers);
      times.backward = beside(times.backward, scatter * ((weights + 1.0) * part) + between * part, layers);
      stage.forward += times.forward;
      stage.backward += times.backward;
    }
  }
  for (Reduction& reduction : costs_.reductions) reduction.time = reduction.gather = Seconds(0);
}

double ReductionPricer::gathered_for_each_scattered() const {
  return state_.gradient > Bytes(0) ? state_.weight / state_.gradient : 1.0;
}

Seconds ReductionPricer::beside(Seconds computing, Seconds exchanging, int layers) const {
  if (!s_.env.framework.prefetches_weights) return computing + exchanging;
  return std::max(computing, exchanging) + std::min(computing, exchanging) / std::max(1, layers);
}

void ReductionPricer::hold(int layer, bool also) {
  if (!also) s_.held.clear();
  for (std::size_t entry = 0; entry < plan_.pipelines.size(); ++entry) {
    const std::vector<Stage>& stages = plan_.pipelines[entry].stages;
    const auto holder = std::find_if(stages.begin(), stages.end(), [&](const Stage& s) { return s.holds(layer); });
    const std::size_t stage = costs_.pipelines[entry].first_stage + static_cast<std::size_t>(holder - stages.begin());
    if (std::find(s_.held.begin(), s_.held.end(), stage) == s_.held.end()) s_.held.push_back(stage);
  }
}

void ReductionPricer::add_layers(int first, int last) {
  const auto from = static_cast<std::size_t>(first);
  const auto to = static_cast<std::size_t>(last);
  double parameters = s_.parameters[to] - s_.parameters[from];
  if (first == 0) parameters -= s_.tied;  // reduced separately
  const double experts = plan_.expert_parallel > 1 ? s_.experts[to] - s_.experts[from] : 0.0;
  add_reduction(first, last, parameters - experts, {});
  if (experts > 0.0) add_reduction(first, last, experts / plan_.expert_parallel, {.experts = true});
}

void ReductionPricer::add_tied() {
  hold(0);
  hold(s_.env.model.layers() - 1, true);
  std::sort(s_.held.begin(), s_.held.end());
  add_reduction(0, 1, s_.tied, {.tied = true});
}

void ReductionPricer::add_reduction(int first, int last, double parameters, const ReductionKind& kind) {
  const Bytes amount = state_.gradient * (parameters / least_tensor_parallel());
  for (Reduction& other : costs_.reductions) {
    const std::span holders = costs_.holders_of(other);
    if (costs_.overlaps_reduction || other.experts != kind.experts ||
        !std::equal(s_.held.begin(), s_.held.end(), holders.begin(), holders.end()))
      continue;
    other.amount += amount;
    other.first_layer = std::min(other.first_layer, first);
    return;
  }
  int replicas = 0;
  for (const std::size_t holder : s_.held)
    replicas += pipeline_at(plan_, costs_, holder).count * plan_.context_parallel;
  if (kind.experts) replicas /= plan_.expert_parallel;
  if (replicas < 2) return;
  costs_.reductions.push_back({.first_holder = costs_.holders.size(),
                               .holders = s_.held.size(),
                               .replicas = replicas,
                               .first_layer = first,
                               .last_layer = last,
                               .tied = kind.tied,
                               .experts = kind.experts,
                               .amount = amount,
                               .time = {}});
  costs_.holders.insert(costs_.holders.end(), s_.held.begin(), s_.held.end());
}

int ReductionPricer::least_tensor_parallel() const {
  int least = std::numeric_limits<int>::max();
  for (const std::size_t holder : s_.held) least = std::min(least, stage_at(plan_, costs_, holder).tensor_parallel);
  return least;
}

double ReductionPricer::exchanged_share() const {
  return state_.gradient > Bytes(0) ? state_.exchanged(plan_.optimizer_sharding) / state_.gradient : 1.0;
}

int ReductionPricer::group_of(const Reduction& reduction) const {
  if (!has_groups_ || reduction.tied) return reduction.replicas;
  return reduction.experts ? plan_.sharding_degree / plan_.expert_parallel : plan_.sharding_degree;
}

Result<void> ReductionPricer::price_reduction(Reduction& reduction) {
  const std::span holders = costs_.holders_of(reduction);
  s_.holds.assign(costs_.stages.size(), 0);
  for (const std::size_t holder : holders) s_.holds[holder] = 1;
  const bool one_node = find_loads() == 1;
  if (reduction.experts) spread_experts(one_node);
  Reach reach = one_node ? Reach::node : Reach::leaf;
  if (s_.switches.matters() && s_.switches.spread(holders)) reach = Reach::across;
  const double pieces = shards_weights(plan_.optimizer_sharding)
                            ? std::max(1, reduction.last_layer - reduction.first_layer)  // layer by layer
                            : costs_.buckets_of(reduction);
  const Bytes exchanged = reduction.amount * exchanged_share();
  const int group = group_of(reduction);
  const int groups = reduction.replicas / group;
  const int spread = groups > 1 ? groups_over_places(holders) : 1;
  const bool apart = spread == 0;
  const bool alike = is_in_one_place(holders);
  const BytesPerSecond rate = s_.env.framework.reduction_rate;
  const Seconds own = rate > BytesPerSecond(0) ? exchanged / rate : Seconds(0);  // the framework's work on gradients
  if (group > 1) {
    s_.exchanges.clear();
    for (const RingLoad& load : s_.loads) s_.exchanges.push_back(within_groups(load, group, groups, reach));
    const auto time = all_reduce(holders, alike, group, exchanged, pieces, apart);
    if (!time) return fail(time.error());
    reduction.time = *time + own;
    if (costs_.shards_optimizer) reduction.gather = reduction.time * 0.5;
  }
  if (groups > 1) {
    s_.exchanges.clear();
    for (const RingLoad& load : s_.loads) s_.exchanges.push_back(between_groups(load, group, reach));
    const auto time = all_reduce(holders, alike, groups, reduction.amount / group, pieces, false);
    if (!time) return fail(time.error());
    reduction.time += *time + (group > 1 ? Seconds(0) : own);
  }
  if (alike) return {};
  const auto ring = [](int ranks) { return 2.0 * (ranks - 1) / ranks; };
  add_reduction_egress(
      reduction, holders,
      spread * ring(group) * exchanges_of(holders) * exchanged_share() + ring(groups) * scatters_of(holders));
  return {};
}

double ReductionPricer::scatters_of(std::span<const std::size_t> holders) const {
  if (!shards_weights(plan_.optimizer_sharding)) return 1.0;
  int most = 1;
  for (const std::size_t holder : holders) most = std::max(most, pipeline_at(plan_, costs_, holder).micro_batches);
  return most;
}

double ReductionPricer::exchanges_of(std::span<const std::size_t> holders) const {
  if (!shards_weights(plan_.optimizer_sharding)) return 1.0;
  return scatters_of(holders) * (1.0 + 2.0 * gathered_for_each_scattered()) / 2.0;
}

int ReductionPricer::groups_over_places(std::span<const std::size_t> holders) const {
  int before = 0;
  int counted = -1;
  int spread = 0;
  for (std::size_t i = 0; i + 1 < holders.size(); ++i) {
    before += pipeline_at(plan_, costs_, holders[i]).count * plan_.context_parallel;
    if (s_.facts[holders[i]].place == s_.facts[holders[i + 1]].place || before % plan_.sharding_degree == 0) continue;
    const int group = before / plan_.sharding_degree;
    if (group != counted) ++spread;
    counted = group;
  }
  return spread;
}

Result<Seconds> ReductionPricer::all_reduce(std::span<const std::size_t> holders, bool alike, int replicas,
                                            Bytes amount, double pieces, bool apart) {
  const Bytes piece = amount / pieces;
  Seconds slowest{};
  for (const std::size_t from : holders) {
    for (const std::size_t to : holders) {
      const std::uint32_t a = s_.facts[from].place;
      const std::uint32_t b = s_.facts[to].place;
      if (apart ? from != to : !alike && a == b) continue;
      for (const Exchange& exchange : s_.exchanges) {
        const RingLoad& load = exchange.load;
        const auto time = s_.all_reduce_time(a, b, load.ranks, load.rings, replicas, exchange.reach, piece);
        if (!time) return fail(time.error());
        slowest = std::max(slowest, time->time * pieces);
        costs_.crosses_switches = costs_.crosses_switches || s_.switch_link(a, b, exchange.reach) != nullptr;
        costs_.links.add(*time, {.from = a, .to = b, .one_node = exchange.reach == Reach::node});
      }
      if (alike) break;
    }
    if (alike) break;
  }
  return slowest;
}

bool ReductionPricer::is_in_one_place(std::span<const std::size_t> holders) const {
  return std::all_of(holders.begin(), holders.end(),
                     [&](std::size_t holder) { return s_.facts[holder].place == s_.facts[holders.front()].place; });
}

std::int64_t ReductionPricer::find_loads() {
  s_.loads.clear();
  std::int64_t nodes = 0;
  for (const NodeUse::Node& node : s_.nodes.nodes()) {
    int here = 0;
    for (const NodeUse::Group& group : s_.nodes.groups_of(node))
      if (s_.holds[static_cast<std::size_t>(group.stage)] != 0)
        here += group.count * s_.nodes.parts(static_cast<std::size_t>(group.stage)).groups;
    if (here == 0) continue;
    nodes += node.count;
    const int rings = (node.ranks + here - 1) / here;
    const auto known =
        std::find_if(s_.loads.begin(), s_.loads.end(), [&](const RingLoad& load) { return load.ranks == here; });
    if (known == s_.loads.end())
      s_.loads.push_back({here, rings});
    else
      known->rings = std::max(known->rings, rings);
  }
  if (nodes == 1) s_.loads.front().rings = 1;  // no all-reduce leaves the node
  return nodes;
}

void ReductionPricer::spread_experts(bool one_node) {
  for (RingLoad& load : s_.loads) {
    const int same = std::max(1, load.ranks / plan_.expert_parallel);
    if (!one_node) load.rings = load.rings * load.ranks / same;
    load.ranks = same;
  }
}

void ReductionPricer::add_reduction_egress(const Reduction& reduction, std::span<const std::size_t> holders,
                                           double share) {
  std::vector<std::uint32_t>& ring = s_.ring;
  ring.clear();
  int tensor_parallel = std::numeric_limits<int>::max();
  for (const std::size_t holder : holders) {
    const std::uint32_t place = s_.facts[holder].place;
    const auto same_zone = [&](std::uint32_t other) { return s_.places[other].zone == s_.places[place].zone; };
    if (std::none_of(ring.begin(), ring.end(), same_zone)) ring.push_back(place);
    tensor_parallel = std::min(tensor_parallel, stage_at(plan_, costs_, holder).tensor_parallel);
  }
  if (ring.size() < 2) return;
  for (std::size_t i = 0; i < ring.size(); ++i)
    add_egress(s_, costs_, ring[i], ring[(i + 1) % ring.size()], reduction.amount * share * tensor_parallel);
}

int ReductionPricer::shards_of(std::size_t stage) const {
  int replicas = 1;
  for (const Reduction& reduction : costs_.reductions)
    if (!reduction.tied && !reduction.experts && costs_.takes_part(stage, reduction))
      replicas = std::max(replicas, group_of(reduction));
  return replicas;
}

Bytes ReductionPricer::largest(std::size_t stage) const {
  Bytes largest{};
  if (!s_.env.framework.copies_reduced_gradients) return largest;
  for (const Reduction& reduction : costs_.reductions) {
    if (!costs_.takes_part(stage, reduction)) continue;
    const Bytes bucket = costs_.reduction_bucket;
    largest = std::max(largest, bucket > Bytes(0) ? std::min(bucket, reduction.amount) : reduction.amount);
  }
  return largest;
}

}  // namespace sailor::simulator
