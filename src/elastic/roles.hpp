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

/// Plan of the epoch before, and the ranks that the members had in it.
struct EpochBefore {
  const Plan& plan;
  std::vector<int> ranks;  ///< by member; -1: none. Ranks beyond the plan were spare
};

/// Indices of the members by rank of the plan; spare members, for which the plan has no rank, follow. If every rank is
/// wanted by exactly one member, they get what they want; else each tensor-parallel group goes to members on one host,
/// of the stage's kind. Where `before` is given and has a group of the same stage on a host, that group stays there,
/// best in the same pipeline, so that its state is not moved; ranks that are gone are replaced by members on that host
/// that had none. Errors: unavailable, with what is missing.
Result<std::vector<std::size_t>> assign_ranks(const Plan& plan, std::span<const MemberFacts> members,
                                              const EpochBefore* before = nullptr);

/// The members' devices as a cluster, for a planner: hosts that are alike form one group of nodes. Zones, prices and
/// links are those of `known`.
Cluster cluster_of(std::span<const MemberFacts> members, const Cluster& known);

/// The members that would remain after possible losses: of each host, then of each process. Losses that leave the same
/// devices count once; those that leave fewer than `min_ranks` members, or none, are left out. Losses of processes are
/// added only while there are fewer than `most` entries; losses of hosts are not limited.
std::vector<std::vector<MemberFacts>> devices_after_losses(const std::vector<MemberFacts>& members, int min_ranks,
                                                           std::size_t most);

/// Text that is the same for the same devices, whichever members have them: "2 x (4 A100-40 in 'east')".
std::string describe_devices(std::span<const MemberFacts> members);

}  // namespace sailor::elastic
