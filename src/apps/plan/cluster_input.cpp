#include "apps/plan/cluster_input.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "apps/inputs.hpp"
#include "apps/plan/command_line.hpp"
#include "cluster/gpu_counts.hpp"
#include "cluster/node_filter.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "preflight/preflight.hpp"
#include "preflight/system.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/reservations.hpp"

namespace sailor::apps {

std::string planned_profile(const PlanOptions& options) {
  if (options.profile.has()) return *options.profile;
  return are_gpu_counts(*options.gpus) ? "published" : "";
}

PlanOrigin origin_of(const PlanOptions& options, const Cluster& cluster, const std::string& profile_hash) {
  const std::string& model = *options.model;
  // A model of Hugging Face's config.json has its path as its name.
  const bool is_file = model.ends_with(".toml");
  return {.tool = fmt::format("sailor-plan {}", version()),
          .cluster = cluster.origin,
          .partition = *options.partition,
          .profile_store = planned_profile(options),
          .framework = *options.framework,
          .cluster_hash = content_hash(cluster_to_toml(cluster)),
          .profile_hash = profile_hash,
          .model_file = is_file ? std::filesystem::absolute(model).lexically_normal().string() : std::string()};
}

Result<std::optional<ClusterInput>> read_cluster_input(const PlanOptions& options, const Environment& environment,
                                                       const GpuCatalogue& gpus, const Plan* plan) {
  ClusterInput input;
  auto rules = gpu_type_rules(*options.gpu_type, gpus);
  if (!rules) return fail(rules.error());
  if (plan != nullptr)
    for (slurm::GpuRule& rule : rules_of_plan(*plan, gpus)) rules->push_back(std::move(rule));
  auto described = described_cluster(options, gpus);
  if (!described) return fail(described.error());
  if (*described) {
    input.cluster = **std::move(described);
  } else if (options.partition.has()) {
    auto reading = ask_slurm_alone(
        environment, gpus, {.reservation = *options.reservation, .site = *options.site, .rules = *std::move(rules)});
    if (!reading) return fail(reading.error());
    input.cluster = std::move(reading->cluster);
    input.facts = std::move(reading->facts);
    input.left_out = std::move(reading->warnings);
    input.live = true;
  } else {
    return std::nullopt;
  }
  auto site = read_site(options.site, options.gpus, environment, gpus, input.cluster.name);
  if (!site) return fail(site.error());
  input.site = *std::move(site);
  // Prices and zones of a cluster file are complete, unless a site is named.
  if (input.live || options.site.has()) slurm::add_site(input.site, input.cluster);
  if (input.live)
    slurm::keep_nodes_that_satisfy(input.site.launch.constraint, "site " + input.site.name, input.cluster);
  for (const LeftOutNodes& nodes : input.cluster.left_out_of(partitions_of(options.partition)))
    input.left_out.push_back(nodes.message());
  if (!options.reservation.has()) return std::optional<ClusterInput>(std::move(input));
  if (auto used = use_reservation(*options.reservation, partitions_of(options.partition), input.cluster);
      !used && !*options.preflight)
    return fail(used.error());  // with --preflight it is one failed check among others
  if (const std::string problem = slurm::account_problem(input.cluster, *options.reservation, *options.account);
      !problem.empty() && !*options.preflight)
    log_warning("{}", problem);
  return std::optional<ClusterInput>(std::move(input));
}

Result<void> check_live_partitions(const ClusterInput& input, const PlanOptions& options) {
  if (!input.live) return {};
  for (const std::string& warning : input.left_out) log_warning("{}", warning);
  const preflight::Identity identity = preflight::current_identity();
  for (const std::string& name : partitions_of(options.partition)) {
    const bool any_state = availability_of(options) == Availability::all;
    auto partition =
        any_state ? slurm::known_partition(input.cluster, name) : slurm::require_partition(input.cluster, name);
    if (!partition) return fail(partition.error());
    if (const std::string problem = slurm::partition_problem(*partition); !problem.empty()) log_warning("{}", problem);
    if (partition->needs_reservation && !options.reservation.has())
      log_warning("{}: name one with --reservation NAME", slurm::reservation_needed(name));
    // The account of a job need not be known yet.
    if (!options.account.has()) partition->allowed_accounts.clear();
    const std::string problem = preflight::access_problem(*partition, identity, *options.account, *options.qos);
    if (!problem.empty()) log_warning("{}", problem);
  }
  return {};
}

Cluster searched_part(const Cluster& cluster, const planner::Request& request) {
  Cluster part = cluster;
  part.groups = cluster.usable(request.partitions, request.availability);
  for (NodeGroup& group : part.groups) {
    group.state = NodeState::idle;
    group.state_reason.clear();
    group.gpus_free = 0;
  }
  return part.groups.empty() ? cluster : part;
}

void keep_excluded_nodes_of(const Cluster& part, planner::Request& request) {
  std::set<std::string> there;
  for (const NodeGroup& group : part.groups) there.insert(group.nodes.begin(), group.nodes.end());
  std::erase_if(request.pins.excluded_nodes, [&](const std::string& node) { return !there.contains(node); });
}

Cluster without_excluded(const Cluster& part, const planner::Request& request) {
  const std::set<std::string> excluded(request.pins.excluded_nodes.begin(), request.pins.excluded_nodes.end());
  return with_nodes(part, [&](const std::string& node) { return !excluded.contains(node); });
}

}  // namespace sailor::apps
