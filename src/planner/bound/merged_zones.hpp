// Relaxation of clusters of several zones: zones that are close to each other count as one.
//
// A pool of the merged space has the devices of a GPU type in all of its zones, at the least price and with the most
// memory of any; messages and reductions take what they take between those of its zones that are quickest
// (StagePrices). So every plan of the space is one of the merged space, where it takes no longer and costs no more, and
// a bound of the merged space is one of the space. With fewer pools it takes much less work. It is tight where
// the links between the zones do not limit the best plans; branching on the zones that hold some layers is not tight
// there.
#pragma once

#include <vector>

#include "planner/stage_prices.hpp"

namespace sailor::planner {

/// The space with zones merged, the fewest zones first: all of them, and those that are much closer to each other than
/// to the rest. Only where that leaves half the pools at most: else branches over the pools prove more.
std::vector<SearchSpace> merge_zones(StagePrices& prices);

}  // namespace sailor::planner
