#include "handover/grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/text.hpp"
#include "plan/uniformity.hpp"

namespace sailor::handover {

namespace {

/// Ranks by GPU type, in the order of the plan: "ranks 0-7 on H100-80, 8-15 on A100-80".
std::string gpus_text(const Plan& plan) {
  struct Range {
    std::string gpu;
    int first = 0;
    int last = 0;
  };
  std::vector<Range> ranges;
  for (const RankRole& role : rank_roles(plan)) {
    const std::string& gpu = stage_of(plan, role).gpu;
    if (ranges.empty() || ranges.back().gpu != gpu)
      ranges.push_back({gpu, role.rank, role.rank});
    else
      ranges.back().last = role.rank;
  }
  std::vector<std::string> parts;
  for (const Range& range : ranges) parts.push_back(fmt::format("{}-{} on {}", range.first, range.last, range.gpu));
  return fmt::format("{} ranks: {}", plan.ranks(), join(parts, ", "));
}

Chunk chunk_of(const LayerRange& range, const Model& model) {
  Chunk chunk;
  for (int layer = range.first; layer < range.last; ++layer) {
    switch (model.layer_kind(layer)) {
      case LayerKind::embedding:
        chunk.embedding = true;
        break;
      case LayerKind::block:
        if (chunk.blocks++ == 0) chunk.first_block = layer - 1;
        break;
      case LayerKind::final_norm:
        break;  // goes where the head goes
      case LayerKind::head:
        chunk.head = true;
        break;
    }
  }
  return chunk;
}

}  // namespace

bool Grid::is_even() const {
  return std::all_of(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
    return chunk.blocks == chunks.front().blocks && chunk.embedding == (&chunk == &chunks.front()) &&
           chunk.head == (&chunk == &chunks.back());
  });
}

bool megatron_numbers_by_pipeline(const Grid& grid) {
  return grid.has_two_orders() && grid.expert_parallel == grid.context_parallel;
}

bool megatron_numbers_by_stage(const Grid& grid) {
  return grid.has_two_orders() && !megatron_numbers_by_pipeline(grid);
}

tl::unexpected<Error> cannot_run(std::string_view framework, std::string_view what, std::string hint) {
  return fail(ErrorCode::unavailable, fmt::format("{} cannot run this: {}", framework, what), std::move(hint));
}

Result<Grid> grid_of(const Plan& plan, const Model& model, std::string_view framework, std::string_view description) {
  SAILOR_CHECK(check_plan(plan, model));
  if (const auto violation =
          find_non_uniformity(plan, {.pipelines_alike = true, .one_tensor_parallel = true, .one_recompute = true}))
    return cannot_run(framework, violation->what,
                      fmt::format("plan with --framework {}, or with --pin {}", description, violation->pin));
  const Pipeline& pipeline = plan.pipelines.front();
  const Stage& stage = pipeline.stages.front();
  Grid grid{.tensor_parallel = stage.tensor_parallel,
            .context_parallel = plan.context_parallel,
            .expert_parallel = plan.expert_parallel,
            .pipeline_parallel = static_cast<int>(pipeline.stages.size()),
            .data_parallel = plan.data_parallel(),
            .virtual_stages = pipeline.chunks(),
            .micro_batch = plan.micro_batch_of(pipeline),
            .micro_batches = pipeline.micro_batches,
            .recompute = stage.recompute,
            .chunks = {}};
  if (grid.pipeline_parallel > 1 && plan.schedule == Schedule::gpipe)
    return cannot_run(framework, "the schedule gpipe", "plan with --pin schedule=1f1b");
  for (int round = 0; round < grid.virtual_stages; ++round)
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
      const Chunk chunk = chunk_of(pipeline.stages[s].chunk(round), model);
      if (!chunk.embedding && !chunk.head && chunk.blocks == 0)
        return cannot_run(framework, fmt::format("stage {} holds the final norm alone", s),
                          "give the stage a block, or plan with fewer stages: --pin pipeline_parallel=N");
      grid.chunks.push_back(chunk);
    }
  return grid;
}

Result<void> check_one_sharding_group(const Plan& plan, std::string_view framework) {
  if (plan.sharding_groups() == 1) return {};
  return cannot_run(framework,
                    fmt::format("sharding within groups of replicas (sharding_degree {}), whose settings Sailor does "
                                "not write yet",
                                plan.sharding_degree),
                    "remove sharding_degree from the plan, or hand the plan to torchtitan or megatron");
}

Result<void> check_order_by_stage(const Plan& plan, const Grid& grid, std::string_view framework,
                                  std::string_view format) {
  if (!grid.has_two_orders()) return {};
  const Stage& first = plan.pipelines.front().stages.front();
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (stage.gpu != first.gpu || stage.zone != first.zone)
        return cannot_run(framework,
                          fmt::format("pipelines on {} and {}, as it numbers ranks by stage and not by pipeline",
                                      first.gpu == stage.gpu ? first.zone : first.gpu,
                                      first.gpu == stage.gpu ? stage.zone : stage.gpu),
                          fmt::format("start it with sailor-submit --trainer {}, which gives every rank its place, or "
                                      "plan with --pin gpu={} and one zone",
                                      format, first.gpu));
  return {};
}

std::vector<std::string> header_lines(const Plan& plan, const Model& model, const Grid& grid, std::string_view writer) {
  std::vector<std::string> lines{
      fmt::format("Written by {} from a plan for {} in {}: {}.", writer, plan.job.model, to_string(plan.job.precision),
                  describe(plan)),
      fmt::format("{}; {} micro-batches per iteration.", gpus_text(plan), grid.micro_batches)};
  if (plan.prediction) {
    const std::string& framework = plan.origin.framework;
    lines.push_back(fmt::format("Predicted for framework {}: {:.4g} s per iteration, {:.3g} GiB on the fullest GPU.",
                                framework.empty() ? "sailor" : framework, plan.prediction->iteration_time.value(),
                                plan.prediction->peak_memory / gib));
  }
  if (!model.unplanned.empty())
    lines.push_back(fmt::format("Not written here; set these in the framework yourself: {}.", model.unplanned_text()));
  return lines;
}

std::string as_comment(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line.empty() ? "#\n" : fmt::format("# {}\n", line);
  return text;
}

}  // namespace sailor::handover
