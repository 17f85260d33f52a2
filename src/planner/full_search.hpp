// The search of the full space: plans as template mixes of pipelines that may differ in everything.
//
// Given a deadline for all pipelines, a kind of pipeline is worth the sequences that it processes by then, and the best
// template mix is a knapsack over the devices of each pool (template_mix.hpp). The search goes over
// - sets of pools that may work together (their gradients are all-reduced over the slowest link among them),
// - the max gradient bytes of a rank (which determine the time of the reductions),
// - deadlines, where money counts.
// It prices every template mix exactly by the closed form, adds pipelines that cross pools (multi_pool_templates.hpp)
// where they are worth nearly what their devices are worth apart, or more, and improves the best by exchanging parts
// (refine.hpp).
#pragma once

#include <vector>

#include "planner/bound/bound.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// Tries a plan of nearly every shape in each pool, very quickly, so that even a short search finds something.
void search_coarsely(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop);

void search_full(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop);

/// Looks for better plans with these pipelines.
void search_with(StagePrices& prices, SolutionPool& solutions, const std::vector<Hint>& hints, const StopCheck& stop);

}  // namespace sailor::planner
