// What this project's simulator says of a list of pipelines; of one that a Plan cannot say, a bound.
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
  /// No way to run the list is faster, cheaper or smaller; none may be as good. For lists that a Plan cannot say.
  bool is_bound = false;
};

/// `memory_margin`: share of each device that must stay free for the list to fit. Errors: those of simulate();
/// unavailable (a tensor-parallel group over several GPU types).
Result<SimulatorVerdict> predict_list(const PlanList& list, const TrainingJob& job,
                                      const simulator::Environment& environment, double memory_margin);

/// The bound alone: every stage is kept busy at the pace of its replicas from its first micro-batch to its last, the
/// batch divided among replicas and pipelines as it suits them; messages between stages, reductions that the framework
/// hides, those between pipelines, and egress are free.
Result<SimulatorVerdict> bound_of_list(const PlanList& list, const TrainingJob& job,
                                       const simulator::Environment& environment, double memory_margin);

}  // namespace sailor::planner::baselines
