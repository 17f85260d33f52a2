// Limits that no plan keeps: what the best plans reach without them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/planner.hpp"
#include "planner/request.hpp"

namespace sailor::planner {

/// The best that plans reach, each by itself.
struct Extremes {
  Seconds fastest;
  Usd cheapest;
  std::optional<double> min_node_seconds{};  ///< nodes x iteration time; std::nullopt: not known
};

/// A sentence for each limit of the request that the best plan of its kind breaks.
std::vector<std::string> missed_limits(const Request& request, const Extremes& best);

/// A search under limits looks where they may be kept, and so does not know the best plans beside: `search` is asked
/// for the fastest and the cheapest plan without limits on time and money. Returns those that keep the limits after
/// all; else `error`, with what the best plans reach. Under Effort::time, which the search has used up, or without such
/// limits that is `error` as it is.
Result<SearchResult> search_beside_limits(const Request& request, const Error& error,
                                          const std::function<Result<SearchResult>(const Request&)>& search);

}  // namespace sailor::planner
