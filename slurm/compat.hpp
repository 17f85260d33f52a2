// One interface to libslurm from 22.05 to 26.05. Only slurm/*.cpp include this: the headers of a release fit the
// library of that release only, so Sailor is built once per Slurm release. Tested with 22.05.8, 24.11.5 and
// 26.05.5 (tests/slurm); tests/slurm/compile_with_headers.sh compiles against any other release's headers.
//
// Changes in the part that Sailor uses: List became list_t* and hostlist_t became hostlist_t* (23.02, 23.11: `auto`); a
// GRES in a job's description is spelled gres/gpu, no longer gres:gpu (23.11); slurm_get_errno() was removed (24.11:
// use errno, which it always returned); the topology became private to its plugin (24.11: ask scontrol) and
// slurm_load_topo() takes another argument (25.05); the allocated part of a node is in its record instead of behind
// slurm_get_select_nodeinfo() (25.05); slurm_free_ctl_conf() became slurm_free_conf() (26.05); cpus_efctv was added
// (22.05), and BLOCKED nodes (by 24.11).
#pragma once

// Empty without Slurm, so that the test that every header compiles alone runs everywhere.
#if __has_include(<slurm/slurm.h>)

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sailor::slurm::compat {

inline void free_configuration(slurm_conf_t* configuration) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
  slurm_free_conf(configuration);
#else
  slurm_free_ctl_conf(configuration);
#endif
}

/// CPUs that jobs can use: all except those reserved for the system (CoreSpecCount).
template <class Node>
int usable_cpus(const Node& node) {
  if constexpr (requires { node.cpus_efctv; }) {
    if (node.cpus_efctv != 0 && node.cpus_efctv < node.cpus) return node.cpus_efctv;
  }
  return node.cpus;
}

/// Node flag BLOCKED; 0 if the header of this release does not have it.
#ifdef NODE_STATE_BLOCKED
constexpr std::uint64_t blocked_flag = NODE_STATE_BLOCKED;
#else
constexpr std::uint64_t blocked_flag = 0;
#endif

/// "gh[1-2],a1" -> {"gh1", "gh2", "a1"}
inline std::vector<std::string> expand_hosts(const char* expression) {
  std::vector<std::string> names;
  if (expression == nullptr) return names;
  const auto list = slurm_hostlist_create(expression);
  if (list == nullptr) return names;
  while (char* name = slurm_hostlist_shift(list)) {
    names.emplace_back(name);
    std::free(name);  // NOLINT: Slurm says so
  }
  slurm_hostlist_destroy(list);
  return names;
}

/// The part of a node that is allocated to jobs.
struct Usage {
  int cpus = 0;
  std::uint64_t memory_mib = 0;
};
inline Usage usage_of(const node_info_t& node) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
  return {node.alloc_cpus, node.alloc_memory};
#else
  std::uint16_t cpus = 0;
  std::uint64_t memory = 0;
  if (node.select_nodeinfo != nullptr) {
    slurm_get_select_nodeinfo(node.select_nodeinfo, SELECT_NODEDATA_SUBCNT, NODE_STATE_ALLOCATED, &cpus);
    slurm_get_select_nodeinfo(node.select_nodeinfo, SELECT_NODEDATA_MEM_ALLOC, NODE_STATE_ALLOCATED, &memory);
  }
  return {cpus, memory};
#endif
}

/// The leaf switch of each node; std::nullopt if the library does not give access to the topology. Empty: there are no
/// switches, or slurmctld does not report them.
template <class Message = topo_info_response_msg_t>
std::optional<std::map<std::string, std::string>> leaf_switches() {
  // 24.11 still has the array, but fills only a plugin's data beside it.
  if constexpr (
      requires(Message & known) { known.topo_array; } && !requires(Message & known) { known.topo_info; }) {
    std::map<std::string, std::string> leaves;
    Message* message = nullptr;
    if (slurm_load_topo(&message) != SLURM_SUCCESS || message == nullptr) return leaves;
    for (std::uint32_t i = 0; i < message->record_count; ++i) {
      const auto& entry = message->topo_array[i];
      if (entry.level != 0 || entry.name == nullptr) continue;
      for (std::string& node : expand_hosts(entry.nodes)) leaves.emplace(std::move(node), entry.name);
    }
    slurm_free_topo_info_msg(message);
    return leaves;
  } else {
    return std::nullopt;
  }
}

/// Name of GPUs in job_desc_msg_t::tres_per_node, before their type and number.
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
constexpr const char* gpu_of_job = "gres/gpu";
#else
constexpr const char* gpu_of_job = "gres:gpu";
#endif

// Bits of slurmctld's AccountingStorageEnforce, which no installed header declares.
constexpr unsigned enforce_associations = 0x0001;
constexpr unsigned enforce_limits = 0x0002;
constexpr unsigned enforce_qos = 0x0008;
constexpr unsigned enforce_safely = 0x0010;

/// DefMemPerGPU of slurm.conf; 0: none.
template <class Configuration>
double default_memory_per_gpu_mib(const Configuration& settings) {
  double found = 0.0;
  if constexpr (requires { slurm_list_iterator_create(settings.job_defaults_list); }) {
    if (settings.job_defaults_list == nullptr) return found;
    const auto iterator = slurm_list_iterator_create(settings.job_defaults_list);
    while (const auto* entry = static_cast<const job_defaults_t*>(slurm_list_next(iterator)))
      if (entry->type == JOB_DEF_MEM_PER_GPU) found = static_cast<double>(entry->value);
    slurm_list_iterator_destroy(iterator);
  }
  return found;
}

/// Each type of message from slurmctld has its own function that frees it.
template <class Message, void (*Free)(Message*)>
struct Deleter {
  void operator()(Message* message) const { Free(message); }
};
using Nodes = std::unique_ptr<node_info_msg_t, Deleter<node_info_msg_t, slurm_free_node_info_msg>>;
using Partitions = std::unique_ptr<partition_info_msg_t, Deleter<partition_info_msg_t, slurm_free_partition_info_msg>>;
using Reservations = std::unique_ptr<reserve_info_msg_t, Deleter<reserve_info_msg_t, slurm_free_reservation_info_msg>>;
using Configuration = std::unique_ptr<slurm_conf_t, Deleter<slurm_conf_t, free_configuration>>;

}  // namespace sailor::slurm::compat

#endif
