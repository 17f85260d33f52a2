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

/// For models that fit into no place: pipelines over all places of each set, in several orders, whose stages take equal
/// shares of the places' devices. The quickest for a whole batch first; how many are tried is limited.
std::vector<Chain> spanning_chains(StagePrices& prices, const ChainRules& rules,
                                   const std::vector<std::vector<std::size_t>>& place_sets, const StopCheck& stop);

}  // namespace sailor::planner
