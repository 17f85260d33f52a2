// Which member of an elastic training has which rank of a plan.
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

/// A kind of device: its type, a name of the catalogue, and the zone of its node.
using Kind = std::pair<std::string, std::string>;

/// Fills in what members have not said of their devices: that of the rank they want, else of the plan's only kind.
/// Errors: invalid_input, when a plan of several kinds leaves it open.
Result<void> complete_facts(MemberFacts& facts, const Plan& plan);

/// The members by the plan's ranks, as indices; members that the plan has no rank for follow as spares. Where every
/// rank is wanted by exactly one member they get what they want; else tensor-parallel groups go to members of one host,
/// of the stage's kind. Errors: unavailable, with what is missing.
Result<std::vector<std::size_t>> assign_ranks(const Plan& plan, std::span<const MemberFacts> members);

/// What the members' devices are, for a planner: hosts that are alike are one group of nodes. Zones, prices and links
/// are those of `known`.
Cluster cluster_of(std::span<const MemberFacts> members, const Cluster& known);

/// The same for the same devices, whoever they are: "2 x (4 A100-40 in 'east')".
std::string describe_devices(std::span<const MemberFacts> members);

}  // namespace sailor::elastic
