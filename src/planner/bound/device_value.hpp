// The value of a cluster's devices at given prices: what all pipelines together can process at most.
#pragma once

#include <vector>

#include "planner/search_space.hpp"
#include "planner/stage_prices.hpp"

namespace sailor::planner {

struct DeviceLimits {
  double usd = infinity;  ///< per second
  double nodes = infinity;
};

/// Upper bound of the total value of the devices that a plan may use, where a device of pool p is worth value[p], under
/// SearchSpace::max_gpus and `limits` on nodes and USD per second.
double max_value(const SearchSpace& space, const std::vector<double>& value, const DeviceLimits& limits);

}  // namespace sailor::planner
