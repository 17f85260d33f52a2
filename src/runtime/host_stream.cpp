#include "runtime/host_stream.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "runtime/transport.hpp"

namespace sailor::runtime {

namespace {

constexpr std::chrono::microseconds spinning{20};  // polling time before the core is yielded
constexpr int yields = 10;                         // number of yields before an idle wait sleeps
constexpr std::chrono::microseconds longest_sleep{1000};

/// For operations that never time out by themselves: what they stand for is in another queue.
constexpr Patience endless{.timeout = Seconds(std::numeric_limits<double>::infinity())};

/// Records when its queue reaches it or is given up.
class Mark final : public HostOperation {
 public:
  explicit Mark(std::shared_ptr<HostMark> mark) : mark_(std::move(mark)) {}
  ~Mark() override { reach(); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  bool advance() override {
    reach();
    return true;
  }
  std::string what() const override { return "an event"; }
  Patience patience() const override { return endless; }

 private:
  void reach() {
    if (std::exchange(mark_->reached, true)) return;
    mark_->time = std::chrono::steady_clock::now();
  }
  std::shared_ptr<HostMark> mark_;
};

class WaitForMark final : public HostOperation {
 public:
  explicit WaitForMark(std::shared_ptr<const HostMark> mark) : mark_(std::move(mark)) {}
  bool advance() override { return mark_->reached; }
  std::string what() const override { return "an event of another stream"; }
  Patience patience() const override { return endless; }

 private:
  std::shared_ptr<const HostMark> mark_;
};

}  // namespace

void Waiting::pause(const HostOperation& operation) {
  const auto now = Clock::now();
  if (start_ == Clock::time_point{}) start_ = now;
  const Patience patience = operation.patience();
  if (!patience.idle && now - start_ < spinning) return;
  if (!patience.idle || ++yields_ <= yields) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, longest_sleep);
  }
  const std::chrono::duration<double> waited = now - start_;
  if (waited.count() > patience.timeout.value())
    throw TransportError(TransportError::Cause::timeout,
                         fmt::format("no answer for {:g} s: {}; that rank has died, hangs, or is that slow (then raise "
                                     "--timeout)",
                                     patience.timeout.value(), operation.what()));
}

void finish(HostOperation& operation) {
  Waiting waiting;
  while (!operation.advance()) waiting.pause(operation);
}

bool HostQueues::advance() {
  bool any = false;
  for (HostQueue* queue : queues_)
    if (!queue->empty()) any = queue->advance() || any;
  return any;
}

void HostQueues::advance_until(const std::function<bool()>& done) {
  Waiting waiting;
  const HostOperation* least = nullptr;  // stays the same until an operation is completed
  while (!done()) {
    if (advance()) {
      waiting.restart();
      least = nullptr;
      continue;
    }
    if (least == nullptr) least = least_patient();
    if (least != nullptr) waiting.pause(*least);
  }
}

const HostOperation* HostQueues::least_patient() const {
  const HostOperation* least = nullptr;
  for (const HostQueue* queue : queues_)
    if (const HostOperation* first = queue->first();
        first != nullptr && (least == nullptr || first->patience().timeout < least->patience().timeout))
      least = first;
  return least;
}

HostQueue::HostQueue(HostQueues& queues) : queues_(queues) { queues_.queues_.push_back(this); }

HostQueue::~HostQueue() { std::erase(queues_.queues_, this); }

void HostQueue::put(std::unique_ptr<HostOperation> operation) {
  under_way_.push_back(std::move(operation));
  advance();
}

void HostQueue::record(HostEvent& event) {
  event.mark = std::make_shared<HostMark>();
  if (under_way_.empty())
    *event.mark = {.reached = true, .time = std::chrono::steady_clock::now()};
  else
    under_way_.push_back(std::make_unique<Mark>(event.mark));
}

void HostQueue::wait(const HostEvent& event) {
  if (!event.reached()) put(std::make_unique<WaitForMark>(event.mark));
}

void HostQueue::settle() {
  if (under_way_.empty()) return;
  queues_.advance_until([this] { return under_way_.empty(); });
}

bool HostQueue::advance() {
  bool any = false;
  try {
    while (!under_way_.empty() && under_way_.front()->advance()) {
      under_way_.pop_front();
      any = true;
    }
  } catch (...) {
    under_way_.clear();
    throw;
  }
  return any;
}

}  // namespace sailor::runtime
