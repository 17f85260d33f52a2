// Keeps a process alive: restarts it when it crashes, and kills it when its heartbeat stops.
#pragma once

#include <functional>
#include <string>

#include "core/units.hpp"

namespace sailor::elastic {

struct SupervisorSettings {
  std::string program = "sailor-controller";  ///< for messages
  Seconds silence{5.0};                       ///< heartbeat timeout; then the worker is killed
  int max_crashes_per_minute = 10;            ///< with more, supervise() gives up
};

/// Calls `worker` in a child process and returns its exit status. The child must call `beat` several times within
/// `silence`; if it crashes or stops calling, a new child replaces it. SIGTERM and SIGINT are passed on to it. Must be
/// called before the process has other threads. A child dies with its supervisor.
int supervise(const SupervisorSettings& settings, const std::function<int(const std::function<void()>& beat)>& worker);

}  // namespace sailor::elastic
