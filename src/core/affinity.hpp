// The cores that the system lets this process run on.
#pragma once

#include <vector>

namespace sailor {

/// Ascending; empty if the system does not say.
std::vector<int> allowed_cores();
/// Keeps this process to these cores, ascending; false if the system refuses.
bool bind_to_cores(const std::vector<int>& cores);

/// Memory of this process and of what it becomes comes from these NUMA nodes only. False when the system refuses.
bool bind_to_memory(const std::vector<int>& nodes);

}  // namespace sailor
