#include "core/affinity.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace sailor {

std::vector<int> allowed_cores() {
  // The kernel refuses sets that are smaller than its own.
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

bool bind_to_memory(const std::vector<int>& nodes) {
#ifdef SYS_set_mempolicy
  constexpr int bind = 2;             // MPOL_BIND
  constexpr std::size_t most = 1024;  // of nodes
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  std::array<unsigned long, most / bits> mask{};
  for (const int node : nodes) {
    if (node < 0 || static_cast<std::size_t>(node) >= most) return false;
    mask[static_cast<std::size_t>(node) / bits] |= 1UL << (static_cast<std::size_t>(node) % bits);
  }
  return !nodes.empty() && ::syscall(SYS_set_mempolicy, bind, mask.data(), most + 1) == 0;
#else
  return nodes.empty();
#endif
}

}  // namespace sailor
