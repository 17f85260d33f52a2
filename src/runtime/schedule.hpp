// The order in which a stage runs its micro-batches. A pure function: the trainer follows it, tests and the
// simulator can ask the same question.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace sailor::runtime {

enum class Pass { forward, backward };

struct ScheduleStep {
  Pass pass = Pass::forward;
  int micro_batch = 0;
  bool operator==(const ScheduleStep&) const = default;
};

/// Steps of stage `stage` of `stages` for `micro_batches` micro-batches. 1F1B (Narayanan et al. 2019): as many
/// forward passes as stages follow, then one forward and one backward in turn, then the remaining backward passes;
/// so at most min(micro_batches, stages - stage) micro-batches are in flight. Only one_f_one_b is there yet (see
/// check_supported()); anything else throws std::logic_error.
std::vector<ScheduleStep> schedule_steps(Schedule schedule, int stage, int stages, int micro_batches);

}  // namespace sailor::runtime
