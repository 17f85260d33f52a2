// libslurm's interface from 22.05 to 26.05 as one. Only slurm/*.cpp include this: the headers of a release fit the
// library of that release only, so Sailor is built once per Slurm release.
//
// What changed in the part that Sailor uses: List became list_t* and hostlist_t became hostlist_t* (23.02, 23.11:
// `auto`); slurm_get_errno() went (24.11: errno, which it always returned); slurm_free_ctl_conf() became
// slurm_free_conf() (26.05); cpus_efctv came (22.05) and BLOCKED nodes (25.05).
#pragma once

// Empty where there is no Slurm: the test that every header compiles alone runs everywhere.
#if __has_include(<slurm/slurm.h>)

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace sailor::slurm::compat {

inline void free_configuration(slurm_conf_t* configuration) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
  slurm_free_conf(configuration);
#else
  slurm_free_ctl_conf(configuration);
#endif
}

/// CPUs that jobs get: those kept for the system (CoreSpecCount) are taken off.
template <class Node>
int usable_cpus(const Node& node) {
  if constexpr (requires { node.cpus_efctv; }) {
    if (node.cpus_efctv != 0 && node.cpus_efctv < node.cpus) return node.cpus_efctv;
  }
  return node.cpus;
}

/// Node flags as a number that has every bit this header knows; 0 for those of other releases.
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

/// Messages from slurmctld are freed by a function each.
template <class Message, void (*Free)(Message*)>
struct Deleter {
  void operator()(Message* message) const { Free(message); }
};
using Nodes = std::unique_ptr<node_info_msg_t, Deleter<node_info_msg_t, slurm_free_node_info_msg>>;
using Partitions = std::unique_ptr<partition_info_msg_t, Deleter<partition_info_msg_t, slurm_free_partition_info_msg>>;
using Configuration = std::unique_ptr<slurm_conf_t, Deleter<slurm_conf_t, free_configuration>>;

}  // namespace sailor::slurm::compat

#endif
