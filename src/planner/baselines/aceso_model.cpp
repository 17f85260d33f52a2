#include "planner/baselines/aceso_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sailor::planner::baselines::aceso_detail {

namespace {

constexpr double bytes_per_gib = 1024.0 * 1024.0 * 1024.0;
/// Multiples of the weights: the weights, gradients, and two moments of Adam.
constexpr double state_per_weight = 4.0;
/// The artifact's evaluator counts 20 bytes per parameter of 4 bytes, plus 3 GiB.
constexpr double evaluator_state_per_weight = 5.0;
constexpr double evaluator_base_bytes = 3.0 * bytes_per_gib;

/// Extra bytes that the allocator holds for a running operator: its output in the forward pass, the gradient of its
/// input in the backward pass (a substitute; Aceso measured it). The last operator is left out, as in the artifact.
double reserved_bytes(const OperatorCosts& costs, LayerRange operators) {
  double forward = 0.0;
  double backward = 0.0;
  for (int index = operators.first; index + 1 < operators.last; ++index) {
    forward = std::max(forward, costs.output[static_cast<std::size_t>(index)]);
    backward = std::max(backward, costs.input[static_cast<std::size_t>(index)]);
  }
  return forward + backward;
}

}  // namespace

int Config::gpus() const {
  return std::accumulate(stages.begin(), stages.end(), 0,
                         [](int sum, const AcesoStage& stage) { return sum + stage.gpus(); });
}

std::vector<int> Config::key() const {
  std::vector<int> key{micro_batch};
  for (const AcesoStage& stage : stages)
    key.insert(key.end(), {stage.operators.last, stage.tensor_parallel, stage.data_parallel});
  return key;
}

bool CostModel::is_allowed(int micro_batch, int data_parallel) {
  return micro_batch % data_parallel == 0 &&
         std::find(micro_batches.begin(), micro_batches.end(), micro_batch / data_parallel) != micro_batches.end();
}

Predicted CostModel::predict(const Config& config) const {
  Predicted predicted;
  const int count = static_cast<int>(config.stages.size());
  const int per_node = operators_->site().gpus_per_node;
  int before = 0;
  for (int index = 0; index < count; ++index) {
    const AcesoStage& stage = config.stages[static_cast<std::size_t>(index)];
    const OperatorCosts& cost = costs(stage, config.micro_batch);
    const int after = before + stage.gpus();
    // As in the artifact, the first stage also receives and the last also sends.
    const double in = operators_->send(cost.input[static_cast<std::size_t>(stage.operators.first)],
                                       before > 0 && before % per_node == 0);
    const double out =
        operators_->send(cost.output[static_cast<std::size_t>(stage.operators.last - 1)], after % per_node == 0);
    const double compute = cost.time(stage.operators);
    predicted.compute_seconds.push_back(compute);
    predicted.stage_seconds.push_back(compute + in + out);
    predicted.stage_memory.push_back(stage_memory(stage, index, count, config.micro_batch));
    before = after;
  }
  const double once = std::accumulate(predicted.stage_seconds.begin(), predicted.stage_seconds.end(), 0.0);
  const double rounds = std::max(std::floor(static_cast<double>(global_batch_) / config.micro_batch), 1.0);
  for (const double seconds : predicted.stage_seconds) predicted.stage_time.push_back(seconds * (rounds - 1.0) + once);
  predicted.time = *std::max_element(predicted.stage_time.begin(), predicted.stage_time.end());
  predicted.memory = *std::max_element(predicted.stage_memory.begin(), predicted.stage_memory.end());
  return predicted;
}

double CostModel::stage_seconds(const AcesoStage& stage, int micro_batch) const {
  const OperatorCosts& cost = costs(stage, micro_batch);
  return cost.time(stage.operators) +
         operators_->send(cost.input[static_cast<std::size_t>(stage.operators.first)], false) +
         operators_->send(cost.output[static_cast<std::size_t>(stage.operators.last - 1)], false);
}

double CostModel::stage_memory(const AcesoStage& stage, int index, int count, int micro_batch) const {
  const OperatorCosts& cost = costs(stage, micro_batch);
  const double weights = cost.parameters(stage.operators);
  const double kept = cost.input[static_cast<std::size_t>(stage.operators.first)] + cost.activations(stage.operators);
  return state_per_weight * weights + kept * (count - index) + std::max(reserved_bytes(cost, stage.operators), weights);
}

double CostModel::ideal_seconds(const AcesoStage& stage, int micro_batch) const {
  return operators_->costs(micro_batch, 1).time(stage.operators);
}

Result<OperatorScore> evaluate_operators(const Config& config, const Operators& operators, const Inputs& inputs,
                                         int global_batch) {
  const Site& site = operators.site();
  const LinkCoefficients* link =
      inputs.inter(site.gpu, site.zone, site.gpus_per_node, site.gpu, site.zone, site.gpus_per_node);
  if (link == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no link between nodes of {} in zone '{}' with {} senders", site.gpu,
                            site.zone, site.gpus_per_node),
                "the operator-level evaluator sends messages and gradients over it");
  OperatorScore score;
  const std::size_t count = config.stages.size();
  double slowest = 0.0;
  double once = 0.0;
  for (std::size_t index = 0; index < count; ++index) {
    const AcesoStage& stage = config.stages[index];
    const OperatorCosts& cost = operators.costs(config.micro_batch / stage.data_parallel, stage.tensor_parallel);
    const double message =
        index + 1 < count ? 2.0 * link->send(cost.output[static_cast<std::size_t>(stage.operators.last - 1)]) : 0.0;
    const double seconds = cost.time(stage.operators) + message;
    slowest = std::max(slowest, seconds);
    once += seconds;
    const double weights = cost.parameters(stage.operators);
    score.synchronization_time = std::max(
        score.synchronization_time, link->bucketed_all_reduce(weights * stage.tensor_parallel, stage.data_parallel));
    const double kept = cost.input[static_cast<std::size_t>(stage.operators.first)] + cost.activations(stage.operators);
    score.memory = std::max(score.memory, evaluator_state_per_weight * weights +
                                              static_cast<double>(count - index) * kept + evaluator_base_bytes);
  }
  const double rounds = std::ceil(static_cast<double>(global_batch) / config.micro_batch);
  score.iteration_time = slowest * (rounds - 1.0) + once + score.synchronization_time;
  score.fits = score.memory <= inputs.memory(site.gpu);
  return score;
}

}  // namespace sailor::planner::baselines::aceso_detail
