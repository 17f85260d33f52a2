// Streams of devices that compute on the host: a kernel runs in the thread that asks for it, transfers go on while that
// thread looks after them.
//
// A stream keeps a queue of what it has not got past yet: transfers, and waits for other streams. Before a kernel runs,
// its stream is settled: all streams of the device go on until nothing is left in front of the kernel.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "runtime/stream.hpp"

namespace sailor::runtime {

/// How to wait for a transfer.
struct Patience {
  Seconds timeout{600.0};  ///< without any transfer of the device getting on
  bool idle = false;       ///< leave the core to others: sleep between looks, up to 1 ms
};

/// A transfer between ranks, or whatever else a stream must get past. The first advance() begins it.
class HostOperation {
 public:
  HostOperation() = default;
  virtual ~HostOperation() = default;
  HostOperation(const HostOperation&) = delete;
  HostOperation& operator=(const HostOperation&) = delete;

  /// Goes on as far as that is possible without waiting; true when it is done. Throws TransportError.
  [[nodiscard]] virtual bool advance() = 0;
  /// For a message about a time-out: "receive of 4096 bytes from rank 3".
  [[nodiscard]] virtual std::string what() const = 0;
  [[nodiscard]] virtual Patience patience() const = 0;
};

/// The pauses of one wait: looks in a row for some microseconds, then others get the core between two looks.
class Waiting {
 public:
  /// Between two looks at an operation that is not done. Throws TransportError (timeout).
  void pause(const HostOperation& operation);
  /// Something has got on.
  void restart() { *this = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  int yields_ = 0;  // of an idle wait
  std::chrono::microseconds sleep_{20};
  Clock::time_point start_{};
};

/// Advances an operation until it is done.
void finish(HostOperation& operation);

/// A stream that transports of the host put their transfers on.
class HostStream : public Stream {
 public:
  virtual void put(std::unique_ptr<HostOperation> operation) = 0;
};

class HostQueue;

/// The queues of a device's streams.
class HostQueues {
 public:
  /// All go on as far as they can without waiting; true when any got past something.
  bool advance();
  /// All go on until `done` is true. Throws what ends a transfer.
  void advance_until(const std::function<bool()>& done);

 private:
  friend class HostQueue;
  /// What everything waits for in the end is the first operation of some queue: the one with the shortest timeout. Null
  /// when all queues are empty.
  [[nodiscard]] const HostOperation* least_patient() const;
  std::vector<HostQueue*> queues_;
};

/// A point in a queue, shared by events and by who waits for it.
struct HostMark {
  bool reached = false;  ///< also when its queue was given up
  std::chrono::steady_clock::time_point time{};
};

class HostEvent final : public Event {
 public:
  std::shared_ptr<HostMark> mark;  ///< null: never recorded
  [[nodiscard]] bool reached() const { return mark == nullptr || mark->reached; }
};

/// What one stream has not got past yet. A failed transfer is thrown once; with it goes all that was behind it.
class HostQueue {
 public:
  explicit HostQueue(HostQueues& queues);
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  /// Also looks whether what is in front is done, so that the operation begins now if it can.
  void put(std::unique_ptr<HostOperation> operation);
  /// Looks at nothing, hence throws no TransportError: tensors record events when they are released.
  void record(HostEvent& event);
  void wait(const HostEvent& event);
  /// Until it is empty.
  void settle();
  /// Without waiting; true when it got past something.
  bool advance();
  void give_up() { under_way_.clear(); }
  [[nodiscard]] bool empty() const { return under_way_.empty(); }
  /// Null when it is empty.
  [[nodiscard]] const HostOperation* first() const { return under_way_.empty() ? nullptr : under_way_.front().get(); }

 private:
  HostQueues& queues_;
  std::deque<std::unique_ptr<HostOperation>> under_way_;
};

}  // namespace sailor::runtime
