// The cores that the system lets this process run on.
#pragma once

#include <vector>

namespace sailor {

/// Allowed cores, ascending; empty if the system does not say.
std::vector<int> allowed_cores();
/// Binds this process to these cores, ascending; false if the system refuses.
bool bind_to_cores(const std::vector<int>& cores);

/// Restricts the memory of this process, also after exec, to these NUMA nodes. False if the system refuses.
bool bind_to_memory(const std::vector<int>& nodes);

}  // namespace sailor
