// The authors' evaluator of lists of pipelines. Equations and faults as in simulations/runtime_simulator.py of the
// artifact; planner/artifact/evaluator.hpp has the same for one pipeline entry with equal numbers of replicas.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "planner/baselines/plan_list.hpp"

namespace sailor::planner::baselines {

namespace evaluator_detail {

constexpr double bytes_per_float = 4.0;
constexpr double bytes_per_gb = 1e9;
constexpr double seconds_per_hour = 3600.0;
/// Weights, gradients, two moments of Adam, a communication copy and a copy of DeepSpeed, 4 bytes each.
constexpr double state_bytes_per_parameter = 24.0;
constexpr double validation_base_bytes = 5.06e9;
constexpr int largest_counted_degree = 4;

double base_bytes(int tensor_parallel) { return tensor_parallel == 1 ? 2.0e9 : 3.0e9; }

tl::unexpected<Error> no_times(std::string_view gpu, int micro_batch, int tensor_parallel) {
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no times of {} with micro-batch {} and tensor parallel {}", gpu, micro_batch,
                          tensor_parallel),
              "the authors' evaluator does not interpolate: use what was measured");
}

Result<const LinkCoefficients*> link(const Inputs& inputs, const Machine& from, int senders, const Machine& to,
                                     int receivers) {
  if (const auto* found = inputs.inter(from.gpu, from.zone, senders, to.gpu, to.zone, receivers)) return found;
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no link from {} of {} in zone '{}' to {} of {} in zone '{}'", senders,
                          from.gpu, from.zone, receivers, to.gpu, to.zone),
              "the authors' evaluator knows the links that were measured only");
}

/// Seconds of one micro-batch in a stage on one replica, and of the optimizer step.
struct Compute {
  double forward_backward = 0.0;
  double update = 0.0;
};

class Evaluator {
 public:
  Evaluator(const PlanList& plan, const Inputs& inputs, const TrainingJob& job, Faults faults)
      : plan_(plan), inputs_(inputs), job_(job), kept_(faults == Faults::kept), whole_(inputs.sizes(1)) {}

  Result<EvaluatorScore> run() {
    SAILOR_CHECK(check());
    micro_batches_ = std::ceil(
        static_cast<double>(job_.global_batch) /
        (static_cast<double>(plan_.micro_batch) * plan_.data_parallel() * static_cast<double>(plan_.pipelines.size())));
    double pipeline_time = 0.0;
    double reduction = 0.0;
    for (const ListPipeline& pipeline : plan_.pipelines) {
      const auto time = time_of(pipeline);
      if (!time) return fail(time.error());
      pipeline_time = std::max(pipeline_time, *time);
      for (const ListStage& stage : pipeline.stages) {
        const auto ring = reduction_of(stage);
        if (!ring) return fail(ring.error());
        reduction = std::max(reduction, *ring);
      }
      add_egress(pipeline);
      SAILOR_CHECK(add_memory(pipeline));
    }
    const auto between = reduction_between_pipelines();
    if (!between) return fail(between.error());
    double usd_per_second = 0.0;
    for (const auto& [gpu, count] : plan_.gpus()) usd_per_second += inputs_.price(gpu) / seconds_per_hour * count;
    score_.micro_batches = micro_batches_;
    score_.pipeline_time = Seconds(pipeline_time);
    score_.synchronization_time = Seconds(reduction + *between);
    score_.iteration_time = score_.pipeline_time + score_.synchronization_time;
    score_.egress_cost = Usd(egress_);
    score_.cost = Usd(usd_per_second * score_.iteration_time.value() + egress_);
    return score_;
  }

 private:
  [[nodiscard]] Result<void> check() const {
    const auto refuse = [](std::string what) {
      return fail(ErrorCode::invalid_input, std::move(what), "give every pipeline stages with layers and replicas");
    };
    if (plan_.pipelines.empty()) return refuse("the plan has no pipeline");
    if (plan_.micro_batch < 1) return refuse(fmt::format("the plan's micro-batch is {}", plan_.micro_batch));
    for (std::size_t p = 0; p < plan_.pipelines.size(); ++p) {
      const auto& stages = plan_.pipelines[p].stages;
      if (stages.empty()) return refuse(fmt::format("pipeline {} has no stages", p));
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const LayerRange& layers = stages[i].layers;
        if (layers.first < 0 || layers.last <= layers.first || layers.last > inputs_.layers())
          return refuse(fmt::format("stage {} of pipeline {} holds layers [{}, {}) of a model of {}", i, p,
                                    layers.first, layers.last, inputs_.layers()));
        if (stages[i].replicas.empty()) return refuse(fmt::format("stage {} of pipeline {} has no replicas", i, p));
        for (const Replica& replica : stages[i].replicas)
          if (replica.machines.empty() || replica.tensor_parallel < 1)
            return refuse(fmt::format("a replica of stage {} of pipeline {} has {} machines and tensor parallel {}", i,
                                      p, replica.machines.size(), replica.tensor_parallel));
      }
    }
    return {};
  }

  /// Bytes that a layer sends to the next stage for one micro-batch, not divided by tensor parallelism.
  [[nodiscard]] double message(int layer) const {
    return whole_->output[layer] * bytes_per_float * static_cast<double>(plan_.micro_batch);
  }
  [[nodiscard]] double gradients(const LayerRange& layers) const {
    return whole_->parameters_of(layers.first, layers.last) * bytes_per_float;
  }

  /// Null: the times count as zero. The original makes its table for the degrees that are also measured micro-batch
  /// sizes, and fills it with zeros where it has no times.
  Result<const LayerTimes*> times(const std::string& gpu, int tensor_parallel) const {
    const LayerTimes* found = inputs_.times(gpu, plan_.micro_batch, tensor_parallel);
    const auto sizes = inputs_.micro_batches(gpu);
    const auto has = [&](int size) { return std::find(sizes.begin(), sizes.end(), size) != sizes.end(); };
    if (kept_ && has(plan_.micro_batch) && has(tensor_parallel)) return found;
    if (kept_ || found == nullptr || found->compute(0, inputs_.layers()) <= 0.0)
      return no_times(gpu, plan_.micro_batch, tensor_parallel);
    return found;
  }

  Result<Compute> compute(const Replica& replica, const LayerRange& layers) const {
    if (replica.machines.size() > 1) {
      if (kept_) return communication_of_spread_group(replica, layers);
      if (nodes_of(replica) > 1) return spread_group(replica, layers);
    }
    const auto found = times(replica.machines.front().gpu, replica.tensor_parallel);
    if (!found) return fail(found.error());
    if (*found == nullptr) return Compute{};
    return Compute{(*found)->compute(layers.first, layers.last), (*found)->update[layers.first]};
  }

  /// All-reduce of a layer's activations over the group, by the slowest link between two machines of a type of the
  /// group.
  Result<double> group_all_reduce(const Replica& replica) const {
    const double bytes =
        static_cast<double>(plan_.micro_batch) * job_.sequence_length * inputs_.model().hidden * bytes_per_float;
    const LinkCoefficients* slowest = nullptr;
    for (const Machine& machine : replica.machines) {
      const auto found = link(inputs_, machine, machine.gpus_per_node, machine, machine.gpus_per_node);
      if (!found) return fail(found.error());
      const double piece = bytes / replica.tensor_parallel;
      if (slowest == nullptr || (*found)->bandwidth(piece) < slowest->bandwidth(piece)) slowest = *found;
    }
    return slowest->all_reduce(bytes, replica.tensor_parallel);
  }

  /// As published: all-reduces without compute, and none in the last block, the norm and the head.
  Result<Compute> communication_of_spread_group(const Replica& replica, const LayerRange& layers) const {
    Compute compute;
    const auto found = times(replica.machines.front().gpu, replica.tensor_parallel);
    if (!found) return fail(found.error());
    if (*found != nullptr) compute.update = (*found)->update[layers.first];
    const auto once = group_all_reduce(replica);
    if (!once) return fail(once.error());
    for (int layer = layers.first; layer < layers.last; ++layer)
      compute.forward_backward += 2.0 * *once * (layer == 0 ? 1.0 : layer < inputs_.blocks() - 1 ? 2.0 : 0.0);
    return compute;
  }

  /// Repaired: the slowest machine's share of the layers, at the degree inside of the machine, and all-reduces between
  /// machines in every block.
  Result<Compute> spread_group(const Replica& replica, const LayerRange& layers) const {
    Compute compute;
    const int inside = devices_per_machine(replica);
    for (const Machine& machine : replica.machines) {
      const auto found = times(machine.gpu, inside);
      if (!found) return fail(found.error());
      const double share = static_cast<double>(inside) / replica.tensor_parallel;
      compute.forward_backward =
          std::max(compute.forward_backward, (*found)->compute(layers.first, layers.last) * share);
      compute.update = std::max(compute.update, (*found)->update[layers.first]);
    }
    const auto once = group_all_reduce(replica);
    if (!once) return fail(once.error());
    for (int layer = layers.first; layer < layers.last; ++layer)
      compute.forward_backward += 2.0 * *once * (layer == 0 ? 1.0 : layer <= inputs_.blocks() ? 2.0 : 0.0);
    return compute;
  }

  /// Slowest message of the replicas of a stage to those of its neighbour.
  Result<double> slowest_send(const ListStage& from, const ListStage& to, double bytes) const {
    double slowest = 0.0;
    for (std::size_t j = 0; j < from.replicas.size(); ++j) {
      const Replica& sender = from.replicas[j];
      const Replica& receiver = to.replicas[j % to.replicas.size()];
      if (j > 0 && sender == from.replicas[j - 1] && receiver == to.replicas[(j - 1) % to.replicas.size()]) continue;
      const Machine& source = sender.machines.front();
      const Machine& target = receiver.machines.front();
      const auto found = link(inputs_, source, std::min(sender.tensor_parallel, source.gpus_per_node), target,
                              std::min(receiver.tensor_parallel, target.gpus_per_node));
      if (!found) return fail(found.error());
      slowest = std::max(slowest, (*found)->send(bytes));
    }
    return slowest;
  }

  /// Message time of a stage. The first and last stage count theirs twice, the first only if there are at least 4
  /// stages; the gradient that goes back has the size of the output of the stage's own first layer.
  Result<double> transfers_of(const std::vector<ListStage>& stages, std::size_t i) const {
    double transfer = 0.0;
    if (i + 1 < stages.size()) {
      const auto send = slowest_send(stages[i], stages[i + 1], message(stages[i].layers.last - 1));
      if (!send) return fail(send.error());
      transfer += i == 0 && stages.size() > 3 ? 2.0 * *send : *send;
    }
    if (i > 0) {
      const auto send = slowest_send(stages[i], stages[i - 1], message(stages[i].layers.first));
      if (!send) return fail(send.error());
      transfer += i + 1 == stages.size() ? 2.0 * *send : *send;
    }
    return transfer;
  }

  Result<double> time_of(const ListPipeline& pipeline) const {
    double slowest = 0.0;
    double total = 0.0;
    double update = 0.0;
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const ListStage& stage = pipeline.stages[i];
      double of_stage = 0.0;
      for (std::size_t j = 0; j < stage.replicas.size(); ++j) {
        if (j > 0 && stage.replicas[j] == stage.replicas[j - 1]) continue;
        const auto of_replica = compute(stage.replicas[j], stage.layers);
        if (!of_replica) return fail(of_replica.error());
        of_stage = std::max(of_stage, of_replica->forward_backward);
        update = std::max(update, of_replica->update);
      }
      const auto transfer = transfers_of(pipeline.stages, i);
      if (!transfer) return fail(transfer.error());
      slowest = std::max(slowest, of_stage + *transfer);
      total += of_stage + *transfer;
    }
    return (micro_batches_ - 1.0) * slowest + total + update;
  }

  /// Gradient all-reduce of a stage over its replicas, at the bandwidth of one sender per machine. The link that closes
  /// the ring does not count.
  Result<double> reduction_of(const ListStage& stage) const {
    int degree = largest_counted_degree;
    for (const Replica& replica : stage.replicas) degree = std::min(degree, replica.tensor_parallel);
    const double bytes = gradients(stage.layers) / degree;
    double slowest = 0.0;
    for (std::size_t j = 0; j + 1 < stage.replicas.size(); ++j) {
      const Machine& from = stage.replicas[j].machines.front();
      const Machine& to = stage.replicas[j + 1].machines.front();
      if (j > 0 && from == stage.replicas[j - 1].machines.front() && to == from) continue;
      const auto found = link(inputs_, from, 1, to, 1);
      if (!found) return fail(found.error());
      slowest = std::max(slowest, (*found)->bucketed_all_reduce(bytes, static_cast<int>(stage.replicas.size())));
    }
    return slowest;
  }

  /// Gradient all-reduce over pipelines, for the first of those with the most stages; not divided by tensor parallel.
  Result<double> reduction_between_pipelines() const {
    const int pipelines = static_cast<int>(plan_.pipelines.size());
    if (pipelines < 2) return 0.0;
    const auto longest = std::max_element(
        plan_.pipelines.begin(), plan_.pipelines.end(),
        [](const ListPipeline& a, const ListPipeline& b) { return a.stages.size() < b.stages.size(); });
    double slowest = 0.0;
    for (const ListStage& stage : longest->stages)
      for (const Replica& replica : stage.replicas) {
        const Machine& machine = replica.machines.front();
        const auto found = link(inputs_, machine, 1, machine, 1);
        if (!found) return fail(found.error());
        slowest = std::max(slowest, (*found)->bucketed_all_reduce(gradients(stage.layers), pipelines));
      }
    return slowest;
  }

  /// Adds egress of activations and gradients between stages, and of the whole ring of each stage. Between pipelines
  /// nothing is charged.
  void add_egress(const ListPipeline& pipeline) {
    const auto zone = [](const ListStage& stage, std::size_t replica) -> const std::string& {
      return stage.replicas[replica % stage.replicas.size()].machines.front().zone;
    };
    double usd = 0.0;  // times bytes per GB
    const auto& stages = pipeline.stages;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const ListStage& stage = stages[i];
      const auto replicas = static_cast<double>(stage.replicas.size());
      const double ring_bytes = gradients(stage.layers) / replicas * 2.0 * (replicas - 1.0);
      for (std::size_t j = 0; j < stage.replicas.size(); ++j) {
        if (i + 1 < stages.size())
          usd += micro_batches_ * Inputs::egress_price(zone(stage, j), zone(stages[i + 1], j)) *
                 message(stage.layers.last - 1);
        if (i > 0)
          usd += micro_batches_ * Inputs::egress_price(zone(stage, j), zone(stages[i - 1], j)) *
                 message(stages[i - 1].layers.last - 1);
        usd += Inputs::egress_price(zone(stage, j), zone(stage, j + 1)) * ring_bytes;
      }
    }
    egress_ += usd / bytes_per_gb;
  }

  Result<void> add_memory(const ListPipeline& pipeline) {
    const std::size_t stages = pipeline.stages.size();
    for (std::size_t i = 0; i < stages; ++i) {
      const ListStage& stage = pipeline.stages[i];
      for (std::size_t j = 0; j < (plan_.grid ? 1 : stage.replicas.size()); ++j) {
        const Replica& replica = stage.replicas[j];
        if (j > 0 && replica == stage.replicas[j - 1]) continue;
        const LayerSizes* sizes = inputs_.sizes(replica.tensor_parallel);
        if (sizes == nullptr)
          return fail(ErrorCode::not_found,
                      fmt::format("the profile has no layer sizes of {} with tensor parallel {}", inputs_.model().name,
                                  replica.tensor_parallel),
                      "the authors' evaluator does not interpolate: use what was measured");
        const double variable =
            state_bytes_per_parameter * sizes->parameters_of(stage.layers.first, stage.layers.last) +
            bytes_per_float * plan_.micro_batch * static_cast<double>(stages - i) *
                sizes->activation_of(stage.layers.first, stage.layers.last);
        const double memory = variable + base_bytes(replica.tensor_parallel);
        score_.peak_memory = std::max(score_.peak_memory, Bytes(memory));
        score_.validation_memory = std::max(score_.validation_memory, Bytes(variable + validation_base_bytes));
        score_.fits = score_.fits && memory <= inputs_.memory(replica.machines.front().gpu);
      }
    }
    return {};
  }

  const PlanList& plan_;
  const Inputs& inputs_;
  const TrainingJob& job_;
  const bool kept_;
  const LayerSizes* whole_;  // without tensor parallelism; Inputs::build() sees to it that they are there
  double micro_batches_ = 0.0;
  double egress_ = 0.0;
  EvaluatorScore score_;
};

}  // namespace evaluator_detail

Result<EvaluatorScore> evaluate(const PlanList& plan, const Inputs& inputs, const TrainingJob& job, Faults faults) {
  return evaluator_detail::Evaluator(plan, inputs, job, faults).run();
}

}  // namespace sailor::planner::baselines
