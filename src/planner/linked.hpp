// Check that devices can be used together.
#pragma once

#include <string>

#include "planner/stage_prices.hpp"

namespace sailor::planner {

/// "60 of 64 GPUs cannot be used together: no link between two nodes of H200-141 is known ..." if devices of the search
/// space are not joined by links that were measured, stated or may be estimated; empty if all are.
std::string not_linked(StagePrices& prices);

}  // namespace sailor::planner
