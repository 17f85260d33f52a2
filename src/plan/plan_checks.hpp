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

/// The first violation of the schedule's requirements or of the order of the layers; std::nullopt: none.
std::optional<PlanProblem> find_problem(const Pipeline& pipeline, Schedule schedule);
/// A problem if the sequences of all micro-batches do not add up to the global batch; std::nullopt: they do.
std::optional<std::string> batch_problem(const Plan& plan);
/// The first degree that does not divide the sequence, the ranks of a stage or the replicas; std::nullopt: none.
std::optional<PlanProblem> degree_problem(const Plan& plan);

}  // namespace sailor
