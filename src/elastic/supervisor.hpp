// Keeps a process alive: starts it again when it crashes, and kills it when it is silent.
#pragma once

#include <functional>
#include <string>

#include "core/units.hpp"

namespace sailor::elastic {

struct SupervisorSettings {
  std::string program = "sailor-controller";  ///< for messages
  Seconds silence{5.0};                       ///< a worker that does not beat for longer is killed
  int max_crashes_per_minute = 10;            ///< then it is given up
};

/// Calls `worker` in a child process and returns its exit status. The child must call `beat` some times within
/// `silence`; where it crashes, or does not, another takes its place. SIGTERM and SIGINT are passed on to it. Must be
/// called before the process has other threads. A child dies with its supervisor.
int supervise(const SupervisorSettings& settings, const std::function<int(const std::function<void()>& beat)>& worker);

}  // namespace sailor::elastic
