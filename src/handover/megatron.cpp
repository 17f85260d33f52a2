// Arguments of Megatron-Core's pretrain_gpt.py (megatron/training/arguments.py), as an array of bash.
#include "handover/megatron.hpp"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/shell.hpp"
#include "core/text.hpp"
#include "handover/writers.hpp"

namespace sailor::handover {

namespace {

constexpr std::string_view megatron_name = "Megatron-Core";

struct Section {
  std::string_view title;
  std::vector<Argument> arguments;
};

std::vector<Argument> parallelism(const Plan& plan, const Grid& grid) {
  std::vector<Argument> arguments{{"--tensor-model-parallel-size", fmt::to_string(grid.tensor_parallel)},
                                  {"--pipeline-model-parallel-size", fmt::to_string(grid.pipeline_parallel)},
                                  {"--context-parallel-size", fmt::to_string(grid.context_parallel)}};
  if (grid.tensor_parallel > 1) arguments.push_back({"--sequence-parallel"});
  if (!grid.is_even())
    arguments.push_back({"--pipeline-model-parallel-layout", pipeline_layout(grid)});
  else if (grid.virtual_stages > 1)
    arguments.push_back({"--num-virtual-stages-per-pipeline-rank", fmt::to_string(grid.virtual_stages)});
  // Ranks by pipeline, then stage, then tensor-parallel index, as in the plan; Megatron's own order is by stage first.
  if (megatron_numbers_by_pipeline(grid)) arguments.push_back({"--use-tp-pp-dp-mapping"});
  if (plan.optimizer_sharding == OptimizerSharding::zero1) arguments.push_back({"--use-distributed-optimizer"});
  // Sharding groups: of consecutive data-parallel ranks, as in the plan.
  if (const int groups = plan.sharding_groups(); groups > 1)
    arguments.push_back({"--num-distributed-optimizer-instances", fmt::to_string(groups)});
  if (grid.data_parallel > 1) arguments.push_back({"--overlap-grad-reduce"});
  if (grid.data_parallel > 1 && plan.optimizer_sharding == OptimizerSharding::zero1)
    arguments.push_back({"--overlap-param-gather"});
  return arguments;
}

std::vector<Argument> batch(const Plan& plan, const Grid& grid) {
  return {{"--seq-length", fmt::to_string(plan.job.sequence_length)},
          {"--micro-batch-size", fmt::to_string(grid.micro_batch)},
          {"--global-batch-size", fmt::to_string(plan.job.global_batch)}};
}

std::vector<Argument> precision_and_memory(const Plan& plan, const Grid& grid) {
  std::vector<Argument> arguments;
  const bool in_fp8 = plan.job.precision == Precision::fp8;
  if (plan.job.precision == Precision::bf16 || in_fp8) arguments.push_back({"--bf16"});
  if (in_fp8) arguments.push_back({"--fp8-format", "hybrid"});
  if (plan.job.precision == Precision::fp16) arguments.push_back({"--fp16"});
  if (grid.recompute == Recompute::selective) arguments.push_back({"--recompute-granularity", "selective"});
  if (grid.recompute == Recompute::full) {
    arguments.push_back({"--recompute-granularity", "full"});
    arguments.push_back({"--recompute-method", "uniform"});
    arguments.push_back({"--recompute-num-layers", "1"});
  }
  return arguments;
}

/// What the plan decides by leaving it out, or by saying it otherwise.
constexpr std::array<std::string_view, 17> decided_without_value{"--sequence-parallel",
                                                                 "--pipeline-model-parallel-layout",
                                                                 "--num-virtual-stages-per-pipeline-rank",
                                                                 "--num-layers-per-virtual-pipeline-stage",
                                                                 "--decoder-first-pipeline-num-layers",
                                                                 "--decoder-last-pipeline-num-layers",
                                                                 "--use-tp-pp-dp-mapping",
                                                                 "--use-distributed-optimizer",
                                                                 "--num-distributed-optimizer-instances",
                                                                 "--expert-model-parallel-size",
                                                                 "--bf16",
                                                                 "--fp16",
                                                                 "--fp8-format",
                                                                 "--recompute-activations",
                                                                 "--recompute-granularity",
                                                                 "--recompute-method",
                                                                 "--recompute-num-layers"};

std::vector<std::string> names_of(const std::vector<Section>& sections) {
  std::vector<std::string> names(decided_without_value.begin(), decided_without_value.end());
  for (const Section& section : sections)
    for (const Argument& argument : section.arguments) names.push_back(argument.name);
  return names;
}

/// The value of a key of an object as it is written; "" where it is missing.
std::string value_of(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key).dump() : "";
}

/// The arguments for what config.json says beside sizes (Model::unplanned), as far as there are such; "" for none. They
/// are advice in a comment: Sailor does not know whether the training wants them.
std::string arguments_for_unplanned(const Model& model) {
  std::vector<std::string> words;
  const auto add = [&](std::string name, const std::string& value) {
    words.push_back(value.empty() ? std::move(name) : fmt::format("{} {}", name, value));
  };
  for (const UnplannedSetting& setting : model.unplanned) {
    const nlohmann::json value = nlohmann::json::parse(setting.value, nullptr, false);
    const std::string& key = setting.key;
    if (key == "rope_scaling" || key == "rope_parameters") {
      const std::string type = value_of(value, value.contains("rope_type") ? "rope_type" : "type");
      if (type == "\"llama3\"") add("--use-rope-scaling --rope-scaling-factor", value_of(value, "factor"));
      if (type == "\"yarn\"" && model.latent.key_value_rank > 0) {
        add("--rope-type yarn --rotary-scaling-factor", value_of(value, "factor"));
        if (value.contains("mscale")) add("--mscale", value_of(value, "mscale"));
        if (value.contains("mscale_all_dim")) add("--mscale-all-dim", value_of(value, "mscale_all_dim"));
      }
    }
    if (key == "scoring_func" && value == "sigmoid") add("--moe-router-score-function", "sigmoid");
    if (key == "topk_method" && value == "noaux_tc") add("--moe-router-enable-expert-bias", "");
    if (key == "n_group") add("--moe-router-num-groups", setting.value);
    if (key == "topk_group") add("--moe-router-group-topk", setting.value);
    if (key == "routed_scaling_factor") add("--moe-router-topk-scaling-factor", setting.value);
    if (key == "router_aux_loss_coef")
      add("--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff", setting.value);
    if (key == "aux_loss_alpha")
      add("--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff", setting.value);
    if (key == "num_nextn_predict_layers") add("--mtp-num-layers", setting.value);
  }
  return join(words, " ");
}

std::string as_array(std::string_view array, const std::vector<Section>& sections) {
  std::string text = fmt::format("{}=(\n", array);
  for (const Section& section : sections) {
    if (section.arguments.empty()) continue;
    text += fmt::format("  # {}\n", section.title);
    for (const Argument& argument : section.arguments)
      text += argument.value.empty() ? fmt::format("  {}\n", argument.name)
                                     : fmt::format("  {} {}\n", argument.name, shell_quote(argument.value));
  }
  return text + ")\n";
}

/// Transformer Engine multiplies 8-bit numbers only where a rank's matrices have multiples of 16 rows and columns (of 8
/// rows, in fact).
Result<void> check_fp8_sizes(const Plan& plan, const Model& model, const Grid& grid, std::string_view name) {
  constexpr int multiple = 16;  // as fp8_multiple of profiles/frameworks/megatron-core.toml
  const int ranks = grid.context_parallel * grid.tensor_parallel;
  if (const std::int64_t tokens = std::int64_t{grid.micro_batch} * plan.job.sequence_length;
      tokens % (std::int64_t{multiple} * ranks) != 0)
    return cannot_run(name,
                      fmt::format("products in fp8 with {} tokens divided among {} ranks, no multiple of {} on each",
                                  tokens, ranks, multiple),
                      "plan with --precision bf16, another micro-batch or other degrees");
  if (const auto part = model.part_that_is_no_multiple(grid.tensor_parallel, multiple))
    return cannot_run(name,
                      fmt::format("products in fp8 whose part of {} on a rank is {}, no multiple of {}", part->first,
                                  part->second, multiple),
                      "plan with --precision bf16, or other degrees");
  return {};
}

}  // namespace

std::string pipeline_layout(const Grid& grid) {
  std::string text;
  for (const Chunk& chunk : grid.chunks) {
    if (&chunk != &grid.chunks.front()) text += "|";
    if (chunk.embedding) text += "E";
    if (chunk.blocks == 1) text += "t";
    if (chunk.blocks > 1) text += fmt::format("t*{}", chunk.blocks);
    if (chunk.head) text += "L";
  }
  return text;
}

Result<Grid> megatron_grid(const Plan& plan, const Model& model, std::string_view name) {
  auto grid = grid_of(plan, model, name, "megatron-core");
  if (!grid) return grid;
  if (shards_gradients(plan.optimizer_sharding))
    return cannot_run(name,
                      fmt::format("optimizer_sharding {} beside its pipelines", to_string(plan.optimizer_sharding)),
                      "plan with --pin optimizer_sharding=zero1, its distributed optimizer");
  if (plan.job.precision == Precision::tf32)
    return cannot_run(name, "precision tf32, which no argument of it turns on", "plan with --precision bf16 or fp32");
  if (const int ranks = grid->tensor_parallel * grid->context_parallel;
      grid->tensor_parallel > 1 && plan.job.sequence_length % ranks != 0)
    return cannot_run(name,
                      fmt::format("sequence parallelism of {} tokens over {} ranks", plan.job.sequence_length, ranks),
                      "choose a --sequence-length that tensor_parallel x context_parallel divides");
  if (plan.job.precision == Precision::fp8) SAILOR_CHECK(check_fp8_sizes(plan, model, *grid, name));
  if (model.experts.count > 0 && plan.job.precision != Precision::bf16 && plan.job.precision != Precision::fp8)
    return cannot_run(name, fmt::format("grouped products of experts in {}", to_string(plan.job.precision)),
                      "plan with --precision bf16");
  return grid;
}

Result<void> check_megatron_order(const Plan& plan, const Grid& grid, Ranks ranks, std::string_view framework,
                                  std::string_view format) {
  if (ranks == Ranks::as_numbered || !megatron_numbers_by_stage(grid)) return {};
  return check_order_by_stage(plan, grid, framework, format);
}

std::string megatron_order_text(const Grid& grid) {
  return megatron_numbers_by_stage(grid) ? "Rank order: by stage, then pipeline, then context and tensor index."
                                         : "Rank order: by pipeline, then stage, then context and tensor index.";
}

Result<Handover> write_megatron(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks) {
  const auto grid = megatron_grid(plan, model, megatron_name);
  if (!grid) return fail(grid.error());
  SAILOR_CHECK(check_megatron_order(plan, *grid, ranks, megatron_name, "megatron"));
  auto architecture = architecture_arguments(model, *grid, plan.job.precision);
  if (!architecture) return fail(architecture.error());
  const bool patterns = model.attention_sinks || (model.sliding_window > 0 && model.full_attention_period > 0);
  std::vector<std::string> lines{
      fmt::format("Arguments of Megatron-Core {} to {} (pretrain_gpt.py of Megatron-LM) for a plan of Sailor.",
                  patterns ? oldest_release_with_patterns : oldest_release, newest_release)};
  const auto plan_lines = header_lines(plan, model, *grid, writer);
  lines.insert(lines.end(), plan_lines.begin(), plan_lines.end());
  if (const std::string advice = arguments_for_unplanned(model); !advice.empty())
    lines.push_back("Megatron-Core's arguments for that: " + advice);
  if (grid->ranks() > 1) lines.push_back(megatron_order_text(*grid));
  lines.emplace_back("Source this file in bash, and add what a plan does not say: data, tokenizer, learning rate,");
  lines.emplace_back("--train-iters:");
  lines.emplace_back("  torchrun ... pretrain_gpt.py \"${SAILOR_MEGATRON_ARGS[@]}\" --train-iters N ...");
  const std::vector<Section> sections{{"parallelism", parallelism(plan, *grid)},
                                      {"batch", batch(plan, *grid)},
                                      {"precision and recomputation", precision_and_memory(plan, *grid)},
                                      {"model", *std::move(architecture)}};
  Handover handover{.header = as_comment(lines),
                    .ranks_by_stage = megatron_numbers_by_stage(*grid),
                    .array = "SAILOR_MEGATRON_ARGS",
                    .settings = names_of(sections)};
  // arguments.py requires it with tensor parallelism on every GPU before Blackwell.
  if (grid->tensor_parallel > 1) handover.body = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  handover.body += as_array(handover.array, sections);
  return handover;
}

}  // namespace sailor::handover
