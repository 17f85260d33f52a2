#include "plan/uniformity.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace sailor {

namespace {

enum class Difference { stages, micro_batch, micro_batches, layers, tensor_parallel, recompute };

/// Where a plan violates a Uniformity. Cheap: the planner asks for every plan that it prices.
struct Violation {
  Difference kind{};
  std::size_t pipeline = 0;  ///< index of the entry
  std::size_t stage = 0;
  /// Whether the stage differs from the first stage of the first pipeline, not from the same stage of that pipeline.
  bool within = false;
};

std::optional<Violation> between_pipelines(const Plan& plan, std::size_t index) {
  const Pipeline& first = plan.pipelines.front();
  const Pipeline& other = plan.pipelines[index];
  const auto differs = [&](Difference kind, std::size_t stage = 0) {
    return Violation{.kind = kind, .pipeline = index, .stage = stage};
  };
  if (other.stages.size() != first.stages.size()) return differs(Difference::stages);
  if (plan.micro_batch_of(other) != plan.micro_batch_of(first)) return differs(Difference::micro_batch);
  if (other.micro_batches != first.micro_batches) return differs(Difference::micro_batches);
  for (std::size_t s = 0; s < first.stages.size(); ++s) {
    const Stage& a = first.stages[s];
    const Stage& b = other.stages[s];
    if (a.layers != b.layers || a.later_chunks != b.later_chunks) return differs(Difference::layers, s);
    if (a.tensor_parallel != b.tensor_parallel) return differs(Difference::tensor_parallel, s);
    if (a.recompute != b.recompute) return differs(Difference::recompute, s);
  }
  return std::nullopt;
}

std::optional<Violation> find_violation(const Plan& plan, const Uniformity& wanted) {
  if (!wanted.any() || plan.pipelines.empty() || plan.pipelines.front().stages.empty()) return std::nullopt;
  const Stage& first = plan.pipelines.front().stages.front();
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    const std::vector<Stage>& stages = plan.pipelines[p].stages;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (wanted.one_tensor_parallel && stages[s].tensor_parallel != first.tensor_parallel)
        return Violation{.kind = Difference::tensor_parallel, .pipeline = p, .stage = s, .within = true};
      if (wanted.one_recompute && stages[s].recompute != first.recompute)
        return Violation{.kind = Difference::recompute, .pipeline = p, .stage = s, .within = true};
    }
    if (!wanted.pipelines_alike || p == 0) continue;
    if (const auto violation = between_pipelines(plan, p)) return violation;
  }
  return std::nullopt;
}

std::string range_text(const LayerRange& range) { return fmt::format("[{}, {})", range.first, range.last); }

}  // namespace

bool is_uniform(const Plan& plan, const Uniformity& wanted) { return !find_violation(plan, wanted); }

std::optional<NonUniformity> find_non_uniformity(const Plan& plan, const Uniformity& wanted) {
  const auto violation = find_violation(plan, wanted);
  if (!violation) return std::nullopt;
  const Pipeline& first = plan.pipelines.front();
  const Pipeline& other = plan.pipelines[violation->pipeline];
  const std::size_t s = violation->stage;
  const std::string pipelines = fmt::format("pipeline_parallel={}", first.stages.size());
  const auto of_pipelines = [&](const auto& a, const auto& b, std::string_view text) {
    return fmt::format("pipeline 0 has {} {} and pipeline {} has {}", a, text, violation->pipeline, b);
  };
  const std::size_t compared = violation->within ? 0 : s;
  const auto of_stages = [&](const auto& a, const auto& b, std::string_view text) {
    return fmt::format("stage {} of pipeline 0 has {} {} and stage {} of pipeline {} has {}", compared, text, a, s,
                       violation->pipeline, b);
  };
  switch (violation->kind) {
    case Difference::stages:
      return NonUniformity{of_pipelines(first.stages.size(), other.stages.size(), "stages"), pipelines};
    case Difference::micro_batch:
      return NonUniformity{
          of_pipelines(plan.micro_batch_of(first), plan.micro_batch_of(other), "sequences in a micro-batch"),
          fmt::format("micro_batch={}", plan.micro_batch_of(first))};
    case Difference::micro_batches:
      return NonUniformity{of_pipelines(first.micro_batches, other.micro_batches, "micro-batches"),
                           "data_parallel=N, which divides the global batch"};
    case Difference::layers:
      return NonUniformity{
          of_stages(range_text(first.stages[s].layers), range_text(other.stages[s].layers), "the layers"),
          fmt::format("gpu={}", first.stages[s].gpu)};
    case Difference::tensor_parallel: {
      const int degree = first.stages[compared].tensor_parallel;
      return NonUniformity{of_stages(degree, other.stages[s].tensor_parallel, "the tensor-parallel degree"),
                           fmt::format("tensor_parallel={}", degree)};
    }
    case Difference::recompute:
      break;
  }
  return NonUniformity{
      of_stages(to_string(first.stages[compared].recompute), to_string(other.stages[s].recompute), "the recomputation"),
      fmt::format("recompute={}", to_string(Recompute::full))};
}

}  // namespace sailor
