// The search of the full space: plans as template mixes of pipelines that may differ in everything.
//
// For a deadline by which all pipelines are to be done, every kind of pipeline is worth the sequences that it gets
// through, and the best template mix is a knapsack over the devices of each pool (template_mix.hpp). The search goes
// over
// - sets of pools that may work together (their gradients are summed over the slowest link among them),
// - how much gradient a rank may hold at most (what the reductions take),
// - deadlines, where money counts,
// prices every template mix exactly by the closed form, adds pipelines that cross pools (multi_pool_templates.hpp)
// where they are worth more than the devices that they take, and improves the best by exchanging parts (refine.hpp).
#pragma once

#include <vector>

#include "planner/bound/bound.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// A plan of nearly every shape in each pool, in no time: something, for searches that have little of it.
void search_coarsely(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop);

void search_full(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop);

/// Looks for better plans with these pipelines.
void search_with(StagePrices& prices, SolutionPool& solutions, const std::vector<Hint>& hints, const StopCheck& stop);

}  // namespace sailor::planner
