// Degrees of context and expert parallelism: a plan has one of each, so that one search is run for each pair of them.
#pragma once

#include <functional>

#include "core/error.hpp"
#include "planner/planner.hpp"

namespace sailor::planner {

/// The search of a request whose degrees are pinned.
using SearchOne = std::function<Result<SearchResult>(const Request&)>;

/// Searches with the pinned degrees, or with those worth trying (find_plans()).
Result<SearchResult> search_each_degree(const Request& request, const simulator::Environment& environment,
                                        const SearchOne& search);

}  // namespace sailor::planner
