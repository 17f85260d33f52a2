// Finds out which rank has died or hangs, for programs in which all ranks go from step to step together.
//
// A thread watches the clock. When a step takes too long, it breaks off what this rank waits for (TransportError). This
// happens on all ranks that are alive: they then report to rank 0, which names the ranks that do not.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/units.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

class RankWatch {
 public:
  /// A step may take `timeout` longer than is expected of it. Messages begin with `program`.
  RankWatch(std::string program, const World& world, Seconds timeout);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  /// Begins a step; all ranks call this at about the same time. `what` completes "while ..." in messages.
  void enter(const std::string& what, Seconds expected = Seconds(0.0));

  /// To be called after a TransportError, on every rank that got it. Rank 0 names the ranks that do not answer and ends
  /// the job; `nodes` are the nodes of the ranks, as far as rank 0 knows them.
  [[noreturn]] void name_missing_ranks(const std::vector<std::string>& nodes);

 private:
  void run();

  const std::string program_;
  const World world_;
  Seconds timeout_;
  std::mutex mutex_;  // guards the members that follow
  std::condition_variable changed_;
  std::string step_;
  Seconds expected_{};
  int steps_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

/// Ends this process with the message (empty: without one) if the object still exists after `timeout`: for calls that
/// have no timeout of their own and cannot be broken off.
class Deadline {
 public:
  Deadline(Seconds timeout, std::string message);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace sailor::runtime
