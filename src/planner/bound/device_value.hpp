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

/// Max value of devices at these values each, by pool, under the limits on their number and price.
double max_value(const SearchSpace& space, const std::vector<double>& value, const DeviceLimits& limits);

}  // namespace sailor::planner
