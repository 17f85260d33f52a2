// The picture of a plan: a row per kind of pipeline, a box per stage, as wide as it has layers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace sailor::reports {

/// At most this many kinds of pipelines are drawn; the figure says when there are more.
inline constexpr std::size_t most_drawn_pipelines = 40;

/// An inline SVG with its legend: colours are GPU types (with their zones, where the plan names several). `nodes`: for
/// each rank the name of its node; empty if the nodes are not known.
std::string plan_picture(const Plan& plan, const std::vector<std::string>& nodes);

}  // namespace sailor::reports
