// Nodes that are near each other: switches and blocks, as Slurm's files and `scontrol show topology` describe them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace sailor::slurm {

enum class TopologyKind {
  flat,   ///< nothing is known
  tree,   ///< switches; leaf switches have nodes (topology/tree)
  block,  ///< blocks of nodes that are close to each other (topology/block)
};
std::string_view to_string(TopologyKind kind);

struct Topology {
  TopologyKind kind = TopologyKind::flat;
  std::map<std::string, std::string> leaf_of_node;  ///< its leaf switch or block
};

/// From topology.conf ("SwitchName=s0 Nodes=n[1-4]", "BlockName=b0 Nodes=n[1-4]"), or `scontrol -o show topology`.
/// Other lines are skipped. Errors: invalid_input (a list of nodes that cannot be read).
Result<Topology> parse_topology(std::string_view text);

/// From topology.yaml (Slurm 25.05): the topology of this name, else the cluster's default, else the first. Errors:
/// invalid_input (no YAML, with its line; a list of nodes that cannot be read), unavailable (built without libyaml).
Result<Topology> parse_topology_yaml(std::string_view text, std::string_view name = {});

/// From the files beside slurm.conf, topology.yaml before topology.conf; flat if there is none. Errors: those of
/// reading and parsing.
Result<Topology> load_topology(const std::filesystem::path& folder);

}  // namespace sailor::slurm
