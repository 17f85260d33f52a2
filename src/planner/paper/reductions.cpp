#include <algorithm>

#include "planner/paper/templates.hpp"

namespace sailor::planner {

PaperReductions::PaperReductions(StagePrices& prices) : prices_(prices) {
  for (const DevicePool& pool : prices.space().pools) {
    largest_.push_back(pool.largest_node());
    for (const NodeGroup& group : prices.env().cluster->groups)
      if (group.gpu == pool.gpu) largest_.back() = std::max(largest_.back(), group.gpus_per_node);
  }
}

double PaperReductions::over(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount,
                             bool alone) {
  const int most = std::max(largest_[a], largest_[b]);
  if (!alone || largest_[a] != prices_.space().pools[a].largest_node())
    return prices_.min_reduction(a, b, tensor_parallel, replicas, most, amount);
  // The groups fill one node after the other, the largest first.
  const int ranks = std::min(replicas, most / tensor_parallel);
  const bool one_node = ranks == replicas;
  return prices_.reduction(a, b, ranks, one_node ? 1 : tensor_parallel, replicas, one_node, amount);
}

double PaperReductions::alike(std::size_t pool, int tensor_parallel, int replicas, double amount, bool alone) {
  return replicas > 1 && amount > 0.0 ? over(pool, pool, tensor_parallel, replicas, amount, alone) : 0.0;
}

/// The slowest pair counts.
double PaperReductions::mixed(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount) {
  if (replicas < 2 || amount <= 0.0) return 0.0;
  return std::max(over(a, b, tensor_parallel, replicas, amount, false),
                  over(b, a, tensor_parallel, replicas, amount, false));
}

double PaperReductions::with(std::size_t pool, int tensor_parallel, int replicas, double amount, bool may_be_alike,
                             bool alone) {
  if (replicas < 2 || amount <= 0.0) return 0.0;
  const auto wide = [](auto value) { return static_cast<std::uint64_t>(value); };
  const auto [known, is_new] = known_.try_emplace(
      {wide(pool) << 2 | wide(may_be_alike) << 1 | wide(alone), wide(replicas) << 32 | wide(tensor_parallel), amount},
      0.0);
  if (!is_new) return known->second;
  double least = may_be_alike ? alike(pool, tensor_parallel, replicas, amount, alone) : infinity;
  for (std::size_t q = 0; q < largest_.size(); ++q)
    if (q != pool) least = std::min(least, mixed(pool, q, tensor_parallel, replicas, amount));
  return known->second = least;
}

}  // namespace sailor::planner
