// Reservations of a cluster, for a job that names one. No Slurm needed here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"

namespace sailor::slurm {

/// Refuses an invalid name, and several ("a,b"): jobs get the whole nodes of one reservation. Errors: invalid_input.
Result<void> check_reservation_name(std::string_view name);

/// Whether a reservation takes jobs of an account. `accounts`: the account of the job, then its ancestors: a
/// reservation for an account is also one for those below.
bool takes_accounts(const Reservation& reservation, const std::vector<std::string>& accounts);

/// The reservation that a user named, if it is not over and, as far as is known, takes jobs of this user. `accounts`:
/// as above; empty: not known, not checked. Errors: invalid_input (invalid name); not_found, with the known names;
/// unavailable, when it is over, has no nodes, or is kept for others.
Result<Reservation> require_reservation(const Cluster& cluster, std::string_view name, const std::string& user,
                                        const std::vector<std::string>& accounts, std::int64_t now_unix_s);

/// Warning if the reservation names other accounts, and the ancestors of this account are not known; empty: none.
std::string account_problem(const Cluster& cluster, std::string_view reservation, const std::string& account);

/// The part of a cluster that a reservation has. Errors: unavailable, if it has no usable node in any of the partitions
/// (all partitions, if the list is empty).
Result<Cluster> part_of(const Cluster& cluster, const Reservation& reservation,
                        const std::vector<std::string>& partitions);

}  // namespace sailor::slurm
