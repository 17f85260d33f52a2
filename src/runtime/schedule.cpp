#include "runtime/schedule.hpp"

#include <algorithm>
#include <stdexcept>

namespace sailor::runtime {

std::vector<ScheduleStep> schedule_steps(Schedule schedule, int stage, int stages, int micro_batches) {
  if (schedule != Schedule::one_f_one_b) throw std::logic_error("only 1F1B is there yet");
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  std::vector<ScheduleStep> steps;
  steps.reserve(2 * static_cast<std::size_t>(micro_batches));
  for (int m = 0; m < warm_up; ++m) steps.push_back({Pass::forward, m});
  for (int m = warm_up; m < micro_batches; ++m) {
    steps.push_back({Pass::forward, m});
    steps.push_back({Pass::backward, m - warm_up});
  }
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) steps.push_back({Pass::backward, m});
  return steps;
}

}  // namespace sailor::runtime
