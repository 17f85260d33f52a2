// DeepSpeed's configuration file (ds_config.json). It does not say the model, so pipelines and recomputation are for
// the user's script: notes say which.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "handover/grid.hpp"
#include "handover/writers.hpp"

namespace sailor::handover {

namespace {

constexpr std::string_view deepspeed_name = "DeepSpeed";

Result<void> check_deepspeed(const Plan& plan, const Grid& grid, Ranks ranks) {
  // Its topology has the axes pipe, data and model, of which the last varies fastest.
  if (ranks == Ranks::in_plan_order) SAILOR_CHECK(check_order_by_stage(plan, grid, deepspeed_name, "deepspeed"));
  SAILOR_CHECK(check_one_sharding_group(plan, deepspeed_name));
  if (plan.job.precision == Precision::tf32 || plan.job.precision == Precision::fp8)
    return cannot_run(
        deepspeed_name,
        fmt::format("precision {}, which its configuration does not turn on", to_string(plan.job.precision)),
        "plan with --precision bf16, fp16 or fp32");
  if (grid.pipeline_parallel == 1) return {};
  if (shards_gradients(plan.optimizer_sharding))
    return cannot_run(deepspeed_name, fmt::format("{} beside pipelines", to_string(plan.optimizer_sharding)),
                      "plan with --pin optimizer_sharding=zero1 or --pin pipeline_parallel=1");
  if (grid.virtual_stages > 1)
    return cannot_run(deepspeed_name, "the schedule interleaved-1f1b", "plan with --pin schedule=1f1b");
  if (!grid.is_even())
    return cannot_run(deepspeed_name,
                      "stages of unequal layers (PipelineModule divides them by number, parameters or type)",
                      "plan with --pin pipeline_parallel=1, or hand over to another framework");
  return {};
}

std::vector<std::string> notes_of(const Model& model, const Grid& grid) {
  std::vector<std::string> notes;
  if (!model.unplanned.empty())
    notes.push_back(fmt::format("the script gives the model what no plan says: {}", model.unplanned_text()));
  if (grid.pipeline_parallel > 1)
    notes.push_back(
        fmt::format("the script makes the pipeline: PipelineModule(layers, num_stages={}, "
                    "partition_method='type:BLOCK'), where BLOCK is the class of a transformer block",
                    grid.pipeline_parallel));
  if (grid.tensor_parallel > 1)
    notes.push_back(
        fmt::format("the script makes the tensor-parallel groups of {} ranks (Megatron-DeepSpeed: "
                    "--tensor-model-parallel-size {})",
                    grid.tensor_parallel, grid.tensor_parallel));
  if (grid.recompute != Recompute::none)
    notes.push_back(
        fmt::format("the script recomputes activations ({}): PipelineModule(activation_checkpoint_interval=1) "
                    "or deepspeed.checkpointing.checkpoint",
                    to_string(grid.recompute)));
  return notes;
}

}  // namespace

Result<Handover> write_deepspeed(const Plan& plan, const Model& model, std::string_view /*writer*/, Ranks ranks) {
  const auto grid = grid_of(plan, model, deepspeed_name, "megatron-deepspeed");
  if (!grid) return fail(grid.error());
  SAILOR_CHECK(check_deepspeed(plan, *grid, ranks));
  if (grid->context_parallel > 1 || grid->expert_parallel > 1)
    return cannot_run(deepspeed_name, "context or expert parallelism, which its configuration does not say",
                      "plan with --pin context_parallel=1 --pin expert_parallel=1, or hand the plan to megatron");
  nlohmann::ordered_json json{{"train_batch_size", plan.job.global_batch},
                              {"train_micro_batch_size_per_gpu", grid->micro_batch},
                              {"gradient_accumulation_steps", grid->micro_batches}};
  json["zero_optimization"]["stage"] = static_cast<int>(plan.optimizer_sharding);
  if (plan.job.precision == Precision::bf16) json["bf16"]["enabled"] = true;
  if (plan.job.precision == Precision::fp16) json["fp16"]["enabled"] = true;
  return Handover{.body = json.dump(2) + "\n",
                  .ranks_by_stage = true,
                  .settings = {"--deepspeed_config"},
                  .notes = notes_of(model, *grid)};
}

}  // namespace sailor::handover
