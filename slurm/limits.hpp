// Limits of associations, accounts and QOS, and their usage, in Slurm's trackable resources (TRES). No Slurm needed
// here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::slurm {

/// Amounts by Slurm's names of resources: "node", "cpu", "mem" (MiB), "billing", "gres/gpu", "gres/gpu:a100", ...
using Tres = std::map<std::string, std::int64_t, std::less<>>;

/// Amount of a resource; 0 if it is not named.
std::int64_t amount_of(const Tres& tres, std::string_view name);

/// Parses "cpu=10,gres/gpu=8,mem=1.50G", as `program` wrote it. Errors: invalid_input, naming `program`.
Result<Tres> parse_tres(std::string_view text, std::string_view program);

/// Limits of a single job. Resources that are not named have no limit; nor has an empty time.
struct JobLimits {
  Tres resources{};               ///< MaxTRESPerJob
  Tres per_node{};                ///< MaxTRESPerNode: on average over the job's nodes
  Tres minutes{};                 ///< MaxTRESMinsPerJob: resources times the time limit
  Tres minimum{};                 ///< MinTRESPerJob
  std::optional<Seconds> time{};  ///< MaxWall
};

/// Limits of all jobs of an account, a QOS, or a user or account in a QOS.
struct GroupLimits {
  Tres resources{};                         ///< GrpTRES: of all running jobs
  Tres minutes{};                           ///< GrpTRESMins: used so far, after decay, and by running jobs
  Tres running_minutes{};                   ///< GrpTRESRunMins: of all running jobs, resources times remaining time
  std::optional<std::int64_t> jobs{};       ///< max running jobs
  std::optional<std::int64_t> submitted{};  ///< max pending and running jobs
  std::optional<Seconds> time{};            ///< total of all jobs that ever ran (GrpWall)
};

/// Current usage of what GroupLimits limit.
struct GroupUsage {
  Tres resources{};
  Tres minutes{};
  Tres running_minutes{};
  bool running_minutes_known = true;  ///< Slurm 22.05 does not report those of a user in a QOS
  std::int64_t jobs = 0;
  std::int64_t submitted = 0;
  Seconds time{};
};

}  // namespace sailor::slurm
