// Streams of a rehearsal's device: no kernels, only a queue of pending requests. Internal to runtime/rehearsal.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "runtime/rehearsal/rehearsal_transport.hpp"
#include "runtime/stream.hpp"

namespace sailor::runtime {

class RehearsalQueue;

/// A point in a stream. It shares ownership of the stream's queue, since the stream may end first.
class RehearsalEvent final : public Event {
 public:
  std::shared_ptr<RehearsalQueue> queue;  ///< null: never recorded
  std::uint64_t after = 0;                ///< reached after this many requests of the queue
};

/// Requests of a stream that nobody has waited for yet.
class RehearsalQueue {
 public:
  void put(std::unique_ptr<RehearsalRequest> request) { under_way_.push_back(std::move(request)); }
  [[nodiscard]] std::uint64_t asked() const { return done_ + under_way_.size(); }
  /// Waits until the first `count` requests are done.
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

/// A stream on which transports of a rehearsal put their requests.
class RehearsalStream : public Stream {
 public:
  virtual void put(std::unique_ptr<RehearsalRequest> request) = 0;
};

}  // namespace sailor::runtime
