#include "slurm/near_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "core/text.hpp"
#include "slurm/topology.hpp"

namespace sailor::slurm {

namespace {

/// Number of nodes for the job at each leaf switch or in each block, largest first. Empty if some are not known.
std::vector<int> nodes_by_leaf(const Cluster& cluster, const NodesOfJob& job) {
  std::map<std::string, int> counts;
  for (const NodeGroup& group : cluster.usable(split(job.partition, ','), Availability::up)) {
    if (group.gpu != job.device || group.gpus_per_node < job.devices_per_node) continue;
    if (group.switches.size() != static_cast<std::size_t>(group.count)) return {};
    for (const std::string& leaf : group.switches) {
      if (leaf.empty()) return {};
      ++counts[leaf];
    }
  }
  std::vector<int> sizes;
  for (const auto& [leaf, count] : counts) sizes.push_back(count);
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  return sizes;
}

/// Max wait, "MM:SS"; empty: no time to wait.
std::string longest_wait(std::optional<Seconds> time_limit) {
  constexpr Seconds longest(300.0);
  constexpr double share = 0.1;
  const auto wait = static_cast<int>((time_limit ? std::min(*time_limit * share, longest) : longest).value());
  return wait < 1 ? "" : fmt::format("{:02}:{:02}", wait / 60, wait % 60);
}

std::string fewest_switches(const std::vector<int>& sizes, int nodes, std::optional<Seconds> time_limit) {
  std::size_t needed = 0;
  for (int held = 0; needed < sizes.size() && held < nodes; ++needed) held += sizes[needed];
  const std::string wait = longest_wait(time_limit);
  return needed == 0 || needed == sizes.size() || wait.empty() ? "" : fmt::format("{}@{}", needed, wait);
}

/// The largest segment that fits into every block, divides the job's nodes, and holds whole pipelines; 0 if none.
int largest_segment(const std::vector<int>& sizes, int nodes, int pipelines) {
  const int smallest = sizes.back();
  const int of_pipeline = nodes % pipelines == 0 ? nodes / pipelines : 1;
  for (int segment = std::min(nodes, smallest); segment > 1; --segment)
    if (nodes % segment == 0 && segment % of_pipeline == 0) return segment;
  return 0;
}

}  // namespace

NearNodes near_nodes(const Cluster& cluster, const ControllerFacts& facts, const NodesOfJob& job,
                     std::optional<Seconds> time_limit) {
  if (job.nodes < 2) return {};
  const std::vector<int> sizes = nodes_by_leaf(cluster, job);
  if (sizes.size() < 2) return {};
  if (cluster.topology == to_string(TopologyKind::tree))
    return {.switches = fewest_switches(sizes, job.nodes, time_limit), .segment = 0};
  if (cluster.topology == to_string(TopologyKind::block) && facts.at_least(24, 5))
    return {.switches = {}, .segment = largest_segment(sizes, job.nodes, std::max(job.pipelines, 1))};
  return {};
}

}  // namespace sailor::slurm
