// Compares limits of associations, accounts and QOS with a job, as slurmctld does. A pure function: its callers say
// what the job takes, and which limits there are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "preflight/preflight.hpp"
#include "slurm/accounting.hpp"
#include "slurm/limits.hpp"

namespace sailor::preflight {

/// A part of the job that is a job for Slurm: all of it, or a component of a heterogeneous one.
struct CountedComponent {
  slurm::Tres amounts;
  /// QOS whose limits count, the first that sets one: that of the partition, then of the job (the other way round with
  /// OverPartQOS).
  std::vector<const slurm::QosLimits*> qos;
};

struct LimitQuestion {
  std::vector<CountedComponent> components;
  std::optional<std::int64_t> minutes;  ///< the time limit; std::nullopt: none
  bool time_is_open = false;            ///< no time was given: Slurm lowers it to what the limits on time allow
  const slurm::Accounting& accounting;
  const slurm::Association& association;
  const slurm::ControllerFacts& facts;
};

/// A check for each limit that is exceeded (fail, or warn where Slurm does not enforce limits), or that makes the job
/// wait for others (warn); one for all that could not be compared (not_checked). Empty: everything is within the
/// limits.
std::vector<Check> compare_limits(const LimitQuestion& question);

}  // namespace sailor::preflight
