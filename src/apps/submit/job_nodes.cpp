#include "apps/submit/job_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <span>

#include "core/log.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/job_amounts.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

namespace {

using Kind = std::pair<std::string, std::string>;  // GPU type and zone

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string where(const std::string& partition) {
  return partition.empty() ? "the cluster" : fmt::format("partition '{}'", partition);
}

/// Merges the nodes of two partitions: the job may run in either, but only in one.
void add_choice(Nodes& all, const Nodes& more) {
  if (all.count == 0) {
    all = more;
    all.counts = {{more.partition, more.count}};
    return;
  }
  all.partition += "," + more.partition;
  all.counts.emplace_back(more.partition, more.count);
  all.count = std::max(all.count, more.count);
  all.devices_per_node = std::min(all.devices_per_node, more.devices_per_node);
  all.cpus_per_device = std::min(all.cpus_per_device, more.cpus_per_device);
  all.has_gres_type = all.has_gres_type && more.has_gres_type;
  if (all.gres_type.empty()) all.gres_type = more.gres_type;
}

bool has_zone(const Cluster& cluster, const std::string& zone) {
  return std::any_of(cluster.groups.begin(), cluster.groups.end(),
                     [&](const NodeGroup& group) { return group.zone == zone; });
}

/// The partitions and the zone in which nodes of a kind are searched.
struct Candidates {
  std::vector<std::string> partitions;
  std::string zone;  ///< zone of the cluster that the nodes must be in; empty: any
};

Result<Candidates> candidates_for(const Cluster& cluster, const PartitionChoice& choice, const Kind& kind) {
  const std::string& zone = kind.second;
  Candidates candidates{.partitions = choice.names, .zone = {}};
  if (!zone.empty() && cluster.find_partition(zone) != nullptr) {
    if (!choice.names.empty() && !contains(choice.names, zone))
      return fail(ErrorCode::invalid_input,
                  fmt::format("the plan has {} in partition '{}', which is not among {}", kind.first, zone,
                              join(choice.names, ", ")),
                  "name it with --partition too, or make another plan");
    candidates.partitions = {zone};
  } else if (!zone.empty() && has_zone(cluster, zone)) {
    candidates.zone = zone;
  } else if (!zone.empty() && !choice.by_user) {
    std::vector<std::string> there;
    for (const Partition& partition : cluster.partitions) there.push_back(partition.name);
    std::sort(there.begin(), there.end());
    return fail(ErrorCode::not_found,
                fmt::format("the plan has {}, which is neither a partition nor a zone of cluster {} (partitions: {})",
                            name_of_kind(kind), cluster.name, join_or_none(there)),
                "say which partition has these nodes with --partition NAME, or make a plan for this cluster");
  } else if (!zone.empty()) {
    log_warning("zone '{}' of the plan is not known here: its {} are taken from {} {}, as --partition says", zone,
                kind.first, choice.names.size() == 1 ? "partition" : "partitions", join(choice.names, ", "));
  }
  if (candidates.partitions.empty()) {
    candidates.partitions.emplace_back();
    for (const Partition& partition : cluster.partitions)
      if (partition.is_default) candidates.partitions = {partition.name};
  }
  return candidates;
}

/// Nodes with the device in one partition (empty: all) and one zone (empty: any). Adds the devices that are there to
/// `devices_there`.
Nodes nodes_in(const Cluster& cluster, const std::string& partition, const std::string& zone, const std::string& device,
               std::set<std::string>& devices_there) {
  Nodes nodes;
  nodes.partition = partition;
  nodes.zone = zone;
  int elsewhere = 0;
  for (const NodeGroup& group : cluster.usable(partition, false)) {
    devices_there.insert(zone.empty() ? group.gpu : name_of_kind({group.gpu, group.zone}));
    if (group.gpu != device) continue;
    if (!zone.empty() && group.zone != zone) {
      elsewhere += group.count;
      continue;
    }
    const int cpus = std::max(1, group.cpus_per_node / group.gpus_per_node);
    const bool first = nodes.count == 0;
    nodes.devices_per_node = first ? group.gpus_per_node : std::min(nodes.devices_per_node, group.gpus_per_node);
    nodes.cpus_per_device = first ? cpus : std::min(nodes.cpus_per_device, cpus);
    nodes.count += group.count;
    nodes.has_gres_type = !group.gres_type.empty();
  }
  nodes.gres_type = slurm::gres_type_to_ask_for(cluster, partition, device);
  if (nodes.count > 0 && elsewhere > 0)
    log_warning(
        "{} has {} with {} outside of zone '{}' too, which Slurm does not know: keep them out with "
        "--sbatch-option=--exclude=NODES",
        where(partition), plural(static_cast<std::size_t>(elsewhere), "node"), device, zone);
  return nodes;
}

Result<Nodes> find_nodes_of(const Cluster& cluster, const PartitionChoice& choice, const Kind& kind) {
  const auto candidates = candidates_for(cluster, choice, kind);
  if (!candidates) return fail(candidates.error());
  std::set<std::string> there;
  Nodes found;
  for (const std::string& partition : candidates->partitions) {
    if (!partition.empty()) SAILOR_CHECK(slurm::require_partition(cluster, partition));
    if (const Nodes nodes = nodes_in(cluster, partition, candidates->zone, kind.first, there); nodes.count > 0)
      add_choice(found, nodes);
  }
  if (found.count > 0) return found;
  const std::vector<std::string>& names = candidates->partitions;
  std::string left_out;
  for (const LeftOutNodes& nodes :
       cluster.left_out_of(names.front().empty() ? std::span<const std::string>() : std::span(names)))
    left_out += "; " + nodes.message();
  return fail(ErrorCode::not_found,
              fmt::format("{} has no usable node with {} (it has: {}){}",
                          names.size() == 1 ? where(names.front())
                                            : fmt::format("none of the partitions {}", join(names, ", ")),
                          candidates->zone.empty() ? kind.first : name_of_kind(kind), join_or_none(there), left_out),
              left_out.empty() ? "use another --partition, or another plan" : "");
}

}  // namespace

Result<std::vector<Nodes>> find_nodes(const Cluster& cluster, const PartitionChoice& choice,
                                      const Submission& submission) {
  std::vector<Nodes> found;
  for (std::size_t kind = 0; kind < submission.kinds.size(); ++kind) {
    auto nodes = find_nodes_of(cluster, choice, {submission.devices[kind].name, submission.kinds[kind].second});
    if (!nodes) return fail(nodes.error());
    found.push_back(*std::move(nodes));
  }
  return found;
}

Result<std::string> find_partition(const Cluster* cluster, const PartitionChoice& choice,
                                   const Submission& submission) {
  const std::string& zone = submission.kinds.front().second;
  if (cluster != nullptr && !zone.empty()) {
    const auto candidates = candidates_for(*cluster, choice, {submission.devices.front().name, zone});
    if (!candidates) return fail(candidates.error());
    return join(candidates->partitions, ",");
  }
  // Zones of a plan for a live cluster are partitions.
  if (choice.names.empty() || (!choice.by_user && contains(choice.names, zone))) return zone;
  return join(choice.names, ",");
}

namespace {

/// Why a component of the job would not start in a partition with `count` usable nodes of its kind.
std::optional<Error> problem_of(const Cluster& cluster, const std::string& name, int count, int needed,
                                const slurm::JobComponent& component, const Submission& submission,
                                const std::function<std::string(int, std::size_t)>& needs) {
  const slurm::SbatchRequest& request = submission.request;
  if (needed > count)
    return Error{ErrorCode::unavailable,
                 fmt::format("{} but {} has {} usable", needs(needed, component.kind), where(name), count),
                 "use another --partition, or another plan"};
  const Partition* partition = cluster.find_partition(name);
  if (partition == nullptr) return std::nullopt;
  const int job_nodes = request.elastic ? request.elastic->least : component.nodes + request.spare_nodes;
  if (partition->most_nodes && job_nodes > *partition->most_nodes)
    return Error{ErrorCode::unavailable,
                 fmt::format("{} but {} allows {} per job", needs(job_nodes, component.kind), where(name),
                             *partition->most_nodes),
                 "use another --partition, or another plan"};
  if (partition->time_limit && request.time_limit && *request.time_limit > *partition->time_limit)
    return Error{ErrorCode::invalid_input,
                 fmt::format("time {} is over the limit of {}: {}", slurm::format_time_limit(*request.time_limit),
                             where(name), slurm::format_time_limit(*partition->time_limit)),
                 "use a smaller --time, or another --partition"};
  if (partition->needs_reservation && request.reservation.empty())
    return Error{ErrorCode::unavailable, slurm::reservation_needed(name),
                 "name one with --reservation NAME, or use another --partition"};
  return std::nullopt;
}

}  // namespace

Result<void> check_limits(const Cluster& cluster, const std::vector<Nodes>& nodes, const Submission& submission) {
  const slurm::SbatchRequest& request = submission.request;
  const auto layout = slurm::lay_out_job(submission.plan, request);
  if (!layout) return fail(layout.error());
  const auto needs = [&](int count, std::size_t kind) {
    return fmt::format("{} {} of {} {}", request.elastic ? "--elastic asks for at least" : "the plan needs",
                       plural(static_cast<std::size_t>(count), "node"), request.nodes[kind].devices_per_node,
                       submission.devices[kind].name);
  };
  std::vector<int> needed(nodes.size(), 0);
  for (const slurm::JobComponent& component : layout->components)
    for (std::size_t kind = 0; kind < nodes.size(); ++kind)  // kinds may share nodes
      if (nodes[kind].partition == nodes[component.kind].partition && nodes[kind].zone == nodes[component.kind].zone &&
          submission.devices[kind].name == submission.devices[component.kind].name)
        needed[kind] += request.elastic ? request.elastic->least : component.nodes + request.spare_nodes;
  for (const slurm::JobComponent& component : layout->components) {
    // A partition that cannot take the job is no error if another one can.
    std::vector<Error> problems;
    const auto& counts = nodes[component.kind].counts;
    for (const auto& [name, count] : counts)
      if (auto problem = problem_of(cluster, name, count, needed[component.kind], component, submission, needs))
        problems.push_back(*std::move(problem));
    if (!problems.empty() && problems.size() == counts.size()) return fail(problems.front());
    for (const Error& problem : problems) log_warning("{}", problem.what);
    if (request.elastic && request.elastic->most > nodes[component.kind].count)
      log_warning("--elastic asks for up to {} but {} has {} usable",
                  plural(static_cast<std::size_t>(request.elastic->most), "node"),
                  where(nodes[component.kind].partition), nodes[component.kind].count);
  }
  return {};
}

}  // namespace sailor::apps
