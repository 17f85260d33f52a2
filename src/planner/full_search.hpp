// The search of the full space: plans as fleets of pipelines that may differ in everything.
//
// For a deadline by which all pipelines are to be done, every kind of pipeline is worth the sequences that it gets
// through, and the best fleet is a knapsack over the devices of each place (fleet.hpp). The search goes over
// - sets of places that may work together (their gradients are summed over the slowest link among them),
// - how much gradient a rank may hold at most (what the reductions take),
// - deadlines, where money counts,
// prices every fleet exactly by the closed form, adds pipelines that cross places (mixed_chains.hpp) where they are
// worth more than the devices that they take, and improves the best by exchanging parts (refine.hpp).
#pragma once

#include <vector>

#include "planner/archive.hpp"
#include "planner/bound/bound.hpp"

namespace sailor::planner {

/// A plan of nearly every shape in each place, in no time: something, for searches that have little of it.
void search_coarsely(StagePrices& prices, Archive& archive, const StopCheck& stop);

void search_full(StagePrices& prices, Archive& archive, const StopCheck& stop);

/// Looks for better plans with these pipelines.
void search_with(StagePrices& prices, Archive& archive, const std::vector<Hint>& hints, const StopCheck& stop);

}  // namespace sailor::planner
