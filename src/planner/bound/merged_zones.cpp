#include "planner/bound/merged_zones.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace sailor::planner {

namespace {

// Zones are merged by their distances, the closest first. Where the next distance is this much larger than the last
// one, those that are merged so far are a relaxation of their own.
constexpr double much_further = 1.5;

/// By zone, the first zone of those that it is merged with.
using Groups = std::vector<std::size_t>;

SearchSpace merged(const SearchSpace& space, const std::vector<std::string>& zones, const Groups& groups) {
  const auto first_of = [&](const std::string& zone) {
    const auto number = std::find(zones.begin(), zones.end(), zone) - zones.begin();
    return zones[groups[static_cast<std::size_t>(number)]];
  };
  SearchSpace result = space;
  result.pools.clear();
  for (const DevicePool& pool : space.pools) {
    const std::string& zone = first_of(pool.zone);
    const auto same = std::find_if(result.pools.begin(), result.pools.end(), [&](const DevicePool& other) {
      return other.type == pool.type && other.zone == zone;
    });
    if (same == result.pools.end()) {
      result.pools.push_back(pool);
      result.pools.back().zone = zone;
      result.pools.back().merged_zones = {pool.zone};
      continue;
    }
    same->merged_zones.push_back(pool.zone);
    for (const NodeSize& size : pool.nodes) {
      const auto alike = std::find_if(same->nodes.begin(), same->nodes.end(),
                                      [&](const NodeSize& other) { return other.devices == size.devices; });
      if (alike != same->nodes.end())
        alike->nodes += size.nodes;
      else
        same->nodes.push_back(size);
    }
    std::sort(same->nodes.begin(), same->nodes.end(),
              [](const NodeSize& a, const NodeSize& b) { return a.devices > b.devices; });
    same->price = std::min(same->price, pool.price);
    same->memory = std::max(same->memory, pool.memory);
    same->base = std::min(same->base, pool.base);
    for (const int degree : pool.tensor_parallel) {
      auto& degrees = same->tensor_parallel;
      const auto place = std::lower_bound(degrees.begin(), degrees.end(), degree);
      if (place == degrees.end() || *place != degree) degrees.insert(place, degree);
    }
  }
  return result;
}

}  // namespace

std::vector<SearchSpace> merge_zones(StagePrices& prices) {
  const SearchSpace& space = prices.space();
  const std::vector<std::string> zones = space.zones();
  if (zones.size() < 2 || space.is_divided()) return {};
  struct Pair {
    double distance = infinity;  // s
    std::size_t a = 0;
    std::size_t b = 0;
  };
  // Time of a reduction of the whole model between two devices, one in each zone.
  const double amount = std::max(1.0, prices.parameters(0, prices.layers()));
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < zones.size(); ++a)
    for (std::size_t b = a + 1; b < zones.size(); ++b) {
      Pair pair{.a = a, .b = b};
      for (std::size_t p = 0; p < space.pools.size(); ++p)
        for (std::size_t q = 0; q < space.pools.size(); ++q)
          if (space.pools[p].zone == zones[a] && space.pools[q].zone == zones[b])
            pair.distance = std::min(pair.distance, prices.reduction(p, q, 1, 1, 2, false, amount));
      pairs.push_back(pair);
    }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) { return x.distance < y.distance; });
  Groups groups(zones.size());
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  std::vector<SearchSpace> spaces;
  const auto add = [&] {
    SearchSpace space_of_groups = merged(space, zones, groups);
    if (2 * space_of_groups.pools.size() <= space.pools.size() &&
        (spaces.empty() || space_of_groups.pools.size() < spaces.back().pools.size()))
      spaces.push_back(std::move(space_of_groups));
  };
  double last = pairs.front().distance;
  for (const Pair& pair : pairs) {
    if (pair.distance > much_further * last) add();
    last = pair.distance;
    const auto [low, high] = std::minmax(groups[pair.a], groups[pair.b]);
    std::replace(groups.begin(), groups.end(), std::size_t{high}, std::size_t{low});
  }
  add();
  std::reverse(spaces.begin(), spaces.end());
  return spaces;
}

}  // namespace sailor::planner
