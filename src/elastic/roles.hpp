// Assigns the ranks of a plan to the members of an elastic training.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "runtime/sockets/coordinator.hpp"

namespace sailor::elastic {

using runtime::MemberFacts;

/// A kind of device: its type (a name of the catalogue) and the zone of its node.
using Kind = std::pair<std::string, std::string>;

/// Fills in what a member has not said of its device: from the rank that it wants, else from the only kind of the plan.
/// Errors: invalid_input, when a plan of several kinds leaves it open.
Result<void> complete_facts(MemberFacts& facts, const Plan& plan);

/// Indices of the members by rank of the plan; spare members, for which the plan has no rank, follow. If every rank is
/// wanted by exactly one member, they get what they want; else each tensor-parallel group goes to members on one host,
/// of the stage's kind. Errors: unavailable, with what is missing.
Result<std::vector<std::size_t>> assign_ranks(const Plan& plan, std::span<const MemberFacts> members);

/// The members' devices as a cluster, for a planner: hosts that are alike form one group of nodes. Zones, prices and
/// links are those of `known`.
Cluster cluster_of(std::span<const MemberFacts> members, const Cluster& known);

/// Text that is the same for the same devices, whichever members have them: "2 x (4 A100-40 in 'east')".
std::string describe_devices(std::span<const MemberFacts> members);

}  // namespace sailor::elastic
