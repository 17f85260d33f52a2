// For programs that compute: OpenBLAS, when it is loaded, starts a thread per core (or OPENBLAS_NUM_THREADS threads),
// each of which takes 128 MiB of address space; where that fails, OpenBLAS retries forever. Ranks call OpenBLAS from
// their own threads and need none of its threads.
#pragma once

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

namespace sailor::apps {

/// Must be the first call in main(): restarts the program, in this process, with OPENBLAS_NUM_THREADS=1. Returns if it
/// is set already or the restart is not possible.
inline void use_a_single_blas_thread(char** arguments) {
  const char* const threads = std::getenv("OPENBLAS_NUM_THREADS");
  if (threads != nullptr && std::strcmp(threads, "1") == 0) return;
  char path[PATH_MAX] = {};
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0 || ::setenv("OPENBLAS_NUM_THREADS", "1", 1) != 0) return;
  ::execv(path, arguments);
}

}  // namespace sailor::apps
