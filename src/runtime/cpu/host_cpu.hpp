// What Linux says about the processor of this rank.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace sailor::runtime::cpu {

/// "AMD EPYC 7763"; "CPU" where there is no name.
std::string processor_name();
/// That this process should compute with: OMP_NUM_THREADS of its `environment`, but no more than the cores it may run
/// on; 1 without that.
int compute_threads(const std::map<std::string, std::string>& environment);
/// Bytes of the largest cache that this core uses; 32 MiB when the system does not say.
std::size_t last_level_cache();
/// Of the core that runs this; 0 when the system does not say.
double clock_hz();

}  // namespace sailor::runtime::cpu
