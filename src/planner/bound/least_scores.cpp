#include "planner/bound/least_scores.hpp"

#include <algorithm>
#include <numeric>

#include "planner/bound/device_value.hpp"

namespace sailor::planner {

LeastScores least_scores(PricingProblem& pricing, const SearchSpace& space, int global_batch) {
  const double batch = global_batch;
  std::vector<double> usd;
  for (const DevicePool& pool : space.pools) usd.push_back(pool.price.value() / 3600.0);
  const std::vector<double> rates = pricing.fluid_rates();
  if (rates.empty()) return {};
  const double value_per_rate = pricing.min_price_per_sequence(rates);
  LeastScores least{.time = batch * value_per_rate / max_value(space, rates, {})};
  if (*std::min_element(usd.begin(), usd.end()) <= 0.0) return least;
  least.usd = batch * pricing.min_price_per_sequence(usd);
  std::vector<std::size_t> order(space.pools.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return rates[a] * usd[b] > rates[b] * usd[a]; });
  double spent = 0.0;
  double value = 0.0;
  double lowest = infinity;
  for (const std::size_t p : order) {
    spent += usd[p] * space.pools[p].devices();
    value += rates[p] * space.pools[p].devices();
    lowest = std::min(lowest, spent / (value * value));
  }
  const double time_per_value = batch * value_per_rate;
  least.product = std::max(lowest * time_per_value * time_per_value, least.time * least.usd);
  return least;
}

}  // namespace sailor::planner
