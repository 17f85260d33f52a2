// The order of passes, which trainer and simulator share.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "plan/schedule.hpp"

namespace sailor::schedule_test {
namespace {

std::string spelled(const std::vector<ScheduleStep>& steps) {
  std::string text;
  for (const ScheduleStep& step : steps)
    text +=
        fmt::format("{}{}{} ", step.pass == Pass::forward ? 'F' : 'B', step.micro_batch,
                    std::string(static_cast<std::size_t>(step.chunk), '\''));  // a mark for each chunk after the first
  return text;
}

TEST(PlanSchedule, OneForwardOneBackwardIsAsPublished) {
  const auto steps = [](int stage, int stages, int micro_batches) {
    return spelled(schedule_steps(Schedule::one_f_one_b, stage, stages, 1, micro_batches));
  };
  EXPECT_EQ(steps(0, 3, 4), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_EQ(steps(1, 3, 4), "F0 F1 B0 F2 B1 F3 B2 B3 ");
  EXPECT_EQ(steps(2, 3, 4), "F0 B0 F1 B1 F2 B2 F3 B3 ");
  EXPECT_EQ(steps(0, 3, 1), "F0 B0 ");
  EXPECT_EQ(steps(0, 1, 2), "F0 B0 F1 B1 ");
}

TEST(PlanSchedule, KeepsAtMostAsManyInFlightAsStagesFollow) {
  for (int stages = 1; stages <= 5; ++stages)
    for (int stage = 0; stage < stages; ++stage)
      for (int micro_batches = 1; micro_batches <= 7; ++micro_batches) {
        int in_flight = 0;
        int most = 0;
        std::vector<int> forward;
        std::vector<int> backward;
        for (const ScheduleStep& step : schedule_steps(Schedule::one_f_one_b, stage, stages, 1, micro_batches)) {
          (step.pass == Pass::forward ? forward : backward).push_back(step.micro_batch);
          in_flight += step.pass == Pass::forward ? 1 : -1;
          most = std::max(most, in_flight);
          ASSERT_LE(backward.size(), forward.size());
        }
        EXPECT_EQ(most, std::min(micro_batches, stages - stage));
        std::vector<int> all(static_cast<std::size_t>(micro_batches));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(forward, all);
        EXPECT_EQ(backward, all);
      }
}

TEST(PlanSchedule, GPipeRunsAllForwardPassesFirst) {
  EXPECT_EQ(spelled(schedule_steps(Schedule::gpipe, 1, 3, 1, 3)), "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(peak_in_flight(Schedule::gpipe, 1, 3, 3, {2.0}), 6.0);
}

TEST(PlanSchedule, InterleavedIsAsInMegatron) {
  // 2 stages with 2 chunks each, 4 micro-batches: stage 1 warms up with (2 - 1) * 2 = 2 forward passes, stage 0 with 4.
  EXPECT_EQ(spelled(schedule_steps(Schedule::interleaved_1f1b, 1, 2, 2, 4)),
            "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3 ");
  EXPECT_EQ(spelled(schedule_steps(Schedule::interleaved_1f1b, 0, 2, 2, 4)),
            "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3 ");
  // As many micro-batches as stages: all forward passes come first.
  EXPECT_EQ(spelled(schedule_steps(Schedule::interleaved_1f1b, 1, 2, 2, 2)), "F0 F1 F0' F1' B0' B1' B0 B1 ");
}

TEST(PlanSchedule, EveryPassRunsOnceAndForwardFirst) {
  for (int stages = 2; stages <= 4; ++stages)
    for (int chunks = 2; chunks <= 3; ++chunks)
      for (int stage = 0; stage < stages; ++stage) {
        std::set<std::pair<int, int>> forward;
        std::set<std::pair<int, int>> backward;
        for (const ScheduleStep& step : schedule_steps(Schedule::interleaved_1f1b, stage, stages, chunks, 2 * stages)) {
          const std::pair id(step.chunk, step.micro_batch);
          if (step.pass == Pass::forward) {
            EXPECT_TRUE(forward.insert(id).second);
          } else {
            EXPECT_TRUE(forward.contains(id));
            EXPECT_TRUE(backward.insert(id).second);
          }
        }
        EXPECT_EQ(forward.size(), static_cast<std::size_t>(2 * stages * chunks));
        EXPECT_EQ(backward, forward);
      }
}

TEST(PlanSchedule, InterleavedKeepsMoreInFlight) {
  // Stage 0 of 2 with 2 equal chunks warms up with 4 forward passes and runs one more: 5 chunks of half a stage.
  EXPECT_EQ(peak_in_flight(Schedule::interleaved_1f1b, 0, 2, 4, {0.5, 0.5}), 2.5);
  EXPECT_EQ(peak_in_flight(Schedule::one_f_one_b, 0, 2, 4, {1.0}), 2.0);
}

}  // namespace
}  // namespace sailor::schedule_test
