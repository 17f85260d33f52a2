#include "planner/parts.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace sailor::planner {

namespace {

constexpr std::size_t max_subset_of = 5;  // zones, and GPU types, of which all subsets are parts of the cluster

/// All subsets of `values` where there are few, else single ones, pairs, and all.
std::vector<std::set<std::size_t>> subsets(const std::set<std::size_t>& values) {
  const std::vector<std::size_t> all(values.begin(), values.end());
  std::vector<std::set<std::size_t>> found;
  if (all.size() <= max_subset_of) {
    for (unsigned bits = 1; bits < 1U << all.size(); ++bits) {
      found.emplace_back();
      for (std::size_t i = 0; i < all.size(); ++i)
        if ((bits >> i & 1U) != 0) found.back().insert(all[i]);
    }
    return found;
  }
  for (const std::size_t a : all)
    for (const std::size_t b : all)
      if (a <= b) found.push_back({a, b});
  found.push_back(values);
  return found;
}

}  // namespace

std::vector<Part> parts_of(const std::vector<PoolPlace>& pools) {
  std::set<std::size_t> zones;
  std::set<std::size_t> gpus;
  for (const PoolPlace& pool : pools) {
    zones.insert(pool.zone);
    gpus.insert(pool.gpu);
  }
  std::set<Part> parts;
  for (const auto& some_zones : subsets(zones))
    for (const auto& some_gpus : subsets(gpus)) {
      Part part;
      for (std::size_t p = 0; p < pools.size(); ++p)
        if (some_zones.contains(pools[p].zone) && some_gpus.contains(pools[p].gpu)) part.push_back(p);
      if (!part.empty()) parts.insert(std::move(part));
    }
  std::vector<Part> ordered(parts.begin(), parts.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](const Part& a, const Part& b) { return a.size() < b.size(); });
  return ordered;
}

}  // namespace sailor::planner
