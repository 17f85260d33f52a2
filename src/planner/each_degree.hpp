// Degrees of context and expert parallelism: a plan has one of each, so that one search is run for each pair of them.
#pragma once

#include "core/error.hpp"
#include "planner/planner.hpp"
#include "planner/side_by_side.hpp"

namespace sailor::planner {

/// Searches with the pinned degrees, or with those worth trying (find_plans()). `search` gets requests whose degrees
/// are pinned.
Result<SearchResult> search_each_degree(const Request& request, const simulator::Environment& environment,
                                        const SearchOne& search);

}  // namespace sailor::planner
