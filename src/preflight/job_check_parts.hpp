// Helpers that only the checks of a job share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "preflight/preflight.hpp"
#include "slurm/accounting.hpp"
#include "slurm/job_amounts.hpp"

namespace sailor::preflight {

/// Time that the job gets: what it requests, else the shortest that its partitions give. std::nullopt: no limit.
std::optional<Seconds> time_of(const Subject& subject);

/// Null if Slurm keeps no accounts, or they are not known.
const slurm::Accounting* accounting_of(const Subject& subject);

/// Whether a warning in Subject::left_out is about reservations: "reservation 'x' is FLEX: ...", "reservations are not
/// known: ...".
inline bool is_about_reservation(const std::string& warning) { return warning.starts_with("reservation"); }

/// Account that the job is charged to; empty: not known.
std::string account_of(const Subject& subject);

/// The QOS of the job; empty if accounts are not known, or Slurm would not know one either.
std::string qos_of(const Subject& subject, const slurm::Association* association);

/// A part of the job that is a job for Slurm: what it requests, and what it gets.
struct SizedComponent {
  Need need;
  slurm::NodeRequest request;
  slurm::JobComponent component;
  const Partition* partition = nullptr;  ///< partition that it runs in; null: not known
  slurm::NodeSize node;                  ///< size of its nodes
  bool whole_nodes = false;
  Result<slurm::NodeGrant> grant;  ///< grant for each node
  slurm::Tres amounts;             ///< amounts of all nodes together
};
/// The components that sailor-submit would make. Errors: those of needs_of(), lay_out_job().
Result<std::vector<SizedComponent>> size_job(const Subject& subject);

}  // namespace sailor::preflight
