// The sizes of stages that Metis tries: device groups of powers of two, in the planner's order.
#pragma once

#include <functional>
#include <vector>

namespace sailor::planner::baselines::metis_detail {

/// Visits every way to divide `devices` into `stages` groups: the multisets of powers of two, none smaller than half of
/// devices / stages, in lexicographic order, each in all permutations. With more than 10 stages, small groups of one
/// size stay together in pairs. Ends when visit returns false, and then returns false.
bool visit_device_groups(int devices, int stages, const std::function<bool(const std::vector<int>&)>& visit);

/// Visits all permutations of a multiset once, in the order of A. Williams, "Loopless Generation of Multiset
/// Permutations using a Constant Number of Variables by Prefix Shifts" (SODA 2009), from the non-increasing one. A
/// block is a value.
bool visit_orders(std::vector<std::vector<int>> blocks,
                  const std::function<bool(const std::vector<const std::vector<int>*>&)>& visit);

}  // namespace sailor::planner::baselines::metis_detail
