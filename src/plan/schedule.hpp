// The order in which a stage runs its micro-batches. A pure function, used by the trainer and the simulator.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace sailor {

enum class Pass { forward, backward };

/// One micro-batch through one chunk of a stage.
struct ScheduleStep {
  Pass pass = Pass::forward;
  int micro_batch = 0;
  int chunk = 0;
  bool operator==(const ScheduleStep&) const = default;
};

/// Steps of stage `stage` of `stages`: `chunks` x `micro_batches` forward and as many backward passes. After
/// warm_up_steps() forward passes, forward and backward alternate.
/// - 1F1B (PipeDream-Flush, Narayanan et al. 2021): at most min(micro_batches, stages - stage) are in flight.
/// - GPipe (Huang et al. 2019): all forward passes, then all backward passes.
/// - Interleaved 1F1B (Narayanan et al. 2021, section 2.2; Megatron-LM): chunks take turns after every `stages`
///   micro-batches. micro_batches is a multiple of stages.
/// chunks = 1 under the first two.
std::vector<ScheduleStep> schedule_steps(Schedule schedule, int stage, int stages, int chunks, int micro_batches);

/// Number of forward passes of a stage before the first that is followed by a backward pass.
int warm_up_steps(Schedule schedule, int stage, int stages, int chunks, int micro_batches);

/// Peak of what a stage keeps for micro-batches in flight, if one takes `sizes[c]` in chunk c.
double peak_in_flight(Schedule schedule, int stage, int stages, int micro_batches, const std::vector<double>& sizes);

}  // namespace sailor
