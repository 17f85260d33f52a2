// Streams of the device of a rehearsal: no kernels, and a queue of what is under way. Internal to runtime/rehearsal.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "runtime/rehearsal/rehearsal_transport.hpp"
#include "runtime/stream.hpp"

namespace sailor::runtime {

class RehearsalQueue;

/// A point in a stream; shared with its queue, which may end before it.
class RehearsalEvent final : public Event {
 public:
  std::shared_ptr<RehearsalQueue> queue;  ///< null: never recorded
  std::uint64_t after = 0;                ///< so many requests of the queue
};

/// What was put on a stream and nobody has waited for yet.
class RehearsalQueue {
 public:
  void put(std::unique_ptr<RehearsalRequest> request) { under_way_.push_back(std::move(request)); }
  [[nodiscard]] std::uint64_t asked() const { return done_ + under_way_.size(); }
  /// Until so many requests are done.
  void wait(std::uint64_t count) {
    while (done_ < count) {
      under_way_.front()->wait();
      drop_first();
    }
  }
  [[nodiscard]] bool is_done(std::uint64_t count) {
    while (done_ < count && under_way_.front()->test()) drop_first();
    return done_ >= count;
  }
  void progress() { (void)is_done(asked()); }

 private:
  void drop_first() {
    under_way_.pop_front();
    ++done_;
  }
  std::uint64_t done_ = 0;
  std::deque<std::unique_ptr<RehearsalRequest>> under_way_;
};

/// A stream that transports of a rehearsal put their requests on.
class RehearsalStream : public Stream {
 public:
  virtual void put(std::unique_ptr<RehearsalRequest> request) = 0;
};

}  // namespace sailor::runtime
