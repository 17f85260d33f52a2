// NeMo 2: overrides of a recipe as its command line takes them (`nemo llm pretrain --factory RECIPE KEY=VALUE ...`, and
// scripts that call nemo_run's run.cli.main), as an array of bash. NeMo computes with Megatron-Core, so that what that
// cannot run is refused alike; a recipe says what the family of the model has besides its sizes.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/shell.hpp"
#include "core/text.hpp"
#include "handover/grid.hpp"
#include "handover/megatron.hpp"
#include "handover/writers.hpp"

namespace sailor::handover {

namespace {

constexpr std::string_view nemo_name = "NeMo";
/// MegatronStrategy has pipeline_model_parallel_layout since 2.4; NeMo 3.0 has no recipes for language models.
constexpr std::string_view oldest_nemo = "2.4";
constexpr std::string_view newest_nemo = "2.7";

/// What a recipe may have set besides is reset, so that the plan holds whatever the recipe is.
class Overrides {
 public:
  template <class T>
  void add(std::string_view key, const T& value) {
    list_.push_back({std::string(key), fmt::format("{}", value)});
  }
  void add_flag(std::string_view key, bool value) { list_.push_back({std::string(key), value ? "True" : "False"}); }
  void add_none(std::string_view key) { list_.push_back({std::string(key), "None"}); }
  [[nodiscard]] const std::vector<Argument>& list() const { return list_; }

 private:
  std::vector<Argument> list_;
};

void add_parallelism(const Plan& plan, const Grid& grid, Overrides& overrides) {
  overrides.add("trainer.strategy.tensor_model_parallel_size", grid.tensor_parallel);
  overrides.add_flag("trainer.strategy.sequence_parallel", grid.tensor_parallel > 1);
  overrides.add("trainer.strategy.context_parallel_size", grid.context_parallel);
  overrides.add("trainer.strategy.expert_model_parallel_size", grid.expert_parallel);
  overrides.add("trainer.strategy.pipeline_model_parallel_size", grid.pipeline_parallel);
  if (grid.virtual_stages > 1)
    overrides.add("trainer.strategy.virtual_pipeline_model_parallel_size", grid.virtual_stages);
  else
    overrides.add_none("trainer.strategy.virtual_pipeline_model_parallel_size");
  for (const char* key : {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"})
    overrides.add_none(fmt::format("trainer.strategy.{}", key));
  for (const char* key : {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"})
    overrides.add_flag(fmt::format("trainer.strategy.{}", key), false);
  if (grid.is_even())
    overrides.add_none("trainer.strategy.pipeline_model_parallel_layout");
  else
    overrides.add("trainer.strategy.pipeline_model_parallel_layout", pipeline_layout(grid));
  // Ranks by pipeline, then stage, then tensor-parallel index, as in the plan.
  overrides.add_flag("trainer.strategy.use_tp_pp_dp_mapping", megatron_numbers_by_pipeline(grid));
  const bool sharded = plan.optimizer_sharding == OptimizerSharding::zero1;
  overrides.add_flag("optim.config.use_distributed_optimizer", sharded);
  overrides.add_flag("trainer.strategy.ddp.overlap_grad_reduce", grid.data_parallel > 1);
  overrides.add_flag("trainer.strategy.ddp.overlap_param_gather", grid.data_parallel > 1 && sharded);
}

void add_batch(const Plan& plan, const Grid& grid, Overrides& overrides) {
  overrides.add("data.seq_length", plan.job.sequence_length);
  overrides.add("data.micro_batch_size", grid.micro_batch);
  overrides.add("data.global_batch_size", plan.job.global_batch);
}

void add_precision_and_recomputation(const Plan& plan, const Grid& grid, Overrides& overrides) {
  const bool in_fp8 = plan.job.precision == Precision::fp8;
  const bool bf16 = in_fp8 || plan.job.precision == Precision::bf16;
  overrides.add("trainer.plugins",
                fmt::format("nemo.collections.llm.recipes.precision.mixed_precision.{}", in_fp8 ? "bf16_with_fp8_mixed"
                                                                                         : bf16 ? "bf16_mixed"
                                                                                                : "fp16_mixed"));
  overrides.add_flag("optim.config.bf16", bf16);
  overrides.add_flag("optim.config.fp16", !bf16);
  const bool full = grid.recompute == Recompute::full;
  if (grid.recompute == Recompute::none)
    overrides.add_none("model.config.recompute_granularity");
  else
    overrides.add("model.config.recompute_granularity", full ? "full" : "selective");
  if (full) {
    overrides.add("model.config.recompute_method", "uniform");
    overrides.add("model.config.recompute_num_layers", 1);
  } else {
    overrides.add_none("model.config.recompute_method");
    overrides.add_none("model.config.recompute_num_layers");
  }
}

void add_sizes(const Plan& plan, const Model& model, Overrides& overrides) {
  overrides.add("model.config.seq_length", plan.job.sequence_length);
  overrides.add("model.config.num_layers", model.blocks);
  overrides.add("model.config.hidden_size", model.hidden);
  overrides.add("model.config.ffn_hidden_size", model.feed_forward);
  overrides.add("model.config.num_attention_heads", model.attention_heads);
  if (model.latent.key_value_rank == 0) overrides.add("model.config.num_query_groups", model.key_value_heads);
  if (model.experts.count == 0) return;
  overrides.add("model.config.num_moe_experts", model.experts.count);
  overrides.add("model.config.moe_router_topk", model.experts.per_token);
  overrides.add("model.config.moe_ffn_hidden_size", model.experts.feed_forward);
  overrides.add("model.config.moe_token_dispatcher_type", "alltoall");
}

Result<Grid> nemo_grid(const Plan& plan, const Model& model) {
  auto grid = megatron_grid(plan, model, nemo_name);
  if (!grid) return grid;
  SAILOR_CHECK(check_one_sharding_group(plan, nemo_name));
  if (const auto missing = missing_in_core(model); !missing.empty())
    return cannot_run(nemo_name, fmt::format("model {}: it does not have {}", model.name, join(missing, "; ")),
                      "hand over another model");
  if (plan.job.precision == Precision::fp32 || plan.job.precision == Precision::tf32)
    return cannot_run(nemo_name,
                      fmt::format("precision {}, for which it has no mixed precision", to_string(plan.job.precision)),
                      "plan with --precision bf16, fp16 or fp8");
  if (plan.job.precision == Precision::fp8 && plan.optimizer_sharding == OptimizerSharding::none)
    return cannot_run(nemo_name, "fp8 without the distributed optimizer, which gathers its 8-bit weights",
                      "plan with --pin optimizer_sharding=zero1");
  if (model.latent.key_value_rank == 0 && model.key_value_heads % grid->tensor_parallel != 0)
    return cannot_run(nemo_name,
                      fmt::format("{} key and value heads, which tensor parallelism of {} does not divide",
                                  model.key_value_heads, grid->tensor_parallel),
                      "plan with a smaller --pin tensor_parallel=N");
  return grid;
}

}  // namespace

Result<Handover> write_nemo(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks) {
  const auto grid = nemo_grid(plan, model);
  if (!grid) return fail(grid.error());
  SAILOR_CHECK(check_megatron_order(plan, *grid, ranks, nemo_name, "nemo"));
  std::vector<std::string> lines{
      fmt::format("Overrides of a recipe of NeMo {} to {} for a plan of Sailor.", oldest_nemo, newest_nemo)};
  const auto plan_lines = header_lines(plan, model, *grid, writer);
  lines.insert(lines.end(), plan_lines.begin(), plan_lines.end());
  if (grid->ranks() > 1) lines.push_back(megatron_order_text(*grid));
  lines.push_back(fmt::format("Source this file in bash. Name a recipe of the family of {} (its sizes are the plan's),",
                              model.name));
  lines.push_back(fmt::format("and as trainer.num_nodes and trainer.devices what gives {} ranks:", plan.ranks()));
  lines.emplace_back("  nemo llm pretrain --factory RECIPE --yes trainer.num_nodes=N trainer.devices=G \\");
  lines.emplace_back("    \"${SAILOR_NEMO_ARGS[@]}\"");
  Handover handover{
      .header = as_comment(lines), .ranks_by_stage = megatron_numbers_by_stage(*grid), .array = "SAILOR_NEMO_ARGS"};
  if (grid->tensor_parallel > 1) handover.body = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  handover.body += handover.array + "=(\n";
  Overrides overrides;
  const auto write = [&](std::string_view title) {
    handover.body += fmt::format("  # {}\n", title);
    for (const Argument& argument : overrides.list()) {
      handover.body += fmt::format("  {}={}\n", argument.name, shell_quote(argument.value));
      handover.settings.push_back(argument.name);
    }
    overrides = Overrides();
  };
  add_parallelism(plan, *grid, overrides);
  write("parallelism");
  add_batch(plan, *grid, overrides);
  write("batch");
  add_precision_and_recomputation(plan, *grid, overrides);
  write("precision and recomputation");
  add_sizes(plan, model, overrides);
  write("sizes of the model");
  handover.body += ")\n";
  return handover;
}

}  // namespace sailor::handover
