// How much the parts of a plan may differ. Sailor's own runtime runs pipelines that differ in everything; frameworks
// whose ranks form a regular grid (tensor x data x pipeline parallel) do not.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.hpp"

namespace sailor {

/// What has to be equal throughout a plan.
struct Uniformity {
  /// All pipelines have the same layers, tensor-parallel degree and recomputation in their stages, and the same number
  /// and size of micro-batches. GPU types and zones may differ.
  bool pipelines_alike = false;
  bool one_tensor_parallel = false;  ///< one tensor-parallel degree in all stages
  bool one_recompute = false;        ///< one kind of recomputation in all stages
  [[nodiscard]] bool any() const { return pipelines_alike || one_tensor_parallel || one_recompute; }
};

/// Two parts of a plan that had to be equal, and the pins with which the planner finds plans where they are.
struct NonUniformity {
  std::string what;  ///< "pipeline 0 has 4 stages and pipeline 1 has 2"
  std::string pin;   ///< "pipeline_parallel=4"
};

bool is_uniform(const Plan& plan, const Uniformity& wanted);
/// The first violation in the order of the plan; std::nullopt if is_uniform().
std::optional<NonUniformity> find_non_uniformity(const Plan& plan, const Uniformity& wanted);

}  // namespace sailor
