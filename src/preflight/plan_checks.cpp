// Checks of a plan against the nodes: which nodes it takes, their names, their memory.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"
#include "preflight/job_check_parts.hpp"
#include "preflight/preflight.hpp"

namespace sailor::preflight {

namespace {

using Kind = std::pair<std::string, std::string>;  // GPU type and zone

bool is_of(const NodeGroup& group, const Need& need) {
  return group.gpu == need.gpu &&
         (need.zone.empty() || group.zone == need.zone ||
          std::find(group.partitions.begin(), group.partitions.end(), need.zone) != group.partitions.end());
}

/// Nodes of a kind by availability.
struct Supply {
  int idle = 0;
  int partly = 0;  // mixed, with free devices
  int busy = 0;
  std::map<std::string, int> out;  // unavailable, by reason
  [[nodiscard]] int up() const { return idle + partly + busy; }
  [[nodiscard]] int unavailable() const {
    int sum = 0;
    for (const auto& [reason, count] : out) sum += count;
    return sum;
  }
  [[nodiscard]] std::string text() const {
    std::vector<std::string> parts{fmt::format("{} idle", idle)};
    if (partly > 0) parts.push_back(fmt::format("{} partly taken", partly));
    if (busy > 0) parts.push_back(fmt::format("{} busy", busy));
    for (const auto& [reason, count] : out)
      parts.push_back(fmt::format("{} {}", count, reason.empty() ? "unavailable" : reason));
    return join(parts, ", ");
  }
};

Supply supply_of(const Need& need, const std::vector<NodeGroup>& groups) {
  Supply supply;
  for (const NodeGroup& group : groups) {
    if (!is_of(group, need)) continue;
    switch (group.state) {
      case NodeState::idle:
        supply.idle += group.count;
        break;
      case NodeState::mixed:
        (group.gpus_free > 0 ? supply.partly : supply.busy) += group.count;
        break;
      case NodeState::allocated:
        supply.busy += group.count;
        break;
      case NodeState::unavailable:
        supply.out[group.state_reason] += group.count;
        break;
    }
  }
  return supply;
}

std::string describe(const Need& need) {
  return fmt::format("{} of {} {}", plural(static_cast<std::size_t>(need.nodes), "node"), need.devices_per_node,
                     need.gpu);
}

/// Source of the memory that a component gets.
std::string origin_of_memory(const slurm::NodeRequest& request) {
  if (!request.memory_per_cpu && !request.memory_per_rank && !request.memory_per_node) return "the partition's default";
  switch (request.memory_reason) {
    case slurm::MemoryReason::site:
      return "as the site file says";
    case slurm::MemoryReason::predicted:
      return "as the plan needs";
    case slurm::MemoryReason::all_there:
    case slurm::MemoryReason::whole_nodes:
      return "all that it may give";
    case slurm::MemoryReason::given:
      break;
  }
  return "as given";
}

/// Compares the memory that a component gets of its nodes with what its ranks need; std::nullopt if either is not
/// known.
std::optional<Check> host_memory_check(const Subject& subject, const SizedComponent& one) {
  Check check{.name = "host memory", .outcome = Outcome::ok, .what = {}, .remedy = {}};
  if (!one.grant) {
    check.outcome = Outcome::fail;
    check.what = one.grant.error().what;
    check.remedy = "Slurm refuses such a job: name what the nodes may give in the site file (memory_per_node_gib)";
    return check;
  }
  const auto& prediction = subject.plan->prediction;
  if (!prediction || prediction->peak_memory <= Bytes(0) || one.grant->memory <= Bytes(0)) return std::nullopt;
  const bool on_gpu = one.request.device_kind == DeviceKind::gpu;
  // On GPUs a checkpoint passes through host memory; it cannot be larger than what the devices hold.
  const Bytes needed =
      slurm::host_memory_of_rank(one.request.device_kind, prediction->peak_memory) * one.component.tasks_per_node;
  check.what =
      fmt::format("{} on each node of {} ({}), {} {} {}", format_bytes(one.grant->memory), one.need.gpu,
                  origin_of_memory(one.request), plural(static_cast<std::size_t>(one.component.tasks_per_node), "rank"),
                  on_gpu                             ? "and a copy of what their devices hold need"
                  : one.component.tasks_per_node > 1 ? "need"
                                                     : "needs",
                  format_bytes(needed));
  // What CPU ranks get beyond their prediction is a reserve.
  const Bytes least = on_gpu ? needed : prediction->peak_memory * one.component.tasks_per_node;
  if (one.grant->memory < least) {
    check.outcome = Outcome::warn;
    check.remedy = on_gpu ? "a checkpoint may not fit beside what else the job holds: try one early in the run"
                          : "the ranks may be killed: plan for more nodes, or for fewer ranks of a node";
  }
  return check;
}

Check device_memory_check(const Subject& subject, const std::vector<Need>& needs) {
  Check check{.name = "memory", .outcome = Outcome::ok, .what = {}, .remedy = {}};
  const Plan& plan = *subject.plan;
  std::optional<double> headroom = subject.answers.memory_headroom;
  std::string peak;
  if (plan.prediction && plan.prediction->peak_memory > Bytes(0)) {
    peak = format_bytes(plan.prediction->peak_memory);
    // The plan does not say which of several kinds of device has the peak.
    if (!headroom && needs.size() == 1) {
      const auto type = subject.gpus.find(needs.front().gpu);
      const auto groups = subject.cluster.usable(subject.job.partitions, Availability::all);
      std::optional<Bytes> least;
      for (const NodeGroup& group : groups)
        if (type && is_of(group, needs.front()))
          least = std::min(least.value_or(device_memory(*type, group)), device_memory(*type, group));
      if (least && *least > Bytes(0)) headroom = 1.0 - plan.prediction->peak_memory / *least;
    }
  }
  if (!headroom) {
    check.outcome = plan.prediction_is_stale ? Outcome::warn : Outcome::not_checked;
    check.what = plan.prediction_is_stale ? "the plan was edited after its memory was predicted"
                                          : "the plan says nothing of memory";
    check.remedy = "predict it with --profile STORE";
    if (const auto& why = subject.answers.not_simulated) {
      check.what = "not predicted: " + why->what;
      check.remedy = why->hint;
    }
    return check;
  }
  const std::string amount = peak.empty() ? "" : fmt::format("{} on the rank that takes most; ", peak);
  if (*headroom < 0.0) {
    check.outcome = Outcome::fail;
    check.what = fmt::format("{}{:.1f}% more than a device has", amount, -*headroom * 100.0);
    check.remedy = "plan again, or take smaller micro-batches or recomputation";
  } else if (*headroom < subject.job.memory_margin) {
    check.outcome = Outcome::warn;
    check.what = fmt::format("{}{:.1f}% of the tightest device stay free, less than {:.1f}%", amount, *headroom * 100.0,
                             subject.job.memory_margin * 100.0);
    check.remedy = "plan again with this --memory-margin, or accept less free memory: a smaller one";
  } else {
    check.what = fmt::format("{}{:.0f}% of the tightest device stay free", amount, *headroom * 100.0);
  }
  return check;
}

}  // namespace

Result<std::vector<Need>> needs_of(const Plan& plan, const Cluster& cluster, const std::vector<std::string>& partitions,
                                   Availability availability) {
  const std::vector<NodeGroup> groups = cluster.usable(partitions, availability);
  const std::vector<PlacementNode> nodes = placement_nodes(groups);
  const auto places = place_on_nodes(plan, nodes);
  if (!places) return fail(places.error());
  std::map<Kind, std::map<int, int>> ranks;  // by kind and node
  const std::vector<RankRole> roles = rank_roles(plan);
  for (std::size_t rank = 0; rank < roles.size(); ++rank) {
    const Stage& stage = stage_of(plan, roles[rank]);
    ++ranks[{stage.gpu, stage.zone}][(*places)[rank].node];
  }
  std::vector<Need> needs;
  for (const Kind& kind : kinds_of(plan)) {
    Need need{.gpu = kind.first,
              .zone = kind.second,
              .nodes = static_cast<int>(ranks[kind].size()),
              .most_ranks = 0,
              .devices_per_node = 0,
              .cpus_per_device = 0,
              .gres_type = {},
              .partitions = {}};
    for (const auto& [node, count] : ranks[kind]) {
      need.most_ranks = std::max(need.most_ranks, count);
      need.devices_per_node = std::max(need.devices_per_node, nodes[static_cast<std::size_t>(node)].devices);
    }
    for (const NodeGroup& group : groups) {
      if (!is_of(group, need)) continue;
      const int cpus = std::max(group.cpus_per_node / std::max(group.gpus_per_node, 1), 1);
      need.cpus_per_device = need.cpus_per_device == 0 ? cpus : std::min(need.cpus_per_device, cpus);
      if (need.gres_type.empty()) need.gres_type = group.gres_type;
      for (const std::string& partition : group.partitions)
        if (std::find(need.partitions.begin(), need.partitions.end(), partition) == need.partitions.end() &&
            std::find(partitions.begin(), partitions.end(), partition) != partitions.end())
          need.partitions.push_back(partition);
    }
    need.cpus_per_device = std::max(need.cpus_per_device, 1);
    needs.push_back(std::move(need));
  }
  return needs;
}

std::vector<Check> check_nodes(const Subject& subject) {
  if (subject.plan == nullptr) return {};
  const std::vector<std::string>& partitions = subject.job.partitions;
  const auto groups = subject.cluster.usable(partitions, Availability::all);
  const auto needs = needs_of(*subject.plan, subject.cluster, partitions, Availability::all);
  if (!needs)
    return {{.name = "nodes",
             .outcome = Outcome::fail,
             .what = needs.error().what,
             .remedy = "choose another partition, or plan for this one"}};
  const bool fits_up = needs_of(*subject.plan, subject.cluster, partitions, Availability::up).has_value();
  const bool fits_now = needs_of(*subject.plan, subject.cluster, partitions, Availability::idle).has_value();
  std::vector<Check> checks;
  bool short_of_any = false;
  for (const Need& need : *needs) {
    const Supply supply = supply_of(need, groups);
    Check check{.name = "nodes",
                .outcome = Outcome::ok,
                .what = fmt::format("{}: {}", describe(need), supply.text()),
                .remedy = {}};
    if (!fits_up && supply.up() < need.nodes) {
      short_of_any = true;
      check.outcome = Outcome::fail;
      check.what = fmt::format("{} needed, {} up: {}", describe(need), supply.up(), supply.text());
      check.remedy = supply.up() == 0 ? "wait until nodes are back, or choose another partition"
                                      : fmt::format("wait until {} back, or plan for what is up with --availability up",
                                                    supply.unavailable() == 1 ? "the node is" : "nodes are");
    } else if (fits_up && !fits_now) {
      check.what += "; the job waits until enough are free";
    }
    checks.push_back(std::move(check));
  }
  if (!fits_up && !short_of_any)
    checks.push_back({.name = "nodes",
                      .outcome = Outcome::fail,
                      .what = needs_of(*subject.plan, subject.cluster, partitions, Availability::up).error().what,
                      .remedy = "plan for what is up with --availability up"});
  return checks;
}

std::vector<Check> check_gres(const Subject& subject) {
  std::vector<Check> checks;
  if (subject.plan != nullptr) {
    const auto needs = needs_of(*subject.plan, subject.cluster, subject.job.partitions, Availability::all);
    for (const auto& [gpu, zone] : kinds_of(*subject.plan)) {
      const auto type = subject.gpus.find(gpu);
      if (!type) {
        checks.push_back(
            {.name = "gres", .outcome = Outcome::fail, .what = type.error().what, .remedy = type.error().hint});
        continue;
      }
      if (type->kind == DeviceKind::cpu) continue;
      std::string name;
      if (needs)
        for (const Need& need : *needs)
          if (need.gpu == gpu && !need.gres_type.empty()) name = need.gres_type;
      if (name.empty())
        checks.push_back({.name = "gres",
                          .outcome = Outcome::not_checked,
                          .what = fmt::format("what Slurm calls {} is not known", gpu),
                          .remedy = {}});
      else
        checks.push_back(
            {.name = "gres", .outcome = Outcome::ok, .what = fmt::format("{} is gpu:{}", gpu, name), .remedy = {}});
    }
  }
  // Nodes that could not be read matter only if nodes are missing.
  const bool enough = subject.plan != nullptr &&
                      needs_of(*subject.plan, subject.cluster, subject.job.partitions, Availability::up).has_value();
  for (const std::string& warning : subject.left_out)
    if (!is_about_reservation(warning))
      checks.push_back(
          {.name = "gres", .outcome = enough ? Outcome::ok : Outcome::warn, .what = warning, .remedy = {}});
  return checks;
}

std::vector<Check> check_memory(const Subject& subject) {
  if (subject.plan == nullptr) return {};
  const auto needs = needs_of(*subject.plan, subject.cluster, subject.job.partitions, Availability::all);
  std::vector<Check> checks{device_memory_check(subject, needs ? *needs : std::vector<Need>{})};
  const auto components = size_job(subject);
  if (!components) return checks;
  for (const SizedComponent& one : *components)
    if (auto check = host_memory_check(subject, one)) checks.push_back(*std::move(check));
  return checks;
}

}  // namespace sailor::preflight
