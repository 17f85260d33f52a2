// Memory of this process and of its node, as Linux counts it.
#pragma once

#include "core/units.hpp"

namespace sailor::runtime {

struct ResidentMemory {
  Bytes now{};   ///< VmRSS
  Bytes peak{};  ///< VmHWM
};

/// Zeros if there is no /proc.
ResidentMemory resident_memory();

/// Memory still available, without swapping, to the processes of this node and of this process's control group (a Slurm
/// job, a container): the smaller of the two. 0 if the system does not say.
Bytes available_memory();

}  // namespace sailor::runtime
