// The time of a pipeline as a formula, for the planner.
//
// With t_i the forward and backward time of one micro-batch on stage i, c_i both transfers over the boundary behind it,
// n micro-batches and transfers that block:
//   1F1B:        Σt_i + Σc_i + (n - 1)·max(t_i + c_i-1 + c_i)          (Sailor, SOSP'25, section 4.3; there c_i alone)
//   GPipe:       the same for forward and backward apart
//   interleaved: n·max t_i + (Σt_i - max t_i) / v + Σc_i, v chunks    (Narayanan et al. 2021, section 2.2)
// A stage in the middle takes part in the transfers on both of its sides. When transfers overlap, the maximum is over
// the stages and the links, each on its own.
//
// Against the event-driven form (tests/unit/simulator_property_test.cpp, benchmark simulator_bench): equal to rounding
// for equal stages, links that take no time, and 1F1B or GPipe.
#pragma once

#include "core/units.hpp"
#include "simulator/event_driven.hpp"

namespace sailor::simulator {

/// Until the last backward pass of stage 0, which is the last of all. O(stages).
Seconds closed_form(const PipelineTimes& pipeline);

}  // namespace sailor::simulator
