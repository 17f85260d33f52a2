// Resident memory of this process, as Linux counts it.
#pragma once

#include "core/units.hpp"

namespace sailor::runtime {

struct ResidentMemory {
  Bytes now{};   ///< VmRSS
  Bytes peak{};  ///< VmHWM
};

/// Zeros where /proc is not there.
ResidentMemory resident_memory();

}  // namespace sailor::runtime
