#include "runtime/cpu/blas_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

// Functions of OpenBLAS; a buffer that was freed is reused by the next product.
extern "C" {
void* blas_memory_alloc(int kind) __attribute__((weak));
void blas_memory_free(void* buffer) __attribute__((weak));
}

namespace sailor::runtime::cpu {

namespace {

/// Whether the system would provide this much memory now.
bool is_there(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  ::munmap(memory, bytes);
  return true;
}

std::size_t address_space() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::string limit_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "the system has no more";
  return fmt::format("a limit of {} MiB is on the process (ulimit -v)", limit.rlim_cur >> 20U);
}

}  // namespace

Result<void> reserve_blas_memory(int threads) {
  if (blas_memory_alloc == nullptr || blas_memory_free == nullptr) return {};
  // The size of a buffer depends on the version: a little more than 128 MiB in known ones. The first buffer shows it.
  constexpr std::size_t known = std::size_t{130} << 20U;
  std::size_t each = 2 * known;
  if (!is_there(each)) each = known;
  std::vector<void*> buffers;
  Result<void> done;
  while (done && buffers.size() < static_cast<std::size_t>(threads)) {
    if (!is_there(each)) {
      done = fail(ErrorCode::unavailable,
                  fmt::format("there is not enough memory to multiply matrices: OpenBLAS takes {} MiB of address space "
                              "for each of {} thread{}, and {}",
                              each >> 20U, threads, threads == 1 ? "" : "s", limit_text()),
                  threads == 1 ? "raise the limit" : "raise the limit, or use fewer threads (OMP_NUM_THREADS)");
      break;
    }
    const std::size_t before = address_space();
    buffers.push_back(blas_memory_alloc(0));
    if (const std::size_t after = address_space(); after > before + (known >> 3U)) each = after - before;
  }
  for (void* buffer : buffers) blas_memory_free(buffer);
  return done;
}

}  // namespace sailor::runtime::cpu
