// Metis' layer balancer: which stage holds which layers, in proportion to the speed of the stages (paper section 5;
// model/load_balancer.py).
#pragma once

#include <vector>

namespace sailor::planner::baselines::metis_detail {

/// Boundaries of the stages, stages + 1 of them. Layers may be lost behind the last, and stages empty. costs: shares of
/// the layers, shares: of the stages, which both sum to 1.
std::vector<int> balance_layers(const std::vector<double>& shares, const std::vector<double>& costs);

/// Shares that move load from stages without enough memory to stages with room. Empty when there is too little room.
std::vector<double> shifted_shares(const std::vector<double>& shares, const std::vector<double>& capacity,
                                   const std::vector<double>& demand);

}  // namespace sailor::planner::baselines::metis_detail
