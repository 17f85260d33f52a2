#include <algorithm>

#include "planner/paper/chains.hpp"

namespace sailor::planner {

PaperSums::PaperSums(StagePrices& prices) : prices_(prices) {
  for (const Place& place : prices.space().places) {
    largest_.push_back(place.largest_node());
    for (const NodeGroup& group : prices.env().cluster->groups)
      if (group.gpu == place.gpu) largest_.back() = std::max(largest_.back(), group.gpus_per_node);
  }
}

double PaperSums::over(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount, bool alone) {
  const int most = std::max(largest_[a], largest_[b]);
  if (!alone || largest_[a] != prices_.space().places[a].largest_node())
    return prices_.least_reduction(a, b, tensor_parallel, replicas, most, amount);
  // One group after the other into nodes, the largest first.
  const int ranks = std::min(replicas, most / tensor_parallel);
  const bool one_node = ranks == replicas;
  return prices_.reduction(a, b, ranks, one_node ? 1 : tensor_parallel, replicas, one_node, amount);
}

double PaperSums::alike(std::size_t place, int tensor_parallel, int replicas, double amount, bool alone) {
  return replicas > 1 && amount > 0.0 ? over(place, place, tensor_parallel, replicas, amount, alone) : 0.0;
}

/// The slowest pair counts.
double PaperSums::mixed(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount) {
  if (replicas < 2 || amount <= 0.0) return 0.0;
  return std::max(over(a, b, tensor_parallel, replicas, amount, false),
                  over(b, a, tensor_parallel, replicas, amount, false));
}

double PaperSums::with(std::size_t place, int tensor_parallel, int replicas, double amount, bool may_be_alike,
                       bool alone) {
  if (replicas < 2 || amount <= 0.0) return 0.0;
  double least = may_be_alike ? alike(place, tensor_parallel, replicas, amount, alone) : never;
  for (std::size_t q = 0; q < largest_.size(); ++q)
    if (q != place) least = std::min(least, mixed(place, q, tensor_parallel, replicas, amount));
  return least;
}

}  // namespace sailor::planner
