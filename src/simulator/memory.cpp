// What to change first when a plan does not fit into memory.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/terminal.hpp"
#include "simulator/quick.hpp"
#include "simulator/simulator.hpp"

namespace sailor::simulator {

namespace {

const StagePrediction* worst_stage(const Prediction& prediction) {
  const StagePrediction* worst = nullptr;
  Bytes most{};
  for (const StagePrediction& stage : prediction.stages) {
    if (stage.fits()) continue;
    const Bytes excess = stage.memory.total() - *stage.capacity;
    if (worst != nullptr && excess <= most) continue;
    worst = &stage;
    most = excess;
  }
  return worst;
}

Stage& stage_at(Plan& plan, const StagePrediction& place) {
  return plan.pipelines[static_cast<std::size_t>(place.pipeline_entry)].stages[static_cast<std::size_t>(place.stage)];
}

/// False if that is no more than the plan shards already.
bool shard_more(Plan& plan, OptimizerSharding sharding) {
  const bool more = sharding > plan.optimizer_sharding && plan.data_parallel() > 1;
  plan.optimizer_sharding = sharding;
  return more;
}

std::string advice_to_shard(OptimizerSharding sharding) {
  return fmt::format("optimizer_sharding = \"{}\"", to_string(sharding));
}

/// The first change that makes everything fit, among changes that keep the job, from the least to the most costly in
/// time.
std::optional<std::string> first_remedy(const Plan& plan, const StagePrediction& worst,
                                        const Environment& environment) {
  QuickSimulator simulator(environment);
  const Framework& framework = environment.framework;
  const auto works = [&](const std::function<bool(Plan&)>& change) {
    Plan changed = plan;
    changed.prediction.reset();
    if (!change(changed)) return false;
    const auto prediction = simulator.predict(changed);
    return prediction && prediction->memory_headroom >= 0.0;
  };
  const auto recompute = [&](Plan& changed, Recompute how) {
    Stage& stage = stage_at(changed, worst);
    const bool more = static_cast<int>(how) > static_cast<int>(stage.recompute);
    stage.recompute = how;
    return more && framework.supports_recompute;
  };
  const auto recompute_everywhere = [&](Plan& changed, Recompute how) {
    for (Pipeline& pipeline : changed.pipelines)
      for (Stage& stage : pipeline.stages) stage.recompute = std::max(stage.recompute, how);
    return framework.supports_recompute;
  };
  if (plan.sharding_degree > 0 && works([](Plan& changed) {
        changed.sharding_degree = 0;
        return true;
      }))
    return "all replicas sharing (without sharding_degree)";
  for (const OptimizerSharding sharding : framework.shardings)
    if (!shards_weights(sharding) && works([&](Plan& changed) { return shard_more(changed, sharding); }))
      return advice_to_shard(sharding);
  if (works([&](Plan& changed) { return recompute(changed, Recompute::selective); }))
    return fmt::format("recompute = \"selective\" on stage {} of pipeline {}", worst.stage, worst.pipeline_entry);
  // The global batch stays: smaller micro-batches mean more of them. Where pipelines differ, only the worst one is
  // changed.
  const auto worst_entry = static_cast<std::size_t>(worst.pipeline_entry);
  const int had = plan.micro_batch_of(plan.pipelines[worst_entry]);
  const bool all_alike = std::all_of(plan.pipelines.begin(), plan.pipelines.end(),
                                     [&](const Pipeline& pipeline) { return plan.micro_batch_of(pipeline) == had; });
  const auto divide = [&](Plan& changed, std::size_t entry, int micro_batch) {
    Pipeline& pipeline = changed.pipelines[entry];
    pipeline.micro_batches *= plan.micro_batch_of(pipeline) / micro_batch;
    pipeline.micro_batch = micro_batch;
  };
  const auto divide_all = [&](Plan& changed, int micro_batch) {
    for (std::size_t entry = 0; entry < changed.pipelines.size(); ++entry) divide(changed, entry, micro_batch);
  };
  for (int micro_batch = had - 1; micro_batch >= 1; --micro_batch)
    if (had % micro_batch == 0 && works([&](Plan& changed) {
          if (all_alike)
            divide_all(changed, micro_batch);
          else
            divide(changed, worst_entry, micro_batch);
          return true;
        }))
      return fmt::format("micro_batch = {} and {} times the micro_batches{}", micro_batch, had / micro_batch,
                         all_alike ? "" : fmt::format(" on pipeline {}", worst_entry));
  // ZeRO-3 gathers weights in every pass.
  if (framework.supports(OptimizerSharding::zero3) &&
      works([](Plan& changed) { return shard_more(changed, OptimizerSharding::zero3); }))
    return advice_to_shard(OptimizerSharding::zero3);
  if (works([&](Plan& changed) { return recompute_everywhere(changed, Recompute::selective); }))
    return "recompute = \"selective\" on all stages";
  if (works([&](Plan& changed) { return recompute(changed, Recompute::full); }))
    return fmt::format("recompute = \"full\" on stage {} of pipeline {}", worst.stage, worst.pipeline_entry);
  if (works([&](Plan& changed) { return recompute_everywhere(changed, Recompute::full); }))
    return "recompute = \"full\" on all stages";
  const auto more_tensor_parallel = [&](Plan& changed) {
    for (Pipeline& pipeline : changed.pipelines)
      for (Stage& stage : pipeline.stages) stage.tensor_parallel *= 2;
    return framework.supports_tensor_parallel;
  };
  if (works(more_tensor_parallel)) return "twice the tensor_parallel on all stages";
  if (works([&](Plan& changed) {
        if (all_alike && had == 1) return false;
        divide_all(changed, 1);
        return recompute_everywhere(changed, Recompute::full);
      }))
    return all_alike
               ? fmt::format("micro_batch = 1, {} times the micro_batches, and recompute = \"full\" on all stages", had)
               : "micro_batch = 1, as many times the micro_batches, and recompute = \"full\" on all stages";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> memory_problem(const Plan& plan, const Prediction& prediction,
                                          const Environment& environment) {
  const StagePrediction* worst = worst_stage(prediction);
  if (worst == nullptr) return std::nullopt;
  const Stage& stage =
      plan.pipelines[static_cast<std::size_t>(worst->pipeline_entry)].stages[static_cast<std::size_t>(worst->stage)];
  const RankMemory& memory = worst->memory;
  const auto remedy = first_remedy(plan, *worst, environment);
  return fmt::format(
      "stage {} of pipeline {} needs {} but a {} has {} (parameters and optimizer {}, activations {}): {} too much; {}",
      worst->stage, worst->pipeline_entry, format_bytes(memory.total()), stage.gpu, format_bytes(*worst->capacity),
      format_bytes(memory.states()), format_bytes(memory.activations + memory.logits),
      format_bytes(memory.total() - *worst->capacity),
      remedy ? "it would fit with " + *remedy
             : "no change of micro-batch, recomputation, tensor parallelism or optimizer sharding alone makes it fit; "
               "more stages or larger devices may");
}

}  // namespace sailor::simulator
