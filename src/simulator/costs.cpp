#include "simulator/costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "plan/placement.hpp"
#include "plan/schedule.hpp"
#include "simulator/price_list.hpp"
#include "simulator/switches.hpp"

namespace sailor::simulator {

namespace {

/// Facts about a stage that are known before anything is priced.
struct StageFacts {
  std::uint32_t place = 0;
  int busy_ranks = 1;        ///< on the busiest node of a copy
  Reach next = Reach::leaf;  ///< to the next stage (from the last stage: to the first), of the copy that is farthest
};

/// Load of a node by a reduction: its ranks there, and the number of all-reduces that use the node's network at once.
struct RingLoad {
  int ranks = 0;
  int rings = 0;
};

/// An all-reduce as the ranks of a node see it.
struct Exchange {
  RingLoad load;
  Reach reach = Reach::leaf;
};

}  // namespace

/// Prices, and storage that is reused for every plan.
struct CostModel::State : PriceList {
  explicit State(const Environment& environment) : PriceList(environment), switches(environment.cluster, node_sizes) {}

  NodeUse nodes;
  SwitchMap switches;
  std::vector<StageFacts> facts;
  std::vector<int> cuts;
  std::vector<std::size_t> held;
  std::vector<char> holds;          // by stage: whether it takes part in the reduction at hand
  std::vector<RingLoad> loads;      // of the reduction at hand
  std::vector<Exchange> exchanges;  // the same, of one of its all-reduces
  std::vector<double> sizes;        // by chunk
  std::vector<std::uint32_t> ring;  // a place for each zone
};

/// Walks over a plan once and fills its costs.
class CostModel::Pricer {
 public:
  Pricer(const Plan& plan, State& state, PlanCosts& costs) : plan_(plan), s_(state), costs_(costs) {}

  Result<void> run() {
    SAILOR_CHECK(check_plan(plan_, s_.env.model));
    const auto state = s_.env.framework.state_of(plan_.job.precision);
    if (!state) return fail(state.error());
    state_ = *state;
    has_groups_ = plan_.sharding_groups() > 1;
    SAILOR_CHECK(s_.env.framework.check(plan_.optimizer_sharding, has_groups_ ? plan_.sharding_degree : 0));
    SAILOR_CHECK(check_divisions());
    start();
    SAILOR_CHECK(place());
    for (std::size_t entry = 0; entry < plan_.pipelines.size(); ++entry) SAILOR_CHECK(price_pipeline(entry));
    SAILOR_CHECK(add_reductions());
    for (std::size_t i = 0; i < costs_.stages.size(); ++i) finish_stage(i);
    return {};
  }

 private:
  Result<void> check_divisions() const {
    for (std::size_t p = 0; p < plan_.pipelines.size(); ++p)
      for (std::size_t s = 0; s < plan_.pipelines[p].stages.size(); ++s)
        if (const auto possible =
                s_.env.framework.check(s_.env.model, {.tensor_parallel = plan_.pipelines[p].stages[s].tensor_parallel,
                                                      .context_parallel = plan_.context_parallel,
                                                      .precision = plan_.job.precision,
                                                      .sequence_length = plan_.job.sequence_length,
                                                      .micro_batch = plan_.micro_batch_of(plan_.pipelines[p])});
            !possible)
          return fail(possible.error(), fmt::format("pipeline {}, stage {}", p, s));
    return {};
  }
  void start() {
    const Framework& framework = s_.env.framework;
    costs_.schedule = plan_.schedule;
    costs_.overlaps_transfers = framework.overlaps_transfers || plan_.schedule == Schedule::interleaved_1f1b;
    costs_.overlaps_reduction = framework.overlaps_reduction;
    costs_.shards_optimizer = plan_.optimizer_sharding != OptimizerSharding::none;
    costs_.reduction_bucket = framework.reduction_bucket;
    costs_.layer_parameters = &s_.parameters;
    costs_.pipelines.clear();
    costs_.stages.clear();
    costs_.passes.clear();
    costs_.boundaries.clear();
    costs_.reductions.clear();
    costs_.holders.clear();
    costs_.layers.clear();
    costs_.devices.clear();
    costs_.egress.clear();
    costs_.processes.clear();
    costs_.assumptions.clear();
    if (plan_.expert_parallel > 1) costs_.assumptions.push_back(load_of_experts());
    costs_.crosses_switches = false;
    costs_.links.clear();
    s_.facts.clear();
  }

  [[nodiscard]] EstimatedInput load_of_experts() const {
    const Framework& framework = s_.env.framework;
    return {.origin = Origin::estimated,
            .what = fmt::format("load of expert-parallel ranks (not measured: the busiest gets {:.3g} x the mean, {})",
                                framework.kernels.expert_imbalance,
                                framework.states_expert_imbalance ? "as the framework's file states"
                                                                  : "as if tokens were divided equally")};
  }

  /// Places the copies of every stage. Where copies of a pipeline differ, the worst one counts, since they wait for
  /// each other at the end of an iteration.
  Result<void> place() {
    SAILOR_CHECK(s_.nodes.place(plan_, s_.node_sizes));
    for (const Pipeline& pipeline : plan_.pipelines)
      for (const Stage& stage : pipeline.stages) {
        const auto place = s_.place_of(stage);
        if (!place) return fail(place.error());
        s_.facts.push_back({.place = *place,
                            .busy_ranks = 1,
                            .next = s_.nodes.with_next(s_.facts.size()) ? Reach::node : Reach::leaf});
      }
    if (s_.switches.matters()) {
      SAILOR_CHECK(s_.switches.place(plan_));
      for (std::size_t i = 0; i < s_.facts.size(); ++i)
        if (s_.switches.leaves_switch(i)) s_.facts[i].next = Reach::across;
    }
    for (const NodeUse::Node& node : s_.nodes.nodes())
      for (const NodeUse::Group& group : s_.nodes.groups_of(node)) {
        int& busy = s_.facts[static_cast<std::size_t>(group.stage)].busy_ranks;
        busy = std::max(busy, node.ranks);
      }
    std::int64_t nodes = 0;
    for (const NodeUse::Node& node : s_.nodes.nodes()) nodes += node.count;
    costs_.nodes = static_cast<int>(nodes);
    return {};
  }

  Result<void> price_pipeline(std::size_t entry) {
    const Pipeline& pipeline = plan_.pipelines[entry];
    const std::size_t first = costs_.stages.size();
    const PipelineCosts row{.stages = static_cast<int>(pipeline.stages.size()),
                            .chunks = pipeline.chunks(),
                            .micro_batches = pipeline.micro_batches,
                            .first_stage = first,
                            .first_pass = costs_.passes.size(),
                            .first_boundary = costs_.boundaries.size()};
    costs_.pipelines.push_back(row);
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const StageFacts& facts = s_.facts[first + i];
      const auto table = s_.table_of(plan_, pipeline, pipeline.stages[i], facts.place, facts.busy_ranks);
      if (!table) return fail(table.error());
      costs_.stages.push_back({.entry = static_cast<int>(entry),
                               .stage = static_cast<int>(i),
                               .table = *table,
                               .forward = {},
                               .backward = {},
                               .update = {},
                               .memory = {},
                               .capacity = s_.places[facts.place].capacity});
      add_devices(pipeline, pipeline.stages[i], s_.places[facts.place]);
    }
    for (int chunk = 0; chunk < row.chunks; ++chunk)
      for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
        StageCosts& stage = costs_.stages[first + i];
        const LayerRange& layers = pipeline.stages[i].chunk(chunk);
        PassTimes passes = stage.table->passes(layers);
        if (stage.table->key.is_divided()) SAILOR_CHECK(add_exchanges(first + i, layers, passes));
        stage.forward += passes.forward;
        stage.backward += passes.backward;
        costs_.passes.push_back(passes);
        costs_.layers.push_back(layers);
      }
    const std::size_t boundaries = pipeline.stages.size() * static_cast<std::size_t>(row.chunks) - 1;
    for (std::size_t b = 0; b < boundaries; ++b) SAILOR_CHECK(add_boundary(pipeline, first, b));
    return {};
  }

  Result<void> add_exchanges(std::size_t stage, const LayerRange& layers, PassTimes& passes) {
    const StageFacts& facts = s_.facts[stage];
    const std::array only{stage};
    const bool spread = s_.switches.matters() && s_.switches.spread(only);
    const auto exchanges =
        s_.exchanges_of(*costs_.stages[stage].table, {.place = facts.place,
                                                      .groups = s_.nodes.parts(stage).groups,
                                                      .busy_ranks = facts.busy_ranks,
                                                      .beyond = spread ? Reach::across : Reach::leaf});
    if (!exchanges) return fail(exchanges.error());
    const std::vector<PassTimes>& times = (*exchanges)->times;
    costs_.stages[stage].exchanges = &times;
    const auto first = static_cast<std::size_t>(layers.first);
    const auto last = static_cast<std::size_t>(layers.last);
    passes.forward += times[last].forward - times[first].forward;
    passes.backward += times[last].backward - times[first].backward;
    costs_.links.add((*exchanges)->links);
    return {};
  }

  void add_devices(const Pipeline& pipeline, const Stage& stage, const Place& place) {
    const int devices = pipeline.count * plan_.ranks_of(stage);
    for (DeviceCost& cost : costs_.devices)
      if (cost.gpu == place.gpu && cost.zone == place.zone) {
        cost.devices += devices;
        return;
      }
    costs_.devices.push_back({.gpu = place.gpu,
                              .zone = place.zone,
                              .devices = devices,
                              .price = place.price,
                              .price_is_assumed = place.price_is_assumed,
                              .cost = {}});
  }

  /// Of a tensor-parallel group: under context parallelism each sends its part of the sequence to its counterpart.
  Bytes boundary_bytes(const Pipeline& pipeline) const {
    return Bytes(1.0 / plan_.context_parallel * value_bytes(plan_.job.precision) * plan_.micro_batch_of(pipeline) *
                 plan_.job.sequence_length * s_.env.model.boundary_width());
  }

  Result<void> add_boundary(const Pipeline& pipeline, std::size_t first, std::size_t boundary) {
    const std::size_t stages = pipeline.stages.size();
    const std::size_t from = boundary % stages;
    const std::size_t to = (boundary + 1) % stages;
    const StageFacts& a = s_.facts[first + from];
    const StageFacts& b = s_.facts[first + to];
    const int senders = pipeline.stages[from].tensor_parallel;
    const int receivers = pipeline.stages[to].tensor_parallel;
    const Bytes message = boundary_bytes(pipeline);
    const auto& price = s_.boundary(a.place, senders, b.place, receivers, a.next, message);
    if (!price) return fail(price.error());
    costs_.boundaries.push_back(price->times);
    costs_.links.add(price->links);
    costs_.crosses_switches = costs_.crosses_switches || s_.switch_link(a.place, b.place, a.next) != nullptr;
    if (a.place == b.place) return {};
    const StageMessages how = s_.env.framework.stage_messages;
    const Bytes all = message * (static_cast<double>(pipeline.micro_batches) * pipeline.count * plan_.context_parallel);
    add_egress(a.place, b.place, all * crossing_copies(how, senders, receivers));
    add_egress(b.place, a.place, all * crossing_copies(how, receivers, senders));
    return {};
  }

  void add_egress(std::uint32_t from, std::uint32_t to, Bytes amount) {
    if (from == to) return;
    const std::string& source = s_.places[from].zone;
    const std::string& target = s_.places[to].zone;
    const ZoneLink* link = s_.zone_link(s_.places[from], s_.places[to]);
    if (link == nullptr) return;
    const Usd cost(amount.value() * link->egress_usd_per_byte);
    for (EgressCost& row : costs_.egress)
      if (row.from == source && row.to == target) {
        row.amount += amount;
        row.cost += cost;
        return;
      }
    costs_.egress.push_back({.from = source, .to = target, .amount = amount, .cost = cost});
  }

  /// Gradients of a layer are all-reduced over exactly the ranks that hold it; layers with the same holders share a
  /// reduction.
  Result<void> add_reductions() {
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

  /// ZeRO-3: every pass gathers the weights of its layers, and a backward pass scatters their gradients and, between
  /// sharding groups, all-reduces the shards, so that nothing is left for the end of an iteration. Within a group a
  /// reduction's time is that of an all-reduce of the gradients, half of which is the reduce-scatter; the all-gather of
  /// the weights takes as long, in proportion to their bytes.
  void move_into_passes() {
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

  /// Bytes of weights for each byte of gradients.
  [[nodiscard]] double gathered_for_each_scattered() const {
    return state_.gradient > Bytes(0) ? state_.weight / state_.gradient : 1.0;
  }

  /// Time of passes through `layers` layers that compute and communicate. With prefetching both overlap, except for the
  /// first or the last layer.
  [[nodiscard]] Seconds beside(Seconds computing, Seconds exchanging, int layers) const {
    if (!s_.env.framework.prefetches_weights) return computing + exchanging;
    return std::max(computing, exchanging) + std::min(computing, exchanging) / std::max(1, layers);
  }

  /// Appends the holders of `layer` to s_.held, which is cleared first unless `also`.
  void hold(int layer, bool also = false) {
    if (!also) s_.held.clear();
    for (std::size_t entry = 0; entry < plan_.pipelines.size(); ++entry) {
      const std::vector<Stage>& stages = plan_.pipelines[entry].stages;
      const auto holder = std::find_if(stages.begin(), stages.end(), [&](const Stage& s) { return s.holds(layer); });
      const std::size_t stage = costs_.pipelines[entry].first_stage + static_cast<std::size_t>(holder - stages.begin());
      if (std::find(s_.held.begin(), s_.held.end(), stage) == s_.held.end()) s_.held.push_back(stage);
    }
  }

  void add_layers(int first, int last) {
    const auto from = static_cast<std::size_t>(first);
    const auto to = static_cast<std::size_t>(last);
    double parameters = s_.parameters[to] - s_.parameters[from];
    if (first == 0) parameters -= s_.tied;  // reduced separately
    const double experts = plan_.expert_parallel > 1 ? s_.experts[to] - s_.experts[from] : 0.0;
    add_reduction(first, last, parameters - experts, {});
    if (experts > 0.0) add_reduction(first, last, experts / plan_.expert_parallel, {.experts = true});
  }

  void add_tied() {
    hold(0);
    hold(s_.env.model.layers() - 1, true);
    std::sort(s_.held.begin(), s_.held.end());
    add_reduction(0, 1, s_.tied, {.tied = true});
  }

  struct ReductionKind {
    bool tied = false;
    bool experts = false;
  };

  /// `parameters`: of one rank of those that hold the layers, if it had no tensor parallelism.
  void add_reduction(int first, int last, double parameters, const ReductionKind& kind) {
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
    for (const std::size_t holder : s_.held) replicas += pipeline_of(holder).count * plan_.context_parallel;
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

  const Pipeline& pipeline_of(std::size_t stage) const {
    return plan_.pipelines[static_cast<std::size_t>(costs_.stages[stage].entry)];
  }
  const Stage& stage_at(std::size_t stage) const {
    return pipeline_of(stage).stages[static_cast<std::size_t>(costs_.stages[stage].stage)];
  }
  int least_tensor_parallel() const {
    int least = std::numeric_limits<int>::max();
    for (const std::size_t holder : s_.held) least = std::min(least, stage_at(holder).tensor_parallel);
    return least;
  }

  /// Bytes that cross links, as a share of the bytes of the gradients.
  [[nodiscard]] double exchanged_share() const {
    return state_.gradient > Bytes(0) ? state_.exchanged(plan_.optimizer_sharding) / state_.gradient : 1.0;
  }

  /// Number of the reduction's replicas that share what is sharded; all of them where nothing is. The tied embedding is
  /// taken to be summed over all ranks of both its stages at once.
  [[nodiscard]] int group_of(const Reduction& reduction) const {
    if (!has_groups_ || reduction.tied) return reduction.replicas;
    return reduction.experts ? plan_.sharding_degree / plan_.expert_parallel : plan_.sharding_degree;
  }

  Result<void> price_reduction(Reduction& reduction) {
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

  /// Times that an iteration reduces gradients: ZeRO-3 does it in every backward pass.
  [[nodiscard]] double scatters_of(std::span<const std::size_t> holders) const {
    if (!shards_weights(plan_.optimizer_sharding)) return 1.0;
    int most = 1;
    for (const std::size_t holder : holders) most = std::max(most, pipeline_of(holder).micro_batches);
    return most;
  }
  /// All-reduces of the gradients that move as many bytes as an iteration does: ZeRO-3 gathers the weights twice for
  /// every reduce-scatter.
  [[nodiscard]] double exchanges_of(std::span<const std::size_t> holders) const {
    if (!shards_weights(plan_.optimizer_sharding)) return 1.0;
    return scatters_of(holders) * (1.0 + 2.0 * gathered_for_each_scattered()) / 2.0;
  }

  /// Number of sharding groups with replicas in more than one place. Groups are consecutive replicas.
  [[nodiscard]] int groups_over_places(std::span<const std::size_t> holders) const {
    int before = 0;
    int counted = -1;
    int spread = 0;
    for (std::size_t i = 0; i + 1 < holders.size(); ++i) {
      before += pipeline_of(holders[i]).count * plan_.context_parallel;
      if (s_.facts[holders[i]].place == s_.facts[holders[i + 1]].place || before % plan_.sharding_degree == 0) continue;
      const int group = before / plan_.sharding_degree;
      if (group != counted) ++spread;
      counted = group;
    }
    return spread;
  }

  /// Load by all-reduces within groups of `group` consecutive replicas, of a node with `load` of all replicas.
  [[nodiscard]] static Exchange within_groups(const RingLoad& load, int group, int groups, Reach reach) {
    if (groups == 1) return {load, reach};
    const int together = std::gcd(load.ranks, group);  // replicas of one group on a node
    if (together == group) return {{group, 1}, Reach::node};
    return {{together, load.rings * load.ranks / together}, reach};
  }
  /// The same between groups: of the ranks with the same shard.
  [[nodiscard]] static Exchange between_groups(const RingLoad& load, int group, Reach reach) {
    const int same = load.ranks % group == 0 ? load.ranks / group : 1;
    return {{same, reach == Reach::node ? load.rings : load.rings * load.ranks / same}, reach};
  }

  /// Time of an all-reduce of `amount` bytes in `pieces` over `replicas`, by the loads in s_.exchanges: over different
  /// devices or zones as slow as over their slowest pair, unless all holders are in one place (`alike`) or replicas of
  /// different places do not exchange (`apart`); over different nodes as slow as if all were like the worst one.
  Result<Seconds> all_reduce(std::span<const std::size_t> holders, bool alike, int replicas, Bytes amount,
                             double pieces, bool apart) {
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

  [[nodiscard]] bool is_in_one_place(std::span<const std::size_t> holders) const {
    return std::all_of(holders.begin(), holders.end(),
                       [&](std::size_t holder) { return s_.facts[holder].place == s_.facts[holders.front()].place; });
  }

  /// Fills s_.loads with the loads of the nodes that hold stages of s_.holds, and returns the number of these nodes.
  /// Every rank of a node takes part in some all-reduce; those of one tensor-parallel group in different ones.
  std::int64_t find_loads() {
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

  /// Of the ranks on a node, every expert_parallel-th holds the same experts: fewer take part in one all-reduce, and
  /// more all-reduces use the node's network.
  void spread_experts(bool one_node) {
    for (RingLoad& load : s_.loads) {
      const int same = std::max(1, load.ranks / plan_.expert_parallel);
      if (!one_node) load.rings = load.rings * load.ranks / same;
      load.ranks = same;
    }
  }

  /// A ring that visits zone after zone leaves each one once: a `share` of the gradients, in all slices, crosses there;
  /// 2(n - 1)/n in an all-reduce over n replicas.
  void add_reduction_egress(const Reduction& reduction, std::span<const std::size_t> holders, double share) {
    std::vector<std::uint32_t>& ring = s_.ring;
    ring.clear();
    int tensor_parallel = std::numeric_limits<int>::max();
    for (const std::size_t holder : holders) {
      const std::uint32_t place = s_.facts[holder].place;
      const auto same_zone = [&](std::uint32_t other) { return s_.places[other].zone == s_.places[place].zone; };
      if (std::none_of(ring.begin(), ring.end(), same_zone)) ring.push_back(place);
      tensor_parallel = std::min(tensor_parallel, stage_at(holder).tensor_parallel);
    }
    if (ring.size() < 2) return;
    for (std::size_t i = 0; i < ring.size(); ++i)
      add_egress(ring[i], ring[(i + 1) % ring.size()], reduction.amount * share * tensor_parallel);
  }

  void finish_stage(std::size_t index) {
    StageCosts& costs = costs_.stages[index];
    const Pipeline& pipeline = pipeline_of(index);
    const Stage& stage = stage_at(index);
    const LayerTable& table = *costs.table;
    const int stages = static_cast<int>(pipeline.stages.size());
    const int layers = s_.env.model.layers();
    RankMemory& memory = costs.memory;

    double parameters = 0.0;
    double experts = 0.0;  // part of them, where they are divided among ranks
    s_.sizes.clear();
    bool embedding = false;
    bool head = false;
    for (int chunk = 0; chunk < stage.chunks(); ++chunk) {
      const LayerRange& range = stage.chunk(chunk);
      const auto first = static_cast<std::size_t>(range.first);
      const auto last = static_cast<std::size_t>(range.last);
      parameters += table.parameters[last] - table.parameters[first];
      if (plan_.expert_parallel > 1) experts += table.experts[last] - table.experts[first];
      costs.update += table.update[last] - table.update[first];
      s_.sizes.push_back((table.activations[last] - table.activations[first]).value());
      if (range.first > 0) s_.sizes.back() += table.stage_input.value();
      for (std::size_t layer = first; layer < last; ++layer)
        memory.workspace = std::max(memory.workspace, table.workspace[layer]);
      embedding = embedding || range.first == 0;
      head = head || range.last == layers;
    }
    if (head && !embedding && s_.tied > 0.0) {  // a second copy of the token embedding, which is updated too
      parameters += s_.tied / stage.tensor_parallel;
      costs.update += table.tied_update;
    }
    // Experts have fewer replicas than other parameters to be sharded among.
    const double replicas = costs_.shards_optimizer ? shards_of(index) : 1.0;
    const double sharded =
        (parameters - experts) / replicas + experts / std::max(1.0, replicas / plan_.expert_parallel);
    if (parameters > 0.0) costs.update *= sharded / parameters;
    const OptimizerSharding sharding = plan_.optimizer_sharding;
    const double gradients = shards_gradients(sharding) ? sharded : parameters;
    memory.weights = state_.weight * (shards_weights(sharding) ? sharded : parameters);
    memory.gradients = state_.gradient * gradients;
    memory.optimizer = state_.optimizer * sharded;
    memory.copies = state_.copy * gradients +
                    (shards_gradients(sharding) ? whole_layers(stage, table, sharding) : largest_reduction(index));
    memory.activations = Bytes(peak_in_flight(plan_.schedule, costs.stage, stages, pipeline.micro_batches, s_.sizes));
    if (head) {
      for (double& size : s_.sizes) size = 0.0;
      s_.sizes.back() = table.logits.value();
      memory.logits = table.extra_logits +
                      Bytes(peak_in_flight(plan_.schedule, costs.stage, stages, pipeline.micro_batches, s_.sizes));
    }
    // Each neighbour has one message arriving and one leaving.
    const bool ring = stage.chunks() > 1;
    const int neighbours =
        stages == 1 ? 0 : (costs.stage > 0 || ring ? 1 : 0) + (costs.stage + 1 < stages || ring ? 1 : 0);
    memory.communication = boundary_bytes(pipeline) * (2.0 * neighbours);
    const Place& place = s_.places[s_.facts[index].place];
    memory.base = place.base;
    if (place.base_input) costs_.processes.push_back(*place.base_input);
  }

  /// Bytes that are not sharded while layers run: the gradients of the largest layer until they are scattered, and
  /// under ZeRO-3 its weights and those of the next one.
  [[nodiscard]] Bytes whole_layers(const Stage& stage, const LayerTable& table, OptimizerSharding sharding) const {
    double largest = 0.0;
    for (int chunk = 0; chunk < stage.chunks(); ++chunk)
      for (int layer = stage.chunk(chunk).first; layer < stage.chunk(chunk).last; ++layer) {
        const auto at = static_cast<std::size_t>(layer);
        largest = std::max(largest, table.parameters[at + 1] - table.parameters[at]);
      }
    return (state_.gradient + state_.weight * (shards_weights(sharding) ? 2.0 : 0.0)) * largest;
  }

  /// Number of stages that share with `stage` what is sharded, itself included: the maximum over its reductions.
  int shards_of(std::size_t stage) const {
    int replicas = 1;
    for (const Reduction& reduction : costs_.reductions)
      if (!reduction.tied && !reduction.experts && costs_.takes_part(stage, reduction))
        replicas = std::max(replicas, group_of(reduction));
    return replicas;
  }

  Bytes largest_reduction(std::size_t stage) const {
    Bytes largest{};
    if (!s_.env.framework.copies_reduced_gradients) return largest;
    for (const Reduction& reduction : costs_.reductions) {
      if (!costs_.takes_part(stage, reduction)) continue;
      const Bytes bucket = costs_.reduction_bucket;
      largest = std::max(largest, bucket > Bytes(0) ? std::min(bucket, reduction.amount) : reduction.amount);
    }
    return largest;
  }

  const Plan& plan_;
  State& s_;
  PlanCosts& costs_;
  StateBytes state_;
  bool has_groups_ = false;  // replicas shard within groups, of plan_.sharding_degree
};

CostModel::CostModel(const Environment& environment) : state_(std::make_unique<State>(environment)) {}
CostModel::~CostModel() = default;

Result<void> CostModel::price(const Plan& plan, PlanCosts& costs) { return Pricer(plan, *state_, costs).run(); }

std::vector<EstimatedInput> CostModel::link_inputs(const PlanCosts& costs) const {
  std::vector<EstimatedInput> inputs;
  for (const EstimatedLink& link : costs.links.estimated) inputs.push_back(state_->link_input(link));
  return inputs;
}

}  // namespace sailor::simulator
