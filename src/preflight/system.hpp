// Questions of the preflight to the system that it runs on. The checks themselves ask nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "preflight/preflight.hpp"
#include "slurm/cluster_reader.hpp"

namespace sailor::preflight {

std::int64_t now_unix_s();

/// The user of this process, and its groups.
Identity current_identity();

/// Facts about the files PREFIX.bin and PREFIX.idx.
PathFacts data_facts(const std::string& prefix);
/// Facts about the folder, or the nearest existing one above it: whether it is writable, and its free space.
PathFacts checkpoint_facts(const std::string& folder);

/// `srun --mpi=list`. Errors: unavailable.
Result<std::vector<std::string>> mpi_types(Seconds deadline);
/// The types in its output.
std::vector<std::string> parse_mpi_list(std::string_view text);

/// Asks slurmctld about every need of the plan.
std::vector<StartAnswer> ask_starts(const std::vector<Need>& needs, const Job& job, const slurm::Site& site,
                                    const GpuCatalogue& gpus, const slurm::SlurmEnvironment& environment);

}  // namespace sailor::preflight
