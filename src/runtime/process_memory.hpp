// Memory of this process and of its node, as Linux counts it.
#pragma once

#include "core/units.hpp"

namespace sailor::runtime {

struct ResidentMemory {
  Bytes now{};   ///< VmRSS
  Bytes peak{};  ///< VmHWM
};

/// Zeros where /proc is not there.
ResidentMemory resident_memory();

/// What the processes of this node, and of this process's control group (a Slurm job, a container), can still get
/// without swapping: the smaller of the two. 0 where the system does not say.
Bytes available_memory();

}  // namespace sailor::runtime
