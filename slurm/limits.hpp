// Limits of associations, accounts and QOS, and what is used of them, as Slurm counts: in trackable resources (TRES).
// No Slurm needed here.
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

/// 0 of what is not named.
std::int64_t amount_of(const Tres& tres, std::string_view name);

/// "cpu=10,gres/gpu=8,mem=1.50G". Errors: invalid_input, by `program` that wrote it.
Result<Tres> parse_tres(std::string_view text, std::string_view program);

/// Limits of a single job. What is not named has none; nor has an empty time.
struct JobLimits {
  Tres resources{};               ///< MaxTRESPerJob
  Tres per_node{};                ///< MaxTRESPerNode: on average over the job's nodes
  Tres minutes{};                 ///< MaxTRESMinsPerJob: resources times the time limit
  Tres minimum{};                 ///< MinTRESPerJob
  std::optional<Seconds> time{};  ///< MaxWall
};

/// Limits of all jobs of an account, a QOS, or a user or account in a QOS.
struct GroupLimits {
  Tres resources{};                    ///< of those that run at one time
  Tres minutes{};                      ///< ever used, as far as Slurm has not forgotten it
  Tres running_minutes{};              ///< of those that run at one time: resources times the time that they have left
  std::optional<std::int64_t> jobs{};  ///< that run at one time
  std::optional<std::int64_t> submitted{};  ///< that wait or run
  std::optional<Seconds> time{};            ///< of all that ever ran, together (GrpWall)
};

/// What GroupLimits count, now.
struct GroupUsage {
  Tres resources{};
  Tres minutes{};
  Tres running_minutes{};
  bool running_minutes_known = true;  ///< Slurm 22.05 does not tell those of a user in a QOS
  std::int64_t jobs = 0;
  std::int64_t submitted = 0;
  Seconds time{};
};

}  // namespace sailor::slurm
