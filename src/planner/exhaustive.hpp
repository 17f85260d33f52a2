// Small inputs: the best plan of the full space by going through all of it.
//
// Plans are sequences of pipelines, each with stages of its own: ranks fill the nodes in the order of the plan, so the
// order counts where nodes have room for several. What cannot be better than the best plan so far is cut off; every cut
// is proven where it is made.
#pragma once

#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// True: the best plan of the space is in the solution pool, or there is none. False: the space is too large (how much
/// is done depends on the input alone), `stop` said so, the interleaved schedule is among the choices, or a Pareto
/// front is asked for.
bool search_exhaustively(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop);

}  // namespace sailor::planner
