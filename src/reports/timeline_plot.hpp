// Gantt chart of an iteration: a row per stage, time from left to right; idle time is blank.
#pragma once

#include <cstddef>

#include "plan/plan.hpp"
#include "plan/timeline.hpp"
#include "reports/plot.hpp"
#include "simulator/simulator.hpp"

namespace sailor::reports {

/// At most this many stages are drawn; the note says when there are more.
inline constexpr std::size_t most_drawn_rows = 160;

/// Copies of a pipeline share their rows. Activities that overlap with computation are narrow bars below it. Where many
/// events are narrower than a pixel, each kind's share of the pixels is its share of the time.
Plot timeline_plot(const Plan& plan, const simulator::Prediction& prediction, const Timeline& timeline);

}  // namespace sailor::reports
