#include "slurm/query.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <map>

#include "slurm/compat.hpp"

namespace sailor::slurm {

namespace {

/// libslurm's own resources: from 23.02 on its plugins, in every release its threads.
class Session {
 public:
  explicit Session(const std::filesystem::path& configuration) {
    slurm_init(configuration.empty() ? nullptr : configuration.c_str());
  }
  ~Session() { slurm_fini(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

/// `unavailable` when nobody answered, `failure` when slurmctld or the library refused.
tl::unexpected<Error> slurm_error(std::string_view call) {
  const int number = errno;
  const bool silent =
      number < 1000 ||  // of the operating system
      number == SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT ||
      (number >= SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR && number <= SLURMCTLD_COMMUNICATIONS_SHUTDOWN_ERROR);
  if (silent) return fail(ErrorCode::unavailable, slurm_strerror(number));
  return fail(ErrorCode::failure, fmt::format("{}: {}", call, slurm_strerror(number)));
}

std::string text(const char* value) { return value == nullptr ? "" : value; }

std::string join_reason(std::string_view word, const char* reason) {
  return reason == nullptr || *reason == '\0' ? std::string(word) : fmt::format("{}: {}", word, reason);
}

struct Availability {
  NodeState state = NodeState::idle;
  std::string reason;
};

/// Whether a job can have the node, in sinfo's order of what matters most. Powered-down nodes count as they are
/// otherwise: Slurm wakes them. So do PLANNED ones: they are idle until the job they wait for starts.
Availability availability(std::uint64_t state, const char* reason) {
  const std::uint64_t base = state & NODE_STATE_BASE;
  const auto has = [&](std::uint64_t flag) { return (state & flag) != 0; };
  const auto out = [&](std::string_view word) {
    return Availability{NodeState::unavailable, join_reason(word, reason)};
  };
  if (base == NODE_STATE_DOWN) return out(has(NODE_STATE_DRAIN) ? "down, drained" : "down");
  if (base == NODE_STATE_ERROR) return out("error");
  if (base == NODE_STATE_UNKNOWN) return out("state unknown");
  if (has(NODE_STATE_DRAIN)) return out("drained");
  if (has(NODE_STATE_FAIL)) return out("failing");
  if (has(NODE_STATE_NO_RESPOND)) return out("not responding");
  if (has(NODE_STATE_INVALID_REG)) return out("invalid registration");
  if (has(NODE_STATE_MAINT)) return out("in a maintenance reservation");
  if (has(NODE_STATE_RES)) return out("reserved");
  if (has(NODE_STATE_REBOOT_ISSUED)) return out("rebooting");
  if (has(NODE_STATE_POWERING_DOWN)) return out("powering down");
  if (has(compat::blocked_flag)) return out("blocked by an exclusive topology");
  if (base == NODE_STATE_MIXED) return {NodeState::mixed, {}};
  // A completing node is still cleaning up after its job.
  if (base == NODE_STATE_ALLOCATED || has(NODE_STATE_COMPLETING)) return {NodeState::allocated, {}};
  return {NodeState::idle, {}};
}

int cores_of(const node_info_t& node) {
  const int cpus = compat::usable_cpus(node);
  const int threads = std::max<int>(node.threads, 1);
  // CPUs may count threads or cores, as the administrator chose; sockets and cores per socket say which.
  const int cores = std::max<int>(node.sockets, 1) * std::max<int>(node.cores, 1);
  return node.cpus > cores ? std::max(cpus / threads, 1) : cpus;
}

Result<std::vector<Partition>> load_partitions(std::map<std::string, std::vector<std::string>>& partitions_of_node) {
  partition_info_msg_t* raw = nullptr;
  if (slurm_load_partitions(std::time_t{0}, &raw, SHOW_ALL) != SLURM_SUCCESS)
    return slurm_error("reading the partitions");
  const compat::Partitions message(raw);
  std::vector<Partition> partitions;
  for (std::uint32_t i = 0; i < message->record_count; ++i) {
    const partition_info_t& record = message->partition_array[i];
    if (record.name == nullptr) continue;
    Partition partition;
    partition.name = record.name;
    partition.up = record.state_up == PARTITION_UP;
    partition.is_default = (record.flags & PART_FLAG_DEFAULT) != 0;
    if (record.max_time != INFINITE && record.max_time != NO_VAL && record.max_time > 0)
      partition.time_limit = Seconds(60.0 * record.max_time);  // Slurm counts minutes
    if (record.max_nodes != INFINITE && record.max_nodes != NO_VAL && record.max_nodes > 0)
      partition.most_nodes = static_cast<int>(std::min<std::uint32_t>(record.max_nodes, 1U << 20U));
    for (const std::string& node : compat::expand_hosts(record.nodes))
      partitions_of_node[node].push_back(partition.name);
    partitions.push_back(std::move(partition));
  }
  return partitions;
}

Result<std::vector<NodeRecord>> load_nodes(const std::map<std::string, std::vector<std::string>>& partitions_of_node) {
  node_info_msg_t* raw = nullptr;
  // Without SHOW_MIXED a partly used node reads as ALLOCATED. All nodes are asked for: the answer for a single one
  // may be out of date.
  if (slurm_load_node(std::time_t{0}, &raw, SHOW_ALL | SHOW_DETAIL | SHOW_MIXED) != SLURM_SUCCESS)
    return slurm_error("reading the nodes");
  const compat::Nodes message(raw);
  std::vector<NodeRecord> nodes;
  for (std::uint32_t i = 0; i < message->record_count; ++i) {
    const node_info_t& record = message->node_array[i];
    if (record.name == nullptr) continue;  // a hole: a dynamic or hidden node
    if ((record.node_state & NODE_STATE_BASE) == NODE_STATE_FUTURE) continue;
    const Availability available = availability(record.node_state, record.reason);
    NodeRecord node{.name = record.name,
                    .gres = text(record.gres),
                    .cpus = compat::usable_cpus(record),
                    .cores = cores_of(record),
                    .memory_mib = static_cast<std::int64_t>(record.real_memory -
                                                            std::min(record.mem_spec_limit, record.real_memory)),
                    .state = available.state,
                    .state_reason = available.reason,
                    .partitions = {}};
    if (const auto found = partitions_of_node.find(node.name); found != partitions_of_node.end())
      node.partitions = found->second;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace

bool has_libslurm() { return true; }

Result<ControllerAnswer> query_controller(const std::filesystem::path& configuration) {
  const Session session(configuration);
  ControllerAnswer answer;
  slurm_conf_t* raw = nullptr;
  if (slurm_load_ctl_conf(std::time_t{0}, &raw) != SLURM_SUCCESS) return slurm_error("reading the configuration");
  const compat::Configuration settings(raw);
  answer.cluster_name = settings->cluster_name == nullptr ? "slurm" : settings->cluster_name;
  std::map<std::string, std::vector<std::string>> partitions_of_node;
  auto partitions = load_partitions(partitions_of_node);
  if (!partitions) return fail(partitions.error());
  answer.partitions = *std::move(partitions);
  auto nodes = load_nodes(partitions_of_node);
  if (!nodes) return fail(nodes.error());
  answer.nodes = *std::move(nodes);
  return answer;
}

}  // namespace sailor::slurm
