// Metis' layer balancer: assigns layers to stages in proportion to the speed of the stages (paper section 5;
// model/load_balancer.py).
#pragma once

#include <vector>

namespace sailor::planner::baselines::metis_detail {

/// Boundaries of the stages, stages + 1 of them. Layers after the last boundary may be lost, and stages may be empty.
/// `shares` are those of the stages, `costs` the shares of the layers; both sum to 1.
std::vector<int> balance_layers(const std::vector<double>& shares, const std::vector<double>& costs);

/// Shares that move load from stages with too little memory to stages with room. Empty if there is too little room.
std::vector<double> shifted_shares(const std::vector<double>& shares, const std::vector<double>& capacity,
                                   const std::vector<double>& demand);

}  // namespace sailor::planner::baselines::metis_detail
