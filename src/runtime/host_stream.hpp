// Streams of devices that compute on the host: a kernel runs in the calling thread, and transfers progress while that
// thread polls them.
//
// A stream keeps a queue of its pending operations: transfers, and waits for other streams. Before a kernel runs, its
// stream is settled: all streams of the device advance until nothing is queued ahead of the kernel.
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
  Seconds timeout{600.0};  ///< maximum time without progress of any transfer of the device
  bool idle = false;       ///< leave the core to others: sleep up to 1 ms between polls
};

/// A transfer between ranks, or another operation that a stream must complete. The first advance() begins it.
class HostOperation {
 public:
  HostOperation() = default;
  virtual ~HostOperation() = default;
  HostOperation(const HostOperation&) = delete;
  HostOperation& operator=(const HostOperation&) = delete;

  /// Advances as far as possible without waiting; true when the operation is done. Throws TransportError.
  [[nodiscard]] virtual bool advance() = 0;
  /// Description for time-out messages: "receive of 4096 bytes from rank 3".
  [[nodiscard]] virtual std::string what() const = 0;
  [[nodiscard]] virtual Patience patience() const = 0;
};

/// Pauses of one wait: polls without a pause for some microseconds, then others get the core between two polls.
class Waiting {
 public:
  /// To be called between two polls of an operation that is not done. Throws TransportError (timeout).
  void pause(const HostOperation& operation);
  /// To be called when there was progress.
  void restart() { *this = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  int yields_ = 0;  // number of yields of an idle wait
  std::chrono::microseconds sleep_{20};
  Clock::time_point start_{};
};

/// Advances an operation until it is done.
void finish(HostOperation& operation);

/// A stream on which transports of the host enqueue their transfers.
class HostStream : public Stream {
 public:
  virtual void put(std::unique_ptr<HostOperation> operation) = 0;
};

class HostQueue;

/// The queues of a device's streams.
class HostQueues {
 public:
  /// Advances all queues as far as possible without waiting; true if any operation was completed.
  bool advance();
  /// Advances all queues until `done` returns true. Throws the error that ends a transfer.
  void advance_until(const std::function<bool()>& done);

 private:
  friend class HostQueue;
  /// The operation with the shortest timeout among the first ones of all queues: every other operation waits, directly
  /// or indirectly, for one of these. Null if all queues are empty.
  [[nodiscard]] const HostOperation* least_patient() const;
  std::vector<HostQueue*> queues_;
};

/// A point in a queue, shared by events and by the operations that wait for it.
struct HostMark {
  bool reached = false;  ///< also when its queue was given up
  std::chrono::steady_clock::time_point time{};
};

class HostEvent final : public Event {
 public:
  std::shared_ptr<HostMark> mark;  ///< null: never recorded
  [[nodiscard]] bool reached() const { return mark == nullptr || mark->reached; }
};

/// Pending operations of one stream. The error of a failed transfer is thrown once; all operations queued after it are
/// dropped.
class HostQueue {
 public:
  explicit HostQueue(HostQueues& queues);
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  /// Also advances the queue, so that the operation begins now if it can.
  void put(std::unique_ptr<HostOperation> operation);
  /// Does not advance the queue, hence throws no TransportError: tensors record events when they are released.
  void record(HostEvent& event);
  void wait(const HostEvent& event);
  /// Advances all queues until this one is empty.
  void settle();
  /// Advances without waiting; true if an operation was completed.
  bool advance();
  void give_up() { under_way_.clear(); }
  [[nodiscard]] bool empty() const { return under_way_.empty(); }
  /// The first pending operation; null if the queue is empty.
  [[nodiscard]] const HostOperation* first() const { return under_way_.empty() ? nullptr : under_way_.front().get(); }

 private:
  HostQueues& queues_;
  std::deque<std::unique_ptr<HostOperation>> under_way_;
};

}  // namespace sailor::runtime
