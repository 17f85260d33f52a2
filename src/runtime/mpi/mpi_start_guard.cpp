#include "runtime/mpi/mpi_start_guard.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "core/process.hpp"
#include "core/stop_status.hpp"

namespace sailor::runtime {

namespace {

// A signal handler can neither allocate nor format: the message is prepared in advance.
std::array<char, 1024> message_start{};
std::array<char, 1024> message_end{};

template <std::size_t size>
void store(const std::string& text, std::array<char, size>& to) {
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

const char* name_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGILL:
      return "SIGILL";
    case SIGFPE:
      return "SIGFPE";
    default:
      return "SIGABRT";
  }
}

void print(const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); }

extern "C" void crashed_in_mpi_init(int signal) {
  print(message_start.data());
  print(name_of(signal));
  print(message_end.data());
  ::_exit(mpi_did_not_start);
}

extern "C" void terminated_in_mpi_init(int /*signal*/) { ::_exit(mpi_did_not_start); }

}  // namespace

MpiStartGuard::MpiStartGuard(std::string_view program, std::string_view library) {
  store(fmt::format("{}: error: on {}: {} crashed in MPI_Init (", program, host_name(), library), message_start);
  store(fmt::format("): MPI failed, not Sailor; nothing is lost: start it again. If that happens often, set "
                    "SLURM_PMIX_FENCE=ring where srun --mpi=pmix starts ranks on several nodes, and see whether a "
                    "small MPI program starts reliably\n"),
        message_end);
  struct sigaction action {};
  action.sa_handler = crashed_in_mpi_init;
  for (std::size_t i = 0; i < crashes_.size(); ++i) ::sigaction(crashes_[i], &action, &before_[i]);
  action.sa_handler = terminated_in_mpi_init;
  ::sigaction(SIGTERM, &action, &terminate_before_);
}

void MpiStartGuard::initialized() {
  if (initialized_) return;
  initialized_ = true;
  for (std::size_t i = 0; i < crashes_.size(); ++i) ::sigaction(crashes_[i], &before_[i], nullptr);
}

MpiStartGuard::~MpiStartGuard() {
  initialized();
  ::sigaction(SIGTERM, &terminate_before_, nullptr);
}

}  // namespace sailor::runtime
