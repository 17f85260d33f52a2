// How much work the bound does, in the units of PricingProblem::work().
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/search_space.hpp"

namespace sailor::planner {

/// Work without labels, and then with them.
struct BoundWork {
  std::uint64_t first = 0;
  std::uint64_t with_labels = 0;
};

/// Chosen so that the bound takes about as long as the search for plans; for many kinds of devices, as long as a user
/// will wait. With labels more is proved for the same work, except where there is one pool.
inline BoundWork usual_work(const SearchSpace& space) {
  const auto devices = static_cast<std::uint64_t>(space.devices());
  switch (space.pools.size()) {
    case 1:
      return {.first = 32'000'000 + 16'000 * devices,
              .with_labels = std::min<std::uint64_t>(160'000'000, 12'000'000 + 64'000 * devices)};
    case 2:
      return {.first = 15'000'000 + 70'000 * devices,
              .with_labels = std::min<std::uint64_t>(1'500'000'000, 250'000'000 + 1'200'000 * devices)};
    case 3:
    case 4:
      return {.first = 10'000'000 + 60'000 * devices,
              .with_labels = std::min<std::uint64_t>(800'000'000, 600'000'000 + 1'000'000 * devices)};
    default:
      return {.first = std::min<std::uint64_t>(800'000'000, 400'000 * devices),
              .with_labels = std::min<std::uint64_t>(700'000'000, 1'600'000 * devices)};
  }
}

/// With `prove`, minutes instead of seconds: a hundred times as much, but ten times where labels price pipelines across
/// pools, which takes longest.
inline BoundWork bound_work(const SearchSpace& space, bool prove) {
  BoundWork work = usual_work(space);
  if (!prove) return work;
  work.first *= 100;
  work.with_labels *= space.pools.size() > 1 ? 10 : 100;
  return work;
}

}  // namespace sailor::planner
