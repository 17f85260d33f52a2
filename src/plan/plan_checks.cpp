#include "plan/plan_checks.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "core/terminal.hpp"
#include "plan/plan.hpp"

namespace sailor {

namespace {

constexpr std::int64_t most_passes = 1 << 26;  // of a stage, per iteration and direction
constexpr const char* use_1f1b = "use schedule = \"1f1b\"";

/// Violations of the schedule's requirements, except the order of the layers.
std::optional<PlanProblem> find_schedule_problem(const Pipeline& pipeline, Schedule schedule) {
  const std::size_t stages = pipeline.stages.size();
  if (schedule != Schedule::interleaved_1f1b) {
    for (std::size_t i = 0; i < stages; ++i)
      if (const int chunks = pipeline.stages[i].chunks(); chunks > 1)
        return PlanProblem{static_cast<int>(i), "layers",
                           fmt::format("stage {} holds {} chunks of layers, which schedule {} cannot run", i, chunks,
                                       to_string(schedule)),
                           "give it one range [first, last) or use schedule = \"interleaved-1f1b\""};
    return std::nullopt;
  }
  if (stages < 2)
    return PlanProblem{
        -1, "stages",
        fmt::format("the pipeline has {} but schedule interleaved-1f1b needs at least 2", plural(stages, "stage")),
        fmt::format("add stages or {}", use_1f1b)};
  for (std::size_t i = 0; i < stages; ++i) {
    const int chunks = pipeline.stages[i].chunks();
    if (chunks < 2)
      return PlanProblem{
          static_cast<int>(i), "layers",
          fmt::format("stage {} holds one chunk of layers but schedule interleaved-1f1b needs at least 2", i),
          fmt::format("write layers = [[first, last], [first, last]] or {}", use_1f1b)};
    if (chunks != pipeline.chunks())
      return PlanProblem{
          static_cast<int>(i), "layers",
          fmt::format("stage {} holds {} chunks of layers but stage 0 holds {}", i, chunks, pipeline.chunks()),
          "give every stage of the pipeline the same number"};
  }
  if (std::int64_t{pipeline.micro_batches} * pipeline.chunks() > most_passes)
    return PlanProblem{-1, "micro_batches",
                       fmt::format("{} micro-batches through {} chunks are more than {} passes", pipeline.micro_batches,
                                   pipeline.chunks(), most_passes),
                       "use larger or fewer micro-batches"};
  // Narayanan et al. 2021, section 2.2.
  if (static_cast<std::size_t>(pipeline.micro_batches) % stages != 0)
    return PlanProblem{-1, "micro_batches",
                       fmt::format("micro_batches is {}, no multiple of the {} stages, which schedule "
                                   "interleaved-1f1b needs",
                                   pipeline.micro_batches, stages),
                       fmt::format("change micro_batches or {}", use_1f1b)};
  return std::nullopt;
}

}  // namespace

std::optional<PlanProblem> find_problem(const Pipeline& pipeline, Schedule schedule) {
  if (pipeline.stages.empty()) return PlanProblem{-1, "stages", "the pipeline has no stages", ""};
  if (auto problem = find_schedule_problem(pipeline, schedule)) return problem;
  const bool several = pipeline.chunks() > 1;
  const auto name = [&](int chunk, std::size_t stage) {
    return several ? fmt::format("chunk {} of stage {}", chunk, stage) : fmt::format("stage {}", stage);
  };
  int expected = 0;
  std::string previous;
  for (int chunk = 0; chunk < pipeline.chunks(); ++chunk)
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const LayerRange& layers = pipeline.stages[i].chunk(chunk);
      const int stage = static_cast<int>(i);
      if (layers.first >= layers.last)
        return PlanProblem{stage, "layers",
                           fmt::format("{} holds no layers: [{}, {})", name(chunk, i), layers.first, layers.last), ""};
      if (layers.first != expected)
        return PlanProblem{stage, "layers",
                           previous.empty() ? fmt::format("{} starts at layer {}, not 0", name(chunk, i), layers.first)
                                            : fmt::format("{} starts at layer {} but {} ends at {}", name(chunk, i),
                                                          layers.first, previous, expected),
                           ""};
      expected = layers.last;
      previous = name(chunk, i);
    }
  return std::nullopt;
}

std::optional<std::string> batch_problem(const Plan& plan) {
  std::int64_t micro_batches = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    micro_batches += std::int64_t{pipeline.count} * pipeline.micro_batches;
  if (micro_batches > plan.job.global_batch)  // their product may not fit into 64 bits
    return fmt::format("{} micro-batches of {} are more than the {} sequences of global_batch", micro_batches,
                       micro_batch_text(plan), plan.job.global_batch);
  std::int64_t sequences = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    sequences += std::int64_t{pipeline.count} * pipeline.micro_batches * plan.micro_batch_of(pipeline);
  if (sequences == plan.job.global_batch) return std::nullopt;
  return fmt::format("{} micro-batches of {} make {} sequences but global_batch is {}", micro_batches,
                     micro_batch_text(plan), sequences, plan.job.global_batch);
}

namespace {

std::optional<PlanProblem> sharding_problem(const Plan& plan) {
  const int degree = plan.sharding_degree;
  if (degree == 0) return std::nullopt;
  if (plan.optimizer_sharding == OptimizerSharding::none)
    return PlanProblem{-1, "sharding_degree",
                       fmt::format("sharding_degree is {} but optimizer_sharding is none: nothing is sharded", degree),
                       "remove sharding_degree, or set optimizer_sharding"};
  if (plan.replicas() % degree != 0)
    return PlanProblem{
        -1, "sharding_degree",
        fmt::format("sharding_degree {} does not divide the {} replicas of a layer ({} x "
                    "context_parallel {})",
                    degree, plan.replicas(), plural(static_cast<std::size_t>(plan.data_parallel()), "pipeline"),
                    plan.context_parallel),
        "change sharding_degree or the number of pipelines"};
  if (degree % plan.expert_parallel != 0)
    return PlanProblem{
        -1, "sharding_degree",
        fmt::format("sharding_degree {} is no multiple of expert_parallel {}", degree, plan.expert_parallel),
        "change one of them"};
  return std::nullopt;
}

}  // namespace

std::optional<PlanProblem> degree_problem(const Plan& plan) {
  const int context = plan.context_parallel;
  const int expert = plan.expert_parallel;
  // In a ring each rank computes an early and a late part of the sequence, so that a causal mask leaves all the same
  // work. sailor-train's ranks have one part each; the rule is the same for all frameworks.
  if (context > 1 && plan.job.sequence_length % (2 * context) != 0)
    return PlanProblem{-1, "context_parallel",
                       fmt::format("context_parallel {} divides sequences into {} parts (two for each rank), and "
                                   "sequence_length {} is no multiple of that",
                                   context, 2 * context, plan.job.sequence_length),
                       "change context_parallel or sequence_length"};
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    const std::int64_t sharers = std::int64_t{plan.pipelines[i].count} * context;
    if (sharers % expert == 0) continue;
    return PlanProblem{
        -1, "expert_parallel",
        fmt::format("expert_parallel {} does not divide the {} of pipeline {} that {} the same layers (count {} x "
                    "context_parallel {}; other pipelines' ranks do not join them)",
                    expert, plural(static_cast<std::size_t>(sharers), "rank"), i, sharers == 1 ? "holds" : "hold",
                    plan.pipelines[i].count, context),
        "change expert_parallel, count or context_parallel"};
  }
  return sharding_problem(plan);
}

namespace {

Result<void> check_experts(const Plan& plan, const Model& model) {
  if (plan.expert_parallel == 1) return {};
  if (model.experts.count == 0)
    return fail(ErrorCode::invalid_input,
                fmt::format("expert_parallel is {} but model {} has no experts", plan.expert_parallel, model.name),
                "remove expert_parallel");
  if (model.experts.count % plan.expert_parallel != 0)
    return fail(ErrorCode::invalid_input,
                fmt::format("expert_parallel {} does not divide the {} experts of {}", plan.expert_parallel,
                            model.experts.count, model.name),
                "use a degree that does");
  return {};
}
}  // namespace

Result<void> check_trainable(const Plan& plan) {
  if (plan.sharding_groups() > 1)
    return fail(
        ErrorCode::unavailable,
        fmt::format("the plan has sharding_degree = {} of {} replicas, and sailor-train shards over all of them",
                    plan.sharding_degree, plan.replicas()),
        "remove sharding_degree from the plan, or train with another framework");
  if (!is_trainable(plan.job.precision))
    return fail(ErrorCode::unavailable, "the plan has precision = \"fp8\", which sailor-train does not compute",
                "plan with --precision bf16, or train with another framework");
  return {};
}

Result<void> check_plan(const Plan& plan) {
  if (plan.pipelines.empty()) return fail(ErrorCode::invalid_input, "the plan has no pipelines");
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i)
    if (const auto problem = find_problem(plan.pipelines[i], plan.schedule))
      return fail(ErrorCode::invalid_input, fmt::format("pipeline {}: {}", i, problem->what), problem->hint);
  if (const auto problem = batch_problem(plan))
    return fail(ErrorCode::invalid_input, *problem, "change micro_batches, micro_batch or global_batch");
  if (const auto problem = degree_problem(plan)) return fail(ErrorCode::invalid_input, problem->what, problem->hint);
  return {};
}

Result<void> check_plan(const Plan& plan, const Model& model) {
  SAILOR_CHECK(check_plan(plan));
  SAILOR_CHECK(check_experts(plan, model));
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    const Pipeline& pipeline = plan.pipelines[i];
    const int held = pipeline.stages.back().chunk(pipeline.chunks() - 1).last;
    if (held != model.layers())
      return fail(ErrorCode::invalid_input,
                  fmt::format("pipeline {} holds layers [0, {}) but model {} has {} layers", i, held, model.name,
                              model.layers()),
                  "is the plan for another model, or is a stage missing?");
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s)
      if (const int degree = pipeline.stages[s].tensor_parallel; model.attention_heads % degree != 0)
        return fail(
            ErrorCode::invalid_input,
            fmt::format("pipeline {}, stage {}: tensor_parallel {} does not divide the {} attention heads of {}", i, s,
                        degree, model.attention_heads, model.name),
            "use a degree that does");
  }
  if (plan.job.sequence_length > model.max_sequence_length)
    return fail(ErrorCode::invalid_input, fmt::format("sequence_length {} is over the {} that model {} allows",
                                                      plan.job.sequence_length, model.max_sequence_length, model.name));
  return {};
}

}  // namespace sailor
