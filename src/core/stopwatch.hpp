#pragma once

#include <chrono>

namespace sailor {

/// The time from `start` to now, in seconds.
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace sailor
