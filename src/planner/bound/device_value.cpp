#include "planner/bound/device_value.hpp"

#include <algorithm>
#include <utility>

namespace sailor::planner {

double max_value(const SearchSpace& space, const std::vector<double>& value, const DeviceLimits& limits) {
  const auto fill = [&](double left, auto price_of) {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t p = 0; p < value.size(); ++p) {
      const double price = price_of(p);
      order.emplace_back(price > 0.0 ? value[p] / price : infinity, p);
    }
    std::sort(order.rbegin(), order.rend());
    double sum = 0.0;
    for (const auto& [rate, p] : order) {
      const double price = price_of(p);
      double devices = space.pools[p].devices();
      if (price > 0.0) devices = std::min(devices, std::max(left, 0.0) / price);
      sum += devices * value[p];
      left -= devices * price;
    }
    return sum;
  };
  double min_value = 0.0;
  for (std::size_t p = 0; p < value.size(); ++p) min_value += value[p] * space.pools[p].devices();
  if (space.max_gpus) min_value = std::min(min_value, fill(*space.max_gpus, [](std::size_t) { return 1.0; }));
  if (limits.nodes < infinity)
    min_value =
        std::min(min_value, fill(limits.nodes, [&](std::size_t p) { return 1.0 / space.pools[p].largest_node(); }));
  if (limits.usd < infinity)
    min_value =
        std::min(min_value, fill(limits.usd, [&](std::size_t p) { return space.pools[p].price.value() / 3600.0; }));
  return min_value;
}

}  // namespace sailor::planner
