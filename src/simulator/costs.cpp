#include "simulator/costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "plan/schedule.hpp"
#include "simulator/pricing_state.hpp"
#include "simulator/reductions.hpp"

namespace sailor::simulator {

namespace {

/// Walks over a plan once and fills its costs.
class Pricer {
 public:
  Pricer(const Plan& plan, PricingState& state, PlanCosts& costs) : plan_(plan), s_(state), costs_(costs) {}

  Result<void> run() {
    SAILOR_CHECK(check_plan(plan_, s_.env.model));
    const auto state = s_.env.framework.state_of(plan_.job.precision);
    if (!state) return fail(state.error());
    state_ = *state;
    SAILOR_CHECK(
        s_.env.framework.check(plan_.optimizer_sharding, plan_.sharding_groups() > 1 ? plan_.sharding_degree : 0));
    SAILOR_CHECK(check_divisions());
    start();
    SAILOR_CHECK(place());
    for (std::size_t entry = 0; entry < plan_.pipelines.size(); ++entry) SAILOR_CHECK(price_pipeline(entry));
    ReductionPricer reductions(plan_, state_, s_, costs_);
    SAILOR_CHECK(reductions.run());
    for (std::size_t i = 0; i < costs_.stages.size(); ++i) finish_stage(i, reductions);
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
    // Frameworks place the replicas of a stage side by side, so that stages are what passes between nodes.
    const bool across_nodes = costs_.nodes > 1 && pipeline.stages.size() > 1;
    for (int chunk = 0; chunk < row.chunks; ++chunk)
      for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
        StageCosts& stage = costs_.stages[first + i];
        const LayerRange& layers = pipeline.stages[i].chunk(chunk);
        PassTimes passes = stage.table->passes(layers, across_nodes);
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
    add_egress(s_, costs_, a.place, b.place, all * crossing_copies(how, senders, receivers));
    add_egress(s_, costs_, b.place, a.place, all * crossing_copies(how, receivers, senders));
    return {};
  }

  void finish_stage(std::size_t index, const ReductionPricer& reductions) {
    StageCosts& costs = costs_.stages[index];
    const Pipeline& pipeline = pipeline_at(plan_, costs_, index);
    const Stage& stage = stage_at(plan_, costs_, index);
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
    const double replicas = costs_.shards_optimizer ? reductions.shards_of(index) : 1.0;
    const double sharded =
        (parameters - experts) / replicas + experts / std::max(1.0, replicas / plan_.expert_parallel);
    if (parameters > 0.0) costs.update *= sharded / parameters;
    const OptimizerSharding sharding = plan_.optimizer_sharding;
    const double gradients = shards_gradients(sharding) ? sharded : parameters;
    memory.weights = state_.weight * (shards_weights(sharding) ? sharded : parameters);
    memory.gradients = state_.gradient * gradients;
    memory.optimizer = state_.optimizer * sharded;
    memory.copies = state_.copy * gradients +
                    (shards_gradients(sharding) ? whole_layers(stage, table, sharding) : reductions.largest(index));
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

  const Plan& plan_;
  PricingState& s_;
  PlanCosts& costs_;
  StateBytes state_;
};

}  // namespace

CostModel::CostModel(const Environment& environment) : state_(std::make_unique<PricingState>(environment)) {}
CostModel::~CostModel() = default;

Result<void> CostModel::price(const Plan& plan, PlanCosts& costs) { return Pricer(plan, *state_, costs).run(); }

std::vector<EstimatedInput> CostModel::link_inputs(const PlanCosts& costs) const {
  std::vector<EstimatedInput> inputs;
  for (const EstimatedLink& link : costs.links.estimated) inputs.push_back(state_->link_input(link));
  return inputs;
}

}  // namespace sailor::simulator
