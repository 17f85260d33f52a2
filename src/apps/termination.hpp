// Ends all tasks of a job step together.
#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/error.hpp"
#include "core/log.hpp"
#include "runtime/control.hpp"

namespace sailor::apps {

/// If a failing task ends its step (srun --kill-on-bad-exit), the first task to leave has the others terminated. After
/// this call SIGTERM ends this process with `status`, with which it was about to exit, instead of by the signal.
inline void keep_status_when_terminated(int status) {
  static volatile std::sig_atomic_t kept;
  kept = status;
  std::signal(SIGTERM, [](int) { std::_Exit(kept); });
}

/// Ends a task whose job has failed. The message is written before any rank leaves: launchers then end all others, and
/// the reason would be lost.
template <class Session>
[[noreturn]] void leave_together(const std::string& program, const Error& error, std::unique_ptr<Session>& session,
                                 int status) {
  std::fflush(stdout);
  if (!runtime::is_reported_elsewhere(error)) report(program, error);
  keep_status_when_terminated(status);
  session.reset();
  std::exit(status);
}
template <class Session>
[[noreturn]] void leave_together(const std::string& program, const Error& error, std::unique_ptr<Session>& session) {
  leave_together(program, error, session, exit_status(error.code));
}

}  // namespace sailor::apps
