// Properties of this rank's processor, as reported by Linux.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace sailor::runtime::cpu {

/// "AMD EPYC 7763"; "CPU" if it has no name.
std::string processor_name();
/// Number of threads that this process should compute with: OMP_NUM_THREADS of its `environment`, but at most the
/// number of cores that it may run on; 1 if the variable is missing.
int compute_threads(const std::map<std::string, std::string>& environment);
/// Bytes of the largest cache that this core uses; 32 MiB if the system does not say.
std::size_t last_level_cache();
/// Clock frequency of the core that runs this; 0 if the system does not say.
double clock_hz();

}  // namespace sailor::runtime::cpu
