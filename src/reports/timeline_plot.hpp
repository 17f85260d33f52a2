// The Gantt picture of an iteration: a row per stage, time from left to right, what is blank is idle.
#pragma once

#include <cstddef>

#include "plan/plan.hpp"
#include "plan/timeline.hpp"
#include "reports/plot.hpp"
#include "simulator/simulator.hpp"

namespace sailor::reports {

/// At most this many stages are drawn; the note says when there are more.
inline constexpr std::size_t most_drawn_rows = 160;

/// Copies of a pipeline share their rows. What overlaps with computation is a narrow bar below it. Where many events
/// are narrower than a pixel, pixels of a kind are as frequent as its time.
Plot timeline_plot(const Plan& plan, const simulator::Prediction& prediction, const Timeline& timeline);

}  // namespace sailor::reports
