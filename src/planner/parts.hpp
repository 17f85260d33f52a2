// The parts of a cluster: some of its zones with some of its GPU types.
#pragma once

#include <cstddef>
#include <vector>

namespace sailor::planner {

/// Zone and GPU type of a pool, by any numbers.
struct PoolPlace {
  std::size_t zone = 0;
  std::size_t gpu = 0;
};

/// A subset of the cluster's zones and GPU types: indices of pools, ascending.
using Part = std::vector<std::size_t>;

/// Parts of the cluster, smaller ones first, the whole last. All subsets for up to five zones and GPU types; for more,
/// one, two or all zones, or types.
std::vector<Part> parts_of(const std::vector<PoolPlace>& pools);

}  // namespace sailor::planner
