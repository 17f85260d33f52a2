// Reservations of a cluster, for a job that names one. No Slurm needed here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"

namespace sailor::slurm {

/// The reservation that a user named, if it is not over and, as far as is known, takes jobs of this user. `account`:
/// that the job is charged to; empty: not known. Errors: not_found, with the known names; unavailable, when it is over,
/// has no nodes, or is kept for others.
Result<Reservation> require_reservation(const Cluster& cluster, std::string_view name, const std::string& user,
                                        const std::string& account, std::int64_t now_unix_s);

/// What a reservation has of a cluster. Errors: unavailable, when that is nothing in any of the partitions (all, if
/// there are none).
Result<Cluster> part_of(const Cluster& cluster, const Reservation& reservation,
                        const std::vector<std::string>& partitions);

}  // namespace sailor::slurm
