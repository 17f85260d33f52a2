#pragma once

#include <optional>
#include <string>

#include "plan/plan.hpp"

/// Checks of a plan, which name the key of plan.toml that is wrong.
namespace sailor {

struct PlanProblem {
  int stage = -1;  ///< of the pipeline; -1: the pipeline or plan itself
  std::string key;
  std::string what;
  std::string hint;
};

/// Violations of the schedule's requirements and of the order of the layers.
std::optional<PlanProblem> find_problem(const Pipeline& pipeline, Schedule schedule);
/// Whether micro-batches and their sequences make the global batch.
std::optional<std::string> batch_problem(const Plan& plan);
/// Degrees that do not divide the sequence, the ranks of a stage or the replicas.
std::optional<PlanProblem> degree_problem(const Plan& plan);

}  // namespace sailor
