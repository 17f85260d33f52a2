// How the launcher of the ranks ends them on Ctrl-C.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "core/units.hpp"

namespace sailor::apps {

/// Time that Open MPI's mpirun waits after Ctrl-C before it sends SIGTERM to its ranks, and again before it kills them:
/// by the environment, else by the first of the existing `files` ("name = value" lines) that sets it, else Open MPI's
/// default. std::nullopt if this rank was not started by Open MPI's mpirun.
std::optional<Seconds> time_before_kill(const Environment& environment, const std::vector<std::string>& files);
/// Paths of Open MPI's parameter files for this user and this machine.
std::vector<std::string> parameter_files(const Environment& environment);

/// Why checkpoints will not survive Ctrl-C, and what to do; empty when they may.
std::string warning_of_kill(const std::optional<Seconds>& time);

}  // namespace sailor::apps
