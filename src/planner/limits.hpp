// Explains why a search found no plan: which limits cannot be kept, what the best plans reach without them, and how
// many more nodes a plan would need.
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

/// A search under limits prunes plans that break them, so that it does not know what the best plans reach without
/// limits. Therefore `search` is called again without limits on time and money: for the fastest plan if time is
/// limited, and for the cheapest if money is. Returns a plan found this way that keeps the limits after all; otherwise
/// `error`, extended by what these plans reach. Returns `error` unchanged without Effort::explains_limits, without such
/// limits, under limits on the search's own effort or on node-hours, and when interrupted.
Result<SearchResult> search_beside_limits(const Request& request, const Error& error,
                                          const std::function<Result<SearchResult>(const Request&)>& search);

/// Adds a hint to `error`, of a search that found no plan that fits into memory: the smallest factor (2, 4, ..., 64; up
/// to 8,192 devices) such that a brief search finds a plan when every group has that many times as many nodes. Returns
/// `error` unchanged without Effort::explains_limits, under limits on time, money, devices or the search's own time,
/// with a pinned number of pipelines, in the paper's space, and when interrupted.
Error with_nodes_it_takes(const Request& request, const simulator::Environment& environment, Error error);

}  // namespace sailor::planner
