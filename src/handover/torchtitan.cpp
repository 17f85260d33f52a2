// torchtitan: command-line overrides of a registered configuration (0.3), or sections of a TOML file (0.2).
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/text.hpp"
#include "handover/grid.hpp"
#include "handover/writers.hpp"

namespace sailor::handover {

namespace {

constexpr std::string_view torchtitan_name = "torchtitan";

/// What both forms say of a plan.
struct Settings {
  Grid grid;
  int replicate = 1;          ///< ranks that hold the same weights (DDP)
  int shard = 1;              ///< ranks that divide weights, gradients and optimizer state (FSDP)
  std::string_view reshard;   ///< weights after the forward pass; empty: there is nothing to shard
  int local_batch = 1;        ///< sequences of a rank between two additions of gradients
  std::string_view schedule;  ///< empty: no pipelines
  bool bf16 = false;
  bool fp8 = false;  // linear layers of blocks, with bf16 = true
};

bool is_model_parallel(const Grid& grid) { return grid.tensor_parallel > 1 || grid.pipeline_parallel > 1; }

Result<void> set_sharding(const Plan& plan, Settings& settings) {
  // Its sharding groups are the ranks of data_parallel_shard_degree x context_parallel_degree.
  if (plan.sharding_degree % settings.grid.context_parallel != 0)
    return cannot_run(torchtitan_name,
                      fmt::format("sharding_degree {} beside context_parallel {}, which does not divide it",
                                  plan.sharding_degree, settings.grid.context_parallel),
                      "plan with --pin context_parallel=1, or with a multiple as --pin sharding_degree");
  const Grid& grid = settings.grid;
  if (grid.data_parallel == 1) {
    if (settings.bf16 && is_model_parallel(grid))
      return cannot_run(torchtitan_name, "bf16 beside fp32 weights in a single pipeline, which its FSDP would compute",
                        "plan with --pin data_parallel=2 or more");
    return {};
  }
  if (plan.optimizer_sharding == OptimizerSharding::none) {
    if (is_model_parallel(grid))
      return cannot_run(torchtitan_name, "replicas that share nothing (DDP) beside tensor or pipeline parallelism",
                        "plan with --framework torch-fsdp --pin optimizer_sharding=zero2");
    settings.replicate = grid.data_parallel;
    return {};
  }
  settings.shard = plan.shards() / grid.context_parallel;
  settings.replicate = grid.data_parallel / settings.shard;
  settings.reshard = shards_weights(plan.optimizer_sharding) ? "always" : "never";
  return {};
}

Result<Settings> settings_of(const Plan& plan, const Model& model, Ranks ranks) {
  auto grid = grid_of(plan, model, torchtitan_name, "torch-fsdp");
  if (!grid) return fail(grid.error());
  Settings settings{.grid = *std::move(grid), .reshard = {}, .schedule = {}};
  if (ranks == Ranks::in_plan_order)
    SAILOR_CHECK(check_order_by_stage(plan, settings.grid, torchtitan_name, "torchtitan"));
  if (settings.grid.expert_parallel > 1)
    return cannot_run(torchtitan_name, "expert parallelism, whose settings Sailor does not write yet",
                      "plan with --pin expert_parallel=1, or hand the plan to megatron");
  settings.fp8 = plan.job.precision == Precision::fp8;
  settings.bf16 = settings.fp8 || plan.job.precision == Precision::bf16;
  if (!settings.bf16 && plan.job.precision != Precision::fp32)
    return cannot_run(torchtitan_name, fmt::format("precision {}", to_string(plan.job.precision)),
                      "plan with --precision bf16, fp8 or fp32");
  if (settings.grid.recompute == Recompute::selective)
    return cannot_run(torchtitan_name,
                      "recomputation of attention alone (its selective mode recomputes every second product)",
                      "plan with --pin recompute=none or recompute=full");
  SAILOR_CHECK(set_sharding(plan, settings));
  settings.local_batch = settings.grid.micro_batch;
  if (settings.grid.pipeline_parallel > 1) {
    settings.local_batch *= settings.grid.micro_batches;
    settings.schedule = settings.grid.virtual_stages > 1 ? "Interleaved1F1B" : "1F1B";
  }
  return settings;
}

/// Names of the modules of each (virtual) stage; `head`: what the release calls the projection to the vocabulary.
std::vector<std::vector<std::string>> modules(const Grid& grid, std::string_view head) {
  std::vector<std::vector<std::string>> parts;
  for (const Chunk& chunk : grid.chunks) {
    auto& part = parts.emplace_back();
    if (chunk.embedding) part.emplace_back("tok_embeddings");
    for (int i = 0; i < chunk.blocks; ++i) part.push_back(fmt::format("layers.{}", chunk.first_block + i));
    if (chunk.head) part.insert(part.end(), {"norm", std::string(head)});
  }
  return parts;
}

std::vector<std::string> header(const Plan& plan, const Model& model, const Settings& settings,
                                std::string_view writer) {
  std::vector<std::string> lines = header_lines(plan, model, settings.grid, writer);
  if (plan.optimizer_sharding == OptimizerSharding::zero1 && settings.shard > 1)
    lines.emplace_back("FSDP shards gradients, too, so that it needs no more memory than the plan's ZeRO-1.");
  if (settings.grid.pipeline_parallel > 1 && settings.grid.data_parallel > 1)
    lines.push_back(
        fmt::format("torchtitan numbers ranks by stage: rank r has stage r / {}.",
                    settings.grid.data_parallel * settings.grid.context_parallel * settings.grid.tensor_parallel));
  return lines;
}

std::string model_text(const Model& model) {
  return fmt::format("{}: {} blocks, hidden size {}, {} heads", model.name, model.blocks, model.hidden,
                     model.attention_heads);
}

struct Setting {
  std::string_view section;
  std::string_view key;
  std::string value;
  bool is_text = false;
};

/// The settings that both releases spell alike, by section.
std::vector<Setting> common_settings(const Plan& plan, const Settings& settings) {
  const Grid& grid = settings.grid;
  std::vector<Setting> list{{"training", "local_batch_size", fmt::to_string(settings.local_batch)},
                            {"training", "global_batch_size", fmt::to_string(plan.job.global_batch)},
                            {"training", "seq_len", fmt::to_string(plan.job.sequence_length)},
                            {"training", "dtype", "float32", true},
                            {"training", "mixed_precision_param", settings.bf16 ? "bfloat16" : "float32", true},
                            {"parallelism", "data_parallel_replicate_degree", fmt::to_string(settings.replicate)},
                            {"parallelism", "data_parallel_shard_degree", fmt::to_string(settings.shard)},
                            {"parallelism", "tensor_parallel_degree", fmt::to_string(grid.tensor_parallel)},
                            {"parallelism", "context_parallel_degree", fmt::to_string(grid.context_parallel)},
                            {"parallelism", "pipeline_parallel_degree", fmt::to_string(grid.pipeline_parallel)}};
  if (!settings.reshard.empty())
    list.push_back({"parallelism", "fsdp_reshard_after_forward", std::string(settings.reshard), true});
  if (grid.pipeline_parallel > 1) {
    list.push_back({"parallelism", "pipeline_parallel_schedule", std::string(settings.schedule), true});
    list.push_back({"parallelism", "pipeline_parallel_microbatch_size", fmt::to_string(grid.micro_batch)});
  }
  return list;
}

}  // namespace

Result<Handover> write_torchtitan_toml(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks) {
  const auto settings = settings_of(plan, model, ranks);
  if (!settings) return fail(settings.error());
  std::vector<std::string> lines{"Sections of a configuration of torchtitan 0.2 for a plan of Sailor."};
  const auto more = header(plan, model, *settings, writer);
  lines.insert(lines.end(), more.begin(), more.end());
  lines.push_back(fmt::format("Put them into a file with [model] ({}), data and optimizer.", model_text(model)));
  if (settings->fp8) {
    lines.emplace_back("Add converters = [\"quantize.linear.float8\"] to [model], which turns fp8 on, and");
    lines.emplace_back("[compile] with enable = true, which rounds to 8 bits within other operations.");
  }
  std::string text;
  std::string_view section;
  for (const Setting& setting : common_settings(plan, *settings)) {
    if (setting.section != section) text += fmt::format("\n[{}]\n", setting.section);
    section = setting.section;
    const std::string_view quote = setting.is_text ? "\"" : "";
    text += fmt::format("{} = {}{}{}\n", setting.key, quote, setting.value, quote);
  }
  if (settings->grid.pipeline_parallel > 1) {
    text += "module_fqns_per_model_part = [\n";
    for (const auto& part : modules(settings->grid, "output"))
      text += fmt::format("  [\"{}\"],\n", join(part, "\", \""));
    text += "]\n";
  }
  text += fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n",
                      settings->grid.recompute == Recompute::full ? "full" : "none");
  Handover handover{.header = as_comment(lines), .body = {}, .ranks_by_stage = true};
  if (settings->fp8) {
    text += "\n[quantize.linear.float8]\nfilter_fqns = [\"output\"]\n";  // the head stays in bf16
    handover.notes.emplace_back(
        "add converters = [\"quantize.linear.float8\"] to [model] and enable = true to [compile]");
  }
  handover.body = std::move(text);
  return handover;
}

Result<Handover> write_torchtitan(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks) {
  const auto settings = settings_of(plan, model, ranks);
  if (!settings) return fail(settings.error());
  if (settings->fp8)
    return cannot_run("torchtitan 0.3",
                      "precision fp8 by options: its Float8LinearConverter is part of a registered configuration",
                      "use --format torchtitan-toml (0.2), or plan with --precision bf16 and register a configuration "
                      "with the converter");
  std::vector<std::string> lines{"Overrides of a configuration of torchtitan 0.3 for a plan of Sailor."};
  const auto more = header(plan, model, *settings, writer);
  lines.insert(lines.end(), more.begin(), more.end());
  lines.push_back("Source this file in bash. Name a registered configuration of");
  lines.push_back(model_text(model) + "; overrides of your own go before the array:");
  lines.emplace_back("  torchrun ... -m torchtitan.train --module M --config C \"${SAILOR_TORCHTITAN_ARGS[@]}\"");
  Handover handover{.header = as_comment(lines),
                    .ranks_by_stage = true,
                    .array = "SAILOR_TORCHTITAN_ARGS",
                    .settings = {"activation-checkpoint:"}};
  std::string text = handover.array + "=(\n";
  if (settings->grid.pipeline_parallel > 1) {
    std::vector<std::string> parts;
    for (const auto& part : modules(settings->grid, "lm_head")) parts.push_back(join(part, ","));
    // A list goes on until the next option.
    text += fmt::format("  --parallelism.module_fqns_per_model_part\n    {}\n", join(parts, "\n    "));
    text += "  --training.disable_cuda_graphs\n";  // torchtitan refuses both together
  }
  handover.settings.emplace_back("--parallelism.module_fqns_per_model_part");
  for (const Setting& setting : common_settings(plan, *settings)) {
    text += fmt::format("  --{}.{} {}\n", setting.section, setting.key, setting.value);
    handover.settings.push_back(fmt::format("--{}.{}", setting.section, setting.key));
  }
  // The kind of recomputation is a subcommand, after the options.
  text += fmt::format("  activation-checkpoint:{}\n", settings->grid.recompute == Recompute::full ? "full" : "none");
  handover.body = text + ")\n";
  return handover;
}

}  // namespace sailor::handover
