// The time of one rank in a rehearsal: seconds since the iteration began on the devices that are rehearsed.
//
// The clock moves by what computation and communication are said to take, and the process sleeps until that time has
// really passed. Deadlines are absolute: a process that was woken late makes up for it with its next sleep, so that
// what this machine adds does not pile up.
#pragma once

#include <chrono>

#include "core/units.hpp"

namespace sailor::runtime {

class RehearsalClock {
 public:
  /// Time passes so many times slower than on the devices; 0: nobody waits, and only the clock moves.
  explicit RehearsalClock(double slowdown) : slowdown_(slowdown) { restart(); }

  void set_slowdown(double slowdown) { slowdown_ = slowdown; }
  /// An iteration begins now.
  void restart();
  [[nodiscard]] Seconds now() const { return now_; }
  /// Goes on to `time` and sleeps until it has passed; nothing when that is over.
  void reach(Seconds time);

 private:
  double slowdown_;
  Seconds now_{};
  std::chrono::nanoseconds start_{};  // of CLOCK_MONOTONIC
};

}  // namespace sailor::runtime
