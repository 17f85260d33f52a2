#include "plan/schedule.hpp"

#include <algorithm>

#include "core/assert.hpp"

namespace sailor {

namespace {

/// The `index`-th pass of a direction: with interleaving, chunk after chunk for each group of `stages` micro-batches.
ScheduleStep step_of(Pass pass, int index, int stages, int chunks) {
  if (chunks == 1) return {.pass = pass, .micro_batch = index, .chunk = 0};
  const int chunk = index / stages % chunks;
  return {.pass = pass,
          .micro_batch = index / (stages * chunks) * stages + index % stages,
          .chunk = pass == Pass::forward ? chunk : chunks - 1 - chunk};
}

/// For assertions: whether every micro-batch passes every chunk once forward, then once backward.
bool is_complete(const std::vector<ScheduleStep>& steps, int chunks, int micro_batches) {
  const auto width = static_cast<std::size_t>(micro_batches);
  std::vector<char> passes(static_cast<std::size_t>(chunks) * width, 0);
  for (const ScheduleStep& step : steps) {
    if (step.chunk < 0 || step.chunk >= chunks || step.micro_batch < 0 || step.micro_batch >= micro_batches)
      return false;
    char& done = passes[static_cast<std::size_t>(step.chunk) * width + static_cast<std::size_t>(step.micro_batch)];
    if (done++ != (step.pass == Pass::forward ? 0 : 1)) return false;
  }
  return std::all_of(passes.begin(), passes.end(), [](char done) { return done == 2; });
}

}  // namespace

int warm_up_steps(Schedule schedule, int stage, int stages, int chunks, int micro_batches) {
  const int all = chunks * micro_batches;
  switch (schedule) {
    case Schedule::gpipe:
      return all;
    case Schedule::one_f_one_b:
      return std::min(stages - stage - 1, all);
    case Schedule::interleaved_1f1b:
      break;
  }
  if (micro_batches == stages) return all;
  return std::min(2 * (stages - stage - 1) + (chunks - 1) * stages, all);
}

std::vector<ScheduleStep> schedule_steps(Schedule schedule, int stage, int stages, int chunks, int micro_batches) {
  const int all = chunks * micro_batches;
  const int warm_up = warm_up_steps(schedule, stage, stages, chunks, micro_batches);
  std::vector<ScheduleStep> steps;
  steps.reserve(2 * static_cast<std::size_t>(all));
  for (int i = 0; i < warm_up; ++i) steps.push_back(step_of(Pass::forward, i, stages, chunks));
  for (int i = warm_up; i < all; ++i) {
    steps.push_back(step_of(Pass::forward, i, stages, chunks));
    steps.push_back(step_of(Pass::backward, i - warm_up, stages, chunks));
  }
  for (int i = all - warm_up; i < all; ++i) steps.push_back(step_of(Pass::backward, i, stages, chunks));
  SAILOR_ASSERT(is_complete(steps, chunks, micro_batches),
                "the schedule has a backward pass before its forward pass, or does not run each of them once");
  return steps;
}

double peak_in_flight(Schedule schedule, int stage, int stages, int micro_batches, const std::vector<double>& sizes) {
  const int chunks = static_cast<int>(sizes.size());
  if (chunks == 1)
    return sizes.front() * std::min(warm_up_steps(schedule, stage, stages, 1, micro_batches) + 1, micro_batches);
  // After the warm-up forward and backward passes alternate: the peak of the first few rounds is that of all rounds.
  micro_batches = std::min(micro_batches, 4 * stages);
  double now = 0.0;
  double peak = 0.0;
  for (const ScheduleStep& step : schedule_steps(schedule, stage, stages, chunks, micro_batches)) {
    const double size = sizes[static_cast<std::size_t>(step.chunk)];
    now += step.pass == Pass::forward ? size : -size;
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace sailor
