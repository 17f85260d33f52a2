// Which node a rank runs on, as far as a plan alone can say: ranks fill nodes in order (Slurm's block distribution).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// Devices per node by GPU type name.
using DevicesPerNode = std::map<std::string, int>;

/// The node index of every stage of every copy of every pipeline, in the order of the ranks. A tensor-parallel group
/// that would not fit into what is left of a node starts a new one; so does a change of GPU type or zone. A type that
/// is not in `devices` has one device per node. Errors: invalid_input when a tensor-parallel group is larger than a
/// node.
Result<std::vector<int>> nodes_of_stages(const Plan& plan, const DevicesPerNode& devices);
/// The same into `nodes`, whose storage is used again.
Result<void> nodes_of_stages(const Plan& plan, const DevicesPerNode& devices, std::vector<int>& nodes);

/// The node index of every rank: that of its stage.
Result<std::vector<int>> nodes_of_ranks(const Plan& plan, const DevicesPerNode& devices);

}  // namespace sailor
