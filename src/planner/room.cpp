// Devices and nodes of a search space, and how many nodes a plan takes of it.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "plan/cluster_nodes.hpp"
#include "plan/node_placement.hpp"
#include "planner/search_space.hpp"

namespace sailor::planner {

int DevicePool::devices() const {
  int sum = 0;
  for (const NodeSize& size : nodes) sum += size.devices * size.nodes;
  return sum;
}

int DevicePool::groups(int degree) const {
  int sum = 0;
  for (const NodeSize& size : nodes) sum += size.devices / degree * size.nodes;
  return sum;
}

int SearchSpace::devices() const {
  int sum = 0;
  for (const DevicePool& pool : pools) sum += pool.devices();
  return sum;
}

std::vector<std::string> SearchSpace::zones() const {
  std::vector<std::string> zones;
  for (const DevicePool& pool : pools)
    if (std::find(zones.begin(), zones.end(), pool.zone) == zones.end()) zones.push_back(pool.zone);
  return zones;
}

bool SearchSpace::allows(std::size_t type, int tensor_parallel, int micro_batch) const {
  for (const auto& [degree, sizes] : micro_batches_of[type])
    if (degree == tensor_parallel) return std::binary_search(sizes.begin(), sizes.end(), micro_batch);
  return false;
}

namespace {

/// By placement on the nodes themselves, which keeps the groups of context and expert parallelism together.
std::optional<int> nodes_of_divided(const Plan& plan, const SearchSpace& space) {
  const auto places = place_on_nodes(plan, placement_nodes(space.nodes));
  if (!places) return std::nullopt;
  std::set<int> nodes;
  for (const RankPlace& place : *places) nodes.insert(place.node);
  return static_cast<int>(nodes.size());
}

}  // namespace

std::optional<int> nodes_needed(const Plan& plan, const SearchSpace& space) {
  if (space.is_divided()) return nodes_of_divided(plan, space);
  int total = 0;
  std::size_t placed = 0;
  std::size_t all = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    all += pipeline.stages.size() * static_cast<std::size_t>(pipeline.count);
  std::vector<int> free;
  for (const DevicePool& pool : space.pools) {
    const auto here = [&](const Stage& stage) { return stage.gpu == pool.gpu && stage.zone == pool.zone; };
    std::set<int> degrees;
    std::int64_t devices = 0;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages) {
        if (!here(stage)) continue;
        placed += static_cast<std::size_t>(pipeline.count);
        devices += std::int64_t{stage.tensor_parallel} * pipeline.count;
        degrees.insert(stage.tensor_parallel);
      }
    if (devices == 0) continue;
    // Where each degree divides the next one, and the largest degree the nodes, no order leaves gaps: of two nodes that
    // have less room than the group, the later one's smallest group would have gone to the earlier one.
    degrees.insert(pool.largest_node());
    int before = 1;
    const bool divide = std::all_of(degrees.begin(), degrees.end(),
                                    [&](int degree) { return degree % std::exchange(before, degree) == 0; });
    if (divide && pool.nodes.size() == 1) {
      const NodeSize& size = pool.nodes.front();
      const std::int64_t nodes = (devices + size.devices - 1) / size.devices;
      if (nodes > size.nodes || *degrees.rbegin() > size.devices) return std::nullopt;
      total += static_cast<int>(nodes);
      continue;
    }
    free.clear();
    for (const NodeSize& size : pool.nodes) free.insert(free.end(), static_cast<std::size_t>(size.nodes), size.devices);
    const std::vector<int> empty = free;
    std::map<int, std::size_t> from;  // by degree: no node before this one has room
    for (const Pipeline& pipeline : plan.pipelines)
      for (int copy = 0; copy < pipeline.count; ++copy)
        for (const Stage& stage : pipeline.stages) {
          if (!here(stage)) continue;
          std::size_t& node = from[stage.tensor_parallel];
          while (node < free.size() && free[node] < stage.tensor_parallel) ++node;
          if (node == free.size()) return std::nullopt;
          free[node] -= stage.tensor_parallel;
        }
    for (std::size_t node = 0; node < free.size(); ++node) total += free[node] < empty[node] ? 1 : 0;
  }
  if (placed != all) return std::nullopt;
  return total;
}

}  // namespace sailor::planner
