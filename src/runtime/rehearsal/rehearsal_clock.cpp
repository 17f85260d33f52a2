#include "runtime/rehearsal/rehearsal_clock.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace sailor::runtime {

namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds shortest_sleep{100'000};  // waking up takes longer than shorter sleeps

nanoseconds monotonic_time() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

}  // namespace

void RehearsalClock::restart() {
  now_ = Seconds{};
  start_ = monotonic_time();
}

void RehearsalClock::reach(Seconds time) {
  now_ = std::max(now_, time);
  if (slowdown_ <= 0.0) return;
  const nanoseconds until =
      start_ + std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(now_.value() * slowdown_));
  if (until - monotonic_time() < shortest_sleep) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(until);
  const timespec deadline{.tv_sec = seconds.count(), .tv_nsec = (until - seconds).count()};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

}  // namespace sailor::runtime
