// Handles the end of a process while MPI starts: crashes in MPI_Init are reported as MPI's, and a job script can tell
// them from failures of the training (mpi_did_not_start).
#pragma once

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX

#include <array>
#include <string_view>

namespace sailor::runtime {

/// One at a time, around MPI_Init and the first collective operation. A crash in MPI_Init (a signal such as SIGSEGV)
/// prints a message and ends the process with mpi_did_not_start. So does SIGTERM, without a message: the launcher sends
/// it to the other ranks of a job when one rank has crashed, and nothing is lost yet.
class MpiStartGuard {
 public:
  /// `program` and `library` ("Open MPI v4.1.4") are for the message.
  MpiStartGuard(std::string_view program, std::string_view library);
  /// MPI_Init has returned: crashes are the program's own again.
  void initialized();
  /// Restores the previous action of SIGTERM.
  ~MpiStartGuard();
  MpiStartGuard(const MpiStartGuard&) = delete;
  MpiStartGuard& operator=(const MpiStartGuard&) = delete;

 private:
  static constexpr std::array<int, 5> crashes_{SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  std::array<struct sigaction, crashes_.size()> before_{};
  struct sigaction terminate_before_ {};
  bool initialized_ = false;
};

}  // namespace sailor::runtime
