// Runs what may hang or die in a process of its own, under a deadline: Slurm's commands, and calls of libslurm, which
// ends the calling process if it rejects its configuration.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor {

/// Name of this node; empty if the system does not tell.
std::string host_name();

struct Command {
  std::vector<std::string> arguments;    ///< the program (looked up in PATH) and its arguments; no shell sees them
  std::string input;                     ///< its stdin
  Seconds deadline{60};                  ///< then it is killed, with all that it started
  std::function<bool()> is_cancelled{};  ///< polled many times a second; true: it is killed likewise. Empty: it is
                                         ///< never cancelled
};

/// How a process ended and what it wrote.
struct ProcessOutcome {
  int exit_status = 0;     ///< meaningful unless one of the two below says otherwise
  int signal = 0;          ///< signal that ended it; 0: none
  bool timed_out = false;  ///< killed at the deadline
  bool cancelled = false;  ///< killed because Command::is_cancelled said so
  std::string output;      ///< stdout
  std::string errors;      ///< stderr
  bool too_long = false;   ///< killed because it exceeded the output limit

  [[nodiscard]] bool succeeded() const {
    return exit_status == 0 && signal == 0 && !timed_out && !cancelled && !too_long;
  }
  /// "exit status 1", "signal 9 (Killed)", "no answer within 15 s", "its output exceeds the limit".
  [[nodiscard]] std::string how_it_ended() const;
  Seconds deadline{};
  // Resources that the kernel counts for the process and the children it has waited for.
  Seconds processor_time{};  ///< user and system
  /// Peak of the largest of these processes; at least the peak of this process until then, which a child inherits.
  Bytes peak_resident_memory{};
};

/// Runs a program to its end, in a process group of its own: signals that would end this process end the program too.
/// Its output is limited to 16 MiB. Errors: not_found if there is no such program in PATH; io if the system refuses. A
/// program that fails is no error here: see the outcome.
Result<ProcessOutcome> run_command(const Command& command);

/// Runs `body` in a forked child; what it returns is the outcome's `output`. stdout and stderr of the child are
/// captured as `errors`; the child leaves by _exit, so buffers and exit handlers of the parent stay the parent's.
Result<ProcessOutcome> run_in_child(const std::function<std::string()>& body, Seconds deadline);

}  // namespace sailor
