#include "simulator/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "core/terminal.hpp"

namespace sailor::simulator {

namespace {

/// Bytes of one value that crosses a stage boundary.
double value_bytes(Precision precision) { return precision == Precision::bf16 ? 2.0 : 4.0; }

DevicesPerNode devices_per_node(const Cluster* cluster) {
  DevicesPerNode devices;
  if (cluster == nullptr) return devices;
  for (const NodeGroup& group : cluster->groups) {
    int& count = devices[group.gpu];
    count = count == 0 ? group.gpus_per_node : std::min(count, group.gpus_per_node);
  }
  return devices;
}

/// Smallest memory among the nodes that carry the type, in the stage's zone when it names one.
std::optional<Bytes> capacity_of(const Environment& environment, const GpuType& type, const std::string& zone) {
  std::optional<Bytes> smallest;
  if (environment.cluster != nullptr)
    for (const NodeGroup& group : environment.cluster->groups) {
      const bool in_zone = zone.empty() || group.zone == zone ||
                           std::find(group.partitions.begin(), group.partitions.end(), zone) != group.partitions.end();
      if (group.gpu != type.name || !in_zone) continue;
      const Bytes memory = device_memory(type, group);
      smallest = smallest ? std::min(*smallest, memory) : memory;
    }
  if (!smallest && type.kind == DeviceKind::gpu) smallest = type.memory;
  return smallest;
}

/// Walks over a plan once and fills a Prediction.
class ClosedForm {
 public:
  ClosedForm(const Plan& plan, const Environment& environment, const LayerCosts& costs)
      : plan_(plan), env_(environment), costs_(costs) {}

  Result<Prediction> run() {
    SAILOR_CHECK(check_plan(plan_, env_.model));
    if (plan_.schedule != Schedule::one_f_one_b)
      return fail(ErrorCode::unavailable,
                  fmt::format("the simulator does not know schedule '{}' yet", to_string(plan_.schedule)),
                  "use schedule = \"1f1b\"");
    auto nodes = nodes_of_ranks(plan_, devices_per_node(env_.cluster));
    if (!nodes) return fail(nodes.error());
    nodes_ = std::move(*nodes);
    find_first_ranks();
    SAILOR_CHECK(predict_stages());
    SAILOR_CHECK(add_synchronization());
    return finish();
  }

 private:
  /// Rank of the first member of the first copy of each stage.
  void find_first_ranks() {
    int rank = 0;
    for (const Pipeline& pipeline : plan_.pipelines) {
      std::vector<int>& ranks = first_rank_.emplace_back();
      int next = rank;
      for (const Stage& stage : pipeline.stages) {
        ranks.push_back(next);
        next += stage.tensor_parallel;
      }
      rank += pipeline.count * pipeline.ranks();
    }
  }

  /// Ranks that compute on the node of `rank`. Ranks fill nodes in order, so those of a node are neighbours.
  int busy_ranks(int rank) const {
    const auto [first, last] = std::equal_range(nodes_.begin(), nodes_.end(), nodes_[static_cast<std::size_t>(rank)]);
    return static_cast<int>(last - first);
  }

  Result<LayerCost> cost_of(const Stage& stage, LayerKind kind, int layer, int rank) {
    const LayerKey key{.model = env_.model.name,
                       .gpu = stage.gpu,
                       .precision = plan_.job.precision,
                       .recompute = stage.recompute,
                       .tensor_parallel = stage.tensor_parallel,
                       .micro_batch = plan_.micro_batch,
                       .sequence_length = plan_.job.sequence_length,
                       .busy_ranks = busy_ranks(rank),
                       .kind = kind,
                       .first_layer = layer};
    const Result<LayerPrice>& price = costs_.find(key);
    if (!price) return fail(price.error());
    note(price->cost.origin);
    if (price->basis != Basis::look_up)
      estimated_inputs_.insert({.origin = price->cost.origin, .what = costs_.explain(key, *price)});
    return price->cost;
  }

  /// The worst origin of what the prediction stands on.
  void note(Origin origin) { prediction_.origin = std::max(prediction_.origin, origin); }
  void note_link(const LinkEnd& from, const LinkEnd& to, LinkScope scope, Origin origin) {
    note(origin);
    if (origin > Origin::published)
      estimated_inputs_.insert(
          {.origin = origin, .what = fmt::format("link {} - {}, {}", from.gpu, to.gpu, to_string(scope))});
  }

  Result<Seconds> link_time(const Stage& from, const Stage& to, int from_rank, int to_rank, Bytes message) {
    if (env_.cluster != nullptr && from.zone != to.zone)
      for (const ZoneLink& link : env_.cluster->links)
        if ((link.from == from.zone && link.to == to.zone) || (link.from == to.zone && link.to == from.zone))
          return link.latency + message / link.bandwidth;
    const LinkScope scope = nodes_[static_cast<std::size_t>(from_rank)] == nodes_[static_cast<std::size_t>(to_rank)]
                                ? LinkScope::intra_node
                                : LinkScope::inter_node;
    const LinkEnd sender{.gpu = from.gpu, .zone = from.zone};
    const LinkEnd receiver{.gpu = to.gpu, .zone = to.zone};
    const auto time = env_.profile.send_time(sender, receiver, scope, message);
    if (!time) return fail(time.error());
    note_link(sender, receiver, scope, time->origin);
    return time->time;
  }

  double egress_usd_per_byte(const Stage& from, const Stage& to) const {
    if (env_.cluster != nullptr)
      for (const ZoneLink& link : env_.cluster->links)
        if ((link.from == from.zone && link.to == to.zone) || (link.from == to.zone && link.to == from.zone))
          return link.egress_usd_per_byte;
    return 0.0;
  }

  Result<void> predict_stages() {
    for (std::size_t entry = 0; entry < plan_.pipelines.size(); ++entry)
      for (std::size_t stage = 0; stage < plan_.pipelines[entry].stages.size(); ++stage)
        SAILOR_CHECK(predict_stage(entry, stage));
    return {};
  }

  Result<void> predict_stage(std::size_t entry, std::size_t index) {
    const Pipeline& pipeline = plan_.pipelines[entry];
    const Stage& stage = pipeline.stages[index];
    const int rank = first_rank_[entry][index];
    StagePrediction result;
    result.pipeline_entry = static_cast<int>(entry);
    result.stage = static_cast<int>(index);

    double parameters = 0.0;
    Bytes activations{};
    int count = 0;
    for (int layer = stage.layers.first; layer < stage.layers.last; layer += count) {
      const LayerKind kind = env_.model.layer_kind(layer);
      const auto cost = cost_of(stage, kind, layer, rank);
      if (!cost) return fail(cost.error());
      count = 1;  // layers from here on that cost the same
      while (layer + count < std::min(stage.layers.last, cost->last_layer) &&
             env_.model.layer_kind(layer + count) == kind)
        ++count;
      result.forward += cost->forward.median * count;
      result.backward += cost->backward.median * count;
      result.update += cost->update.median * count;
      parameters += static_cast<double>(cost->parameters) * count;
      activations += cost->activation * count;
      result.memory.workspace = std::max(result.memory.workspace, cost->workspace);
    }
    // A tied head on a stage of its own has a full second copy of the token embedding, and steps it too.
    if (stage.layers.last == env_.model.layers() && stage.layers.first > 0 && env_.model.tied_embedding) {
      const auto embedding = cost_of(stage, LayerKind::embedding, 0, rank);
      if (!embedding) return fail(embedding.error());
      const double tied = static_cast<double>(env_.model.tied_parameters()) / stage.tensor_parallel;
      parameters += tied;
      if (embedding->parameters > 0)
        result.update += embedding->update.median * (tied / static_cast<double>(embedding->parameters));
    }
    result.memory.weights = env_.framework.weight * parameters;
    result.memory.gradients = env_.framework.gradient * parameters;
    result.memory.optimizer = env_.framework.optimizer * parameters;

    const int stages = static_cast<int>(pipeline.stages.size());
    const int in_flight = std::min(pipeline.micro_batches, stages - static_cast<int>(index));
    result.memory.activations = activations * in_flight;
    const Bytes boundary(value_bytes(plan_.job.precision) * plan_.micro_batch * plan_.job.sequence_length *
                         env_.model.boundary_width());
    // Each neighbour has one message arriving and one leaving.
    const int neighbours = (index > 0 ? 1 : 0) + (static_cast<int>(index) + 1 < stages ? 1 : 0);
    result.memory.communication = boundary * (2.0 * neighbours);
    const auto base = env_.profile.base_memory(stage.gpu, env_.framework.name);
    result.memory.base = base.value_or(Bytes(0));
    if (!base)
      estimated_inputs_.insert({.origin = Origin::estimated,
                                .what = fmt::format("memory of a process of framework {} on {} before its first tensor "
                                                    "(not measured: counted as 0, so real peaks are higher)",
                                                    env_.framework.name, stage.gpu)});

    if (static_cast<int>(index) + 1 < stages) {
      const Stage& next = pipeline.stages[index + 1];
      const int next_rank = first_rank_[entry][index + 1];
      const auto out = link_time(stage, next, rank, next_rank, boundary);
      if (!out) return fail(out.error());
      const auto back = link_time(next, stage, next_rank, rank, boundary);
      if (!back) return fail(back.error());
      result.link = *out + *back;
      egress_ +=
          Usd(egress_usd_per_byte(stage, next) * 2.0 * boundary.value() * pipeline.micro_batches * pipeline.count);
    }
    const auto type = env_.gpus.find(stage.gpu);
    if (!type) return fail(type.error());
    result.capacity = capacity_of(env_, *type, stage.zone);
    const UsdPerHour price = env_.cluster != nullptr ? device_price(*env_.cluster, *type, stage.zone) : type->price;
    price_ += price * (pipeline.count * stage.tensor_parallel);
    prediction_.stages.push_back(result);
    return {};
  }

  /// A stage of an entry of the plan's pipelines: all its copies.
  struct StageId {
    std::size_t entry;
    std::size_t stage;
    auto operator<=>(const StageId&) const = default;
  };
  using Holders = std::set<StageId>;

  Holders holders_of(int layer) const {
    Holders holders;
    for (std::size_t entry = 0; entry < plan_.pipelines.size(); ++entry)
      for (std::size_t stage = 0; stage < plan_.pipelines[entry].stages.size(); ++stage) {
        const LayerRange& held = plan_.pipelines[entry].stages[stage].layers;
        if (held.first <= layer && layer < held.last) holders.insert({entry, stage});
      }
    return holders;
  }

  /// Gradients of a layer are summed over exactly the ranks that hold it; layers with the same holders travel together.
  /// Of stages with tensor parallelism the slice of one member is counted: the members reduce at the same time.
  Result<void> add_synchronization() {
    std::map<Holders, Bytes> gradients;
    for (int layer = 0; layer < env_.model.layers(); ++layer) {
      const LayerKind kind = env_.model.layer_kind(layer);
      const Holders holders = holders_of(layer);
      double parameters = static_cast<double>(env_.model.parameters(kind));
      if (kind == LayerKind::embedding && env_.model.tied_embedding) {
        const double tied = static_cast<double>(env_.model.tied_parameters());
        parameters -= tied;
        Holders both = holders;
        both.merge(holders_of(env_.model.layers() - 1));
        gradients[both] += env_.framework.gradient * tied;
      }
      gradients[holders] += env_.framework.gradient * parameters;
    }
    std::map<StageId, Bytes> largest_buffer;
    for (const auto& [holders, amount] : gradients) SAILOR_CHECK(add_reduction(holders, amount, largest_buffer));
    if (env_.framework.copies_reduced_gradients)
      for (const auto& [id, buffer] : largest_buffer) prediction_of(id).memory.communication += buffer;
    return {};
  }

  Result<void> add_reduction(const Holders& holders, Bytes amount, std::map<StageId, Bytes>& largest_buffer) {
    int replicas = 0;
    int tensor_parallel = 1;
    int first_rank = std::numeric_limits<int>::max();
    int last_rank = 0;
    for (const StageId& id : holders) {
      const Pipeline& pipeline = plan_.pipelines[id.entry];
      const int rank = first_rank_[id.entry][id.stage];
      replicas += pipeline.count;
      tensor_parallel = std::max(tensor_parallel, pipeline.stages[id.stage].tensor_parallel);
      first_rank = std::min(first_rank, rank);
      last_rank = std::max(last_rank, rank + (pipeline.count - 1) * pipeline.ranks());
    }
    if (replicas < 2) return {};
    const bool one_node = nodes_[static_cast<std::size_t>(first_rank)] == nodes_[static_cast<std::size_t>(last_rank)];
    const auto time = slowest_all_reduce(holders, one_node ? LinkScope::intra_node : LinkScope::inter_node, replicas,
                                         amount / tensor_parallel);
    if (!time) return fail(time.error());
    for (const StageId& id : holders) {
      prediction_of(id).synchronization += *time;
      largest_buffer[id] = std::max(largest_buffer[id], amount / tensor_parallel);
    }
    return {};
  }

  /// A sum over unlike devices or zones is as slow as over its slowest pair.
  Result<Seconds> slowest_all_reduce(const Holders& holders, LinkScope scope, int replicas, Bytes message) {
    std::set<LinkEnd> ends;
    for (const StageId& id : holders) {
      const Stage& stage = plan_.pipelines[id.entry].stages[id.stage];
      ends.insert({.gpu = stage.gpu, .zone = stage.zone});
    }
    Seconds slowest{};
    for (const LinkEnd& from : ends)
      for (const LinkEnd& to : ends) {
        if (ends.size() > 1 && from == to) continue;
        const auto time = env_.profile.all_reduce_time(from, to, scope, replicas, message);
        if (!time) return fail(time.error());
        note_link(from, to, scope, time->origin);
        slowest = std::max(slowest, time->time);
      }
    return slowest;
  }

  StagePrediction& prediction_of(const StageId& id) {
    std::size_t index = id.stage;
    for (std::size_t entry = 0; entry < id.entry; ++entry) index += plan_.pipelines[entry].stages.size();
    return prediction_.stages[index];
  }

  Prediction finish() {
    std::size_t next = 0;
    for (const Pipeline& pipeline : plan_.pipelines) {
      Seconds sum{};
      Seconds slowest{};
      Seconds busiest{};
      for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
        const StagePrediction& stage = prediction_.stages[next++];
        const Seconds compute = stage.forward + stage.backward;
        sum += compute + stage.link;
        slowest = std::max(slowest, compute + stage.link);
        busiest = std::max(busiest, compute);
      }
      const Seconds time = sum + slowest * (pipeline.micro_batches - 1);
      if (time > prediction_.pipeline_time) {
        prediction_.pipeline_time = time;
        prediction_.bubble_fraction = 1.0 - busiest * pipeline.micro_batches / time;
      }
    }
    for (const StagePrediction& stage : prediction_.stages) {
      prediction_.synchronization_time = std::max(prediction_.synchronization_time, stage.synchronization);
      prediction_.update_time = std::max(prediction_.update_time, stage.update);
      prediction_.peak_memory = std::max(prediction_.peak_memory, stage.memory.total());
      prediction_.fits = prediction_.fits && stage.fits();
    }
    prediction_.iteration_time = prediction_.pipeline_time + prediction_.synchronization_time + prediction_.update_time;
    prediction_.gpu_cost_per_iteration = price_ * prediction_.iteration_time;
    prediction_.egress_cost_per_iteration = egress_;
    prediction_.cost_per_iteration = prediction_.gpu_cost_per_iteration + egress_;
    prediction_.estimated_inputs.assign(estimated_inputs_.begin(), estimated_inputs_.end());
    return std::move(prediction_);
  }

  const Plan& plan_;
  const Environment& env_;
  const LayerCosts& costs_;
  std::set<EstimatedInput> estimated_inputs_;
  std::vector<int> nodes_;
  std::vector<std::vector<int>> first_rank_;
  UsdPerHour price_{};
  Usd egress_{};
  Prediction prediction_;
};

}  // namespace

Framework sailor_framework() {
  return {.name = "sailor",
          .weight = Bytes(4.0),
          .gradient = Bytes(4.0),
          .optimizer = Bytes(8.0),
          .copies_reduced_gradients = true};
}

Result<Prediction> simulate(const Plan& plan, const Environment& environment) {
  if (environment.costs != nullptr) return ClosedForm(plan, environment, *environment.costs).run();
  const LayerCosts costs(environment.model, environment.profile, environment.gpus, environment.measured_only);
  return ClosedForm(plan, environment, costs).run();
}

PlanPrediction summary(const Prediction& prediction) {
  return {.iteration_time = prediction.iteration_time,
          .pipeline_time = prediction.pipeline_time,
          .synchronization_time = prediction.synchronization_time,
          .update_time = prediction.update_time,
          .peak_memory = prediction.peak_memory,
          .cost_per_iteration = prediction.cost_per_iteration,
          .origin = std::string(to_string(prediction.origin))};
}

std::optional<std::string> memory_problem(const Plan& plan, const Prediction& prediction) {
  const StagePrediction* worst = nullptr;
  Bytes most{};
  for (const StagePrediction& stage : prediction.stages) {
    if (stage.fits()) continue;
    const Bytes excess = stage.memory.total() - *stage.capacity;
    if (worst == nullptr || excess > most) {
      worst = &stage;
      most = excess;
    }
  }
  if (worst == nullptr) return std::nullopt;
  const Stage& stage =
      plan.pipelines[static_cast<std::size_t>(worst->pipeline_entry)].stages[static_cast<std::size_t>(worst->stage)];
  return fmt::format(
      "stage {} of pipeline {} needs {} but a {} has {} ({} too much; parameters and optimizer {}, activations {})",
      worst->stage, worst->pipeline_entry, format_bytes(worst->memory.total()), stage.gpu,
      format_bytes(*worst->capacity), format_bytes(most),
      format_bytes(worst->memory.weights + worst->memory.gradients + worst->memory.optimizer),
      format_bytes(worst->memory.activations));
}

}  // namespace sailor::simulator
