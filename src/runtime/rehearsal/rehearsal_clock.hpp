// The clock of one rank in a rehearsal: seconds since the iteration began, in time of the rehearsed devices.
//
// The clock advances by the modelled times of computation and communication, and the process sleeps until that time has
// really passed. Deadlines are absolute: a process that wakes up late sleeps less the next time, so that delays of this
// machine do not accumulate.
#pragma once

#include <chrono>

#include "core/units.hpp"

namespace sailor::runtime {

class RehearsalClock {
 public:
  /// Time passes `slowdown` times slower than on the devices; 0: no waiting, only the clock advances.
  explicit RehearsalClock(double slowdown) : slowdown_(slowdown) { restart(); }

  void set_slowdown(double slowdown) { slowdown_ = slowdown; }
  /// Starts an iteration now.
  void restart();
  [[nodiscard]] Seconds now() const { return now_; }
  /// Advances to `time` and sleeps until it has passed; does nothing if it has passed already.
  void reach(Seconds time);

 private:
  double slowdown_;
  Seconds now_{};
  std::chrono::nanoseconds start_{};  // of CLOCK_MONOTONIC
};

}  // namespace sailor::runtime
