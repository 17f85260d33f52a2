#include "elastic/slow_ranks.hpp"

#include <algorithm>

namespace sailor::elastic {

namespace {

constexpr double slow_ratio = 1.3;  // above the usual differences between shared nodes
constexpr int looks_until_slow = 5;

}  // namespace

std::vector<SlowRank> SlowRanks::look(const Plan& plan, const std::map<int, Seconds>& busy) {
  const std::vector<RankRole> roles = rank_roles(plan);
  const auto role_of = [&](int rank) -> const RankRole& { return roles[static_cast<std::size_t>(rank)]; };
  std::map<int, double> times;  // s per sequence, by rank
  for (const auto& [rank, time] : busy) {
    if (rank < 0 || rank >= plan.ranks() || time <= Seconds(0)) continue;
    const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(role_of(rank).pipeline_entry)];
    times[rank] = time.value() / (static_cast<double>(pipeline.micro_batches) * plan.micro_batch_of(pipeline));
  }
  std::vector<SlowRank> slow;
  for (const auto& [rank, own] : times) {
    if (named_.contains(rank)) continue;
    std::vector<double> peers;
    for (const auto& [other, time] : times)
      if (other != rank && stage_of(plan, role_of(other)) == stage_of(plan, role_of(rank))) peers.push_back(time);
    if (peers.empty()) continue;
    std::nth_element(peers.begin(), peers.begin() + static_cast<std::ptrdiff_t>(peers.size() / 2), peers.end());
    const double ratio = own / peers[peers.size() / 2];
    int& looks = looks_[rank];
    looks = ratio > slow_ratio ? looks + 1 : 0;
    if (looks < looks_until_slow) continue;
    named_.insert(rank);
    slow.push_back({.rank = rank, .times_its_peers = ratio});
  }
  return slow;
}

void SlowRanks::begin_epoch() {
  looks_.clear();
  named_.clear();
}

}  // namespace sailor::elastic
