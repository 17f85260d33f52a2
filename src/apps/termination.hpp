// Leaving a job step together.
#pragma once

#include <csignal>
#include <cstdlib>

namespace sailor::apps {

/// Where a task that fails ends its step (srun --kill-on-bad-exit), the first to leave has the others terminated: from
/// now on that ends this process with `status`, with which it was about to leave, and not with the signal's.
inline void keep_status_when_terminated(int status) {
  static volatile std::sig_atomic_t kept;
  kept = status;
  std::signal(SIGTERM, [](int) { std::_Exit(kept); });
}

}  // namespace sailor::apps
