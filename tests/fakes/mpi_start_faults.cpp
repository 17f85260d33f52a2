// What goes wrong while MPI starts, for programs that load this with LD_PRELOAD. Of a program's MPI library it stands
// in front of two functions:
//   SAILOR_TEST_CRASH_IN_MPI_INIT=FILE  rank 0 crashes in MPI_Init, unless FILE is there; it makes FILE before
//   SAILOR_TEST_LATE_IN_MPI_INIT=1      rank 0 is late within MPI_Init, where Open MPI 4.1 answers messages already but
//                                       does not know yet what to do with them
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): raise is POSIX
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool is_rank_0() {
  for (const char* name : {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name); rank != nullptr) return std::strcmp(rank, "0") == 0;
  return true;
}

void crash_if_wanted() {
  if (const char* file = std::getenv("SAILOR_TEST_CRASH_IN_MPI_INIT"); file != nullptr && is_rank_0())
    if (::open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) >= 0) ::raise(SIGSEGV);
}

}  // namespace

extern "C" {

int MPI_Init_thread(int* argument_count, char*** arguments, int required, int* provided) {
  if (next<void (*)()>("ompi_request_init") == nullptr) crash_if_wanted();
  return next<int (*)(int*, char***, int, int*)>("MPI_Init_thread")(argument_count, arguments, required, provided);
}

/// Open MPI calls it in MPI_Init, between the exchange of addresses and the registration for messages.
int ompi_request_init() {
  crash_if_wanted();  // all ranks are in MPI_Init
  if (std::getenv("SAILOR_TEST_LATE_IN_MPI_INIT") != nullptr && is_rank_0()) {
    const auto progress = next<void (*)()>("opal_progress");
    for (int i = 0; i < 2000 && progress != nullptr; ++i) {
      progress();
      ::usleep(1000);
    }
  }
  return next<int (*)()>("ompi_request_init")();
}
}
