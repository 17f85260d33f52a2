// What the checks of a job share; in no other file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "preflight/preflight.hpp"
#include "slurm/accounting.hpp"
#include "slurm/job_amounts.hpp"

namespace sailor::preflight {

/// Time that the job gets: what it asks for, else the shortest that its partitions give. Nothing: no limit.
std::optional<Seconds> time_of(const Subject& subject);

/// Null where Slurm keeps no accounts, or they are not known.
const slurm::Accounting* accounting_of(const Subject& subject);

/// Of the warnings of a reading (Subject::left_out): "reservation 'x' is FLEX: ...", "reservations are not known: ...".
inline bool is_about_reservation(const std::string& warning) { return warning.starts_with("reservation"); }

/// That the job is charged to; empty: not known.
std::string account_of(const Subject& subject);

/// The QOS of the job; empty where accounts are not known, or Slurm would not know one either.
std::string qos_of(const Subject& subject, const slurm::Association* association);

/// A part of the job that is a job for Slurm: what it asks for, and what it gets.
struct SizedComponent {
  Need need;
  slurm::NodeRequest request;
  slurm::JobComponent component;
  const Partition* partition = nullptr;  ///< that it runs in; null: not known
  slurm::NodeSize node;                  ///< of its nodes
  bool whole_nodes = false;
  Result<slurm::NodeGrant> grant;  ///< of each node
  slurm::Tres amounts;             ///< of all of them
};
/// The components that sailor-submit would make. Errors: those of needs_of(), lay_out_job().
Result<std::vector<SizedComponent>> size_job(const Subject& subject);

}  // namespace sailor::preflight
