// A key that tells parts of a cluster apart, and the orders in which stages over several zones fill them.
#pragma once

#include <vector>

#include "planner/artifact/search.hpp"

namespace sailor::planner::artifact {

/// Key by which a search tells parts of a cluster apart: types, numbers of devices, links and prices of traffic.
std::vector<double> signature(const Tables& tables, const std::vector<Pool>& pools);

/// Orders in which stages over several zones fill them: indices of pools.
std::vector<std::vector<int>> pool_orders(const std::vector<Pool>& pools);

}  // namespace sailor::planner::artifact
