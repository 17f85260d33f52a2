#include "core/affinity.hpp"

#include <sched.h>

#include <cerrno>
#include <cstddef>

namespace sailor {

std::vector<int> allowed_cores() {
  // The kernel refuses sets smaller than its own.
  for (int most = 1024; most <= 1 << 20; most *= 2) {
    cpu_set_t* set = CPU_ALLOC(most);
    if (set == nullptr) return {};
    const std::size_t size = CPU_ALLOC_SIZE(most);
    const bool known = ::sched_getaffinity(0, size, set) == 0;
    const bool too_small = !known && errno == EINVAL;
    std::vector<int> cores;
    for (int core = 0; known && core < most; ++core)
      if (CPU_ISSET_S(static_cast<std::size_t>(core), size, set)) cores.push_back(core);
    CPU_FREE(set);
    if (!too_small) return cores;
  }
  return {};
}

bool bind_to_cores(const std::vector<int>& cores) {
  if (cores.empty()) return false;
  const auto count = static_cast<std::size_t>(cores.back()) + 1;
  cpu_set_t* set = CPU_ALLOC(count);
  if (set == nullptr) return false;
  const std::size_t size = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(size, set);
  for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), size, set);
  const bool done = ::sched_setaffinity(0, size, set) == 0;
  CPU_FREE(set);
  return done;
}

}  // namespace sailor
