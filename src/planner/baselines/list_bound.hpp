// Prediction of a list of pipelines by this project's simulator; a bound if a Plan cannot express the list.
#pragma once

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/baselines/plan_list.hpp"
#include "simulator/simulator.hpp"

namespace sailor::planner::baselines {

struct SimulatorVerdict {
  Seconds iteration_time{};
  Usd cost{};           ///< per iteration
  Bytes peak_memory{};  ///< largest over ranks
  bool fits = true;
  /// The values are lower bounds: the list cannot be faster, cheaper or smaller, and may not reach them. For lists that
  /// a Plan cannot express.
  bool is_bound = false;
};

/// `memory_margin`: share of each device that must stay free for the list to fit. Errors: those of simulate();
/// unavailable (a tensor-parallel group over several GPU types).
Result<SimulatorVerdict> predict_list(const PlanList& list, const TrainingJob& job,
                                      const simulator::Environment& environment, double memory_margin);

/// The bound alone: every stage is busy at the rate of its replicas from its first micro-batch to its last, and the
/// batch is divided among replicas and pipelines in the best way; messages between stages, reductions that the
/// framework hides, those between pipelines, and egress are free.
Result<SimulatorVerdict> bound_of_list(const PlanList& list, const TrainingJob& job,
                                       const simulator::Environment& environment, double memory_margin);

}  // namespace sailor::planner::baselines
