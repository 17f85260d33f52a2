// What the program that started the ranks does to them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "core/units.hpp"

namespace sailor::apps {

/// How long Open MPI's mpirun waits after Ctrl-C before it tells its ranks (SIGTERM), and then again before it kills
/// them: by the environment, else by those of `files` ("name = value" lines) that there are, the first one that says
/// it, else Open MPI's default. Nothing when no mpirun of Open MPI has started this rank.
std::optional<Seconds> time_before_kill(const Environment& environment, const std::vector<std::string>& files);
/// Open MPI's parameter files of this user and this machine.
std::vector<std::string> parameter_files(const Environment& environment);

/// Why checkpoints will not survive Ctrl-C, and what to do; empty when they may.
std::string warning_of_kill(const std::optional<Seconds>& time);

}  // namespace sailor::apps
