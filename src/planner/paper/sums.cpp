#include <algorithm>
#include <bit>

#include "planner/paper/chains.hpp"

namespace sailor::planner {

PaperSums::PaperSums(StagePrices& prices) : prices_(prices) {
  for (const Place& place : prices.space().places) {
    largest_.push_back(place.largest_node());
    for (const NodeGroup& group : prices.env().cluster->groups)
      if (group.gpu == place.gpu) largest_.back() = std::max(largest_.back(), group.gpus_per_node);
  }
}

std::size_t PaperSums::KeyHash::operator()(const Key& key) const {
  const std::uint64_t mixed =
      (key.where ^ std::bit_cast<std::uint64_t>(key.amount) * 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL;
  return mixed ^ mixed >> 32;
}

double PaperSums::over(std::size_t a, std::size_t b, int tensor_parallel, int replicas, double amount, bool alone) {
  const Key key{static_cast<std::uint64_t>(a) << 48 | static_cast<std::uint64_t>(b) << 36 |
                    static_cast<std::uint64_t>(tensor_parallel) << 28 | static_cast<std::uint64_t>(replicas) << 1 |
                    static_cast<std::uint64_t>(alone),
                amount};
  const auto [entry, is_new] = known_.try_emplace(key, never);
  double& least = entry->second;
  if (!is_new) return least;
  const int most = std::max(largest_[a], largest_[b]);
  if (alone && largest_[a] == prices_.space().places[a].largest_node()) {
    // One group after the other into nodes, the largest first.
    const int ranks = std::min(replicas, most / tensor_parallel);
    const bool one_node = ranks == replicas;
    return least = prices_.reduction(a, b, ranks, one_node ? 1 : tensor_parallel, replicas, one_node, amount);
  }
  // `ranks` groups of the stage on the node that has most of them, where `busy` ranks compute.
  for (int ranks = 1; ranks <= std::min(most / tensor_parallel, replicas); ++ranks) {
    int before = 0;
    for (int busy = ranks * tensor_parallel; busy <= most; ++busy) {
      const int rings = (busy + ranks - 1) / ranks;
      if (rings != before) least = std::min(least, prices_.reduction(a, b, ranks, rings, replicas, false, amount));
      before = rings;
    }
    if (a == b && ranks == replicas) least = std::min(least, prices_.reduction(a, b, ranks, 1, replicas, true, amount));
  }
  return least;
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
