// The parts of a cluster, and the orders in which stages over several zones fill them.
#pragma once

#include <cstddef>
#include <vector>

#include "planner/artifact/search.hpp"

namespace sailor::planner::artifact {

/// A subset of the cluster's zones and GPU types: indices of pools, ascending.
using Part = std::vector<std::size_t>;

/// Parts of the cluster, smaller ones first, the whole last. All subsets for up to five zones and GPU types; for more,
/// one, two or all zones, or types.
std::vector<Part> parts_of(const std::vector<Pool>& pools);

/// Key by which a search tells parts of a cluster apart: types, numbers of devices, links and prices of traffic.
std::vector<double> signature(const Tables& tables, const std::vector<Pool>& pools);

/// Orders in which stages over several zones fill them: indices of pools.
std::vector<std::vector<int>> pool_orders(const std::vector<Pool>& pools);

}  // namespace sailor::planner::artifact
