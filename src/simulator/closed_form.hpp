// The time of a pipeline as a formula, for the planner.
//
// With t_i the forward and backward time of one micro-batch on stage i, c_i the transfers in both directions over the
// boundary between stages i and i + 1, n micro-batches and blocking transfers:
//   1F1B:        Σt_i + Σc_i + (n - 1)·max(t_i + c_i-1 + c_i)          (Sailor, SOSP'25, section 4.3; there c_i alone)
//   GPipe:       the same for forward and backward apart
//   interleaved: the larger of two, with P stages, v chunks and t_ik of chunk k on stage i:
//     n·max t_i + (Σt_i - max t_i + Σc_i) / v                       (Narayanan et al. 2021, section 2.2: always filled)
//     Σt_i + Σc_i + (P - 1)·min_k(max_i t_ik) + (n - P)·max t_i     (P micro-batches pass all stages one after
//                                                                    another, and hold up all others)
// A stage in the middle takes part in the transfers on both of its sides. When transfers overlap, the maximum is over
// the stages and the links separately.
//
// Accuracy against the event-driven form (tests/unit/simulator_property_test.cpp):
// - GPipe: always equal up to rounding. Equal stages and links that take no time: equal up to rounding under every
//   schedule; interleaved also with links that take no longer than a pass.
// - 1F1B, blocking, messages no longer than the shortest forward pass: never below it. Of random pipelines of up to 8
//   stages and 24 micro-batches, 90% are less than 5% above when stages differ by up to 1.5 times, 9% up to 4 times;
//   the worst that a search found were 20% (without links; 36% with) and 40% above.
// - 1F1B, overlapped, the same: 90% between -1% and +9%; the worst -14% and +41%.
// - interleaved, the same: 90% between -5% and +4% when stages differ by up to 1.5 times, -14% and +3% up to 4 times;
//   the worst -22% and +16%, -51% and +17%.
// Longer messages make it worse: 1F1B is then up to 14% (blocking) or 32% (overlapped) below, interleaved 51%.
#pragma once

#include "core/units.hpp"
#include "simulator/event_driven.hpp"

namespace sailor::simulator {

/// Upper bound of closed form / event-driven time over all plans found (see above). Searches look this much beyond a
/// limit on time or money, which is judged event by event.
inline constexpr double most_above_event_driven = 1.45;
/// Upper bound of event-driven time / closed form over all plans found.
inline constexpr double most_below_event_driven = 2.1;

/// The closed form as a linear function of the number of micro-batches n: first + per_micro_batch x (n - 1).
struct LinearTime {
  Seconds first{};  ///< for one micro-batch; under the interleaved schedule the value of the line at n = 1
  Seconds per_micro_batch{};
};
LinearTime linear_form(const PipelineTimes& pipeline);

/// Time until the last backward pass of stage 0, which ends last of all. O(stages).
Seconds closed_form(const PipelineTimes& pipeline);

}  // namespace sailor::simulator
