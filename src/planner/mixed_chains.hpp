// Pipelines that cross places: the first stages in one, the others in another.
#pragma once

#include <vector>

#include "planner/chains.hpp"
#include "planner/full_search.hpp"

namespace sailor::planner {

/// The pipelines of two segments that by `deadline` get through the most for what their devices are worth (sequences
/// per device, by place), best first; each at least nearly as good as its devices apart, or in different zones.
std::vector<Chain> mixed_chains(StagePrices& prices, const ChainRules& rules, const std::vector<double>& worth,
                                double deadline, const StopCheck& stop);

}  // namespace sailor::planner
