// Limits that no plan keeps, what the best plans reach without them, and devices that are too few.
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
/// for the fastest plan without limits on time and money, where time is limited, and for the cheapest, where money is.
/// Returns one that keeps the limits after all; else `error`, with what these plans reach. It returns `error` as it is
/// without Effort::explains_limits, without such limits, under limits on the search's own effort or on node-hours, and
/// when it is interrupted.
Result<SearchResult> search_beside_limits(const Request& request, const Error& error,
                                          const std::function<Result<SearchResult>(const Request&)>& search);

/// `error` of a search that found no plan that fits into memory, and in its hint on how many times as many nodes of
/// every group quick searches find one (2, 4, ..., 64; up to 8,192 devices). As it is without Effort::explains_limits,
/// under limits on time, money, devices or the search's own time, with a pinned number of pipelines, in the paper's
/// space, and when the search is interrupted.
Error with_nodes_it_takes(const Request& request, const simulator::Environment& environment, Error error);

}  // namespace sailor::planner
