// The search for frameworks that recompute alike in all stages. The full search gives each stage the quickest
// recomputation that fits, so here it runs once for each kind, pinned, and the results become one.
#pragma once

#include "planner/side_by_side.hpp"
#include "simulator/framework.hpp"

namespace sailor::planner {

bool needs_each_recompute(const Request& request, const simulator::Framework& framework);

/// `search` is find_plans() for one pinned kind. A time limit is divided among the searches, a work limit is not.
/// Errors: those of the search that recomputes most, if none finds a plan.
Result<SearchResult> search_each_recompute(const Request& request, const SearchOne& search);

}  // namespace sailor::planner
