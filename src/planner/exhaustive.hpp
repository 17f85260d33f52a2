// Exhaustive search: the best plan of the full space for small inputs.
//
// Plans are sequences of pipelines, each with its own stages. Ranks fill the nodes in the order of the plan, so the
// order counts where nodes have room for several groups. Branches that cannot be better than the best plan so far are
// pruned; every pruning rule is proven where it is applied.
#pragma once

#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// True: the best plan of the space is in the solution pool, or there is none. False: the space is too large (the
/// amount of work depends on the input alone), `stop` returned true, the interleaved schedule is among the choices, or
/// a Pareto front is asked for.
bool search_exhaustively(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop);

}  // namespace sailor::planner
