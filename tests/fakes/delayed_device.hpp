// A device that computes on the CPU, but late: for tests of the runtime's synchronisation.
//
// A thread of the device runs the operations of all streams, one at a time, in a random order that streams and events
// allow; the host runs ahead. Memory that is released, or new, is filled with NaN in the order of the main stream. Data
// that is read before it is there, or after it is released, shows as a wrong loss.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cpu/cpu_device.hpp"
#include "runtime/host_stream.hpp"
#include "runtime/memory_pool.hpp"
#include "runtime/transport.hpp"
#include "tests/fakes/wrapped_stream.hpp"

namespace sailor::runtime::test {

/// Runs the operations.
class DelayedQueues {
 public:
  /// One step of an operation: true when it is done.
  using Step = std::function<bool()>;
  struct Queue {
    std::deque<Step> steps;
  };

  explicit DelayedQueues(unsigned seed) : random_(seed), thread_([this] { run(); }) {}
  ~DelayedQueues() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  DelayedQueues(const DelayedQueues&) = delete;
  DelayedQueues& operator=(const DelayedQueues&) = delete;

  void add(Queue& queue) {
    const std::scoped_lock lock(mutex_);
    queues_.push_back(&queue);
  }
  /// What it has not got past is given up.
  void remove(Queue& queue) {
    std::unique_lock lock(mutex_);
    stepped_.wait(lock, [&] { return running_ != &queue; });
    std::erase(queues_, &queue);
  }
  void put(Queue& queue, Step step) {
    const std::scoped_lock lock(mutex_);
    rethrow();
    queue.steps.push_back(std::move(step));
    changed_.notify_all();
  }
  void wait(const std::function<bool()>& done) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return failure_ != nullptr || done(); }))
      throw TransportError(TransportError::Cause::timeout, "the delayed device has not got anywhere for 60 s");
    rethrow();
  }

 private:
  /// With the mutex held. The failure is thrown once; what was asked for is gone.
  void rethrow() {
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  void run() {
    std::unique_lock lock(mutex_);
    std::size_t idle = 0;  // looks in a row at what could not go on
    while (!ended_) {
      std::vector<Queue*> busy;
      for (Queue* queue : queues_)
        if (!queue->steps.empty()) busy.push_back(queue);
      if (busy.empty()) {
        changed_.wait(lock);
        continue;
      }
      // Now and then the host, and the other streams, get far ahead.
      if (random_() % 16 == 0) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
        lock.lock();
        continue;
      }
      Queue& queue = *busy[random_() % busy.size()];
      running_ = &queue;
      const Step step = queue.steps.front();
      lock.unlock();
      bool done = false;
      std::exception_ptr failure;
      try {
        done = step();
      } catch (...) {
        failure = std::current_exception();
      }
      idle = done ? 0 : idle + 1;
      // Operations that wait for other ranks are looked at less and less often.
      if (idle > busy.size())
        std::this_thread::sleep_for(std::chrono::microseconds(20 * std::min<std::size_t>(idle - busy.size(), 10)));
      lock.lock();
      running_ = nullptr;
      if (failure != nullptr) {
        failure_ = failure;
        for (Queue* one : queues_) one->steps.clear();
      } else if (done) {
        queue.steps.pop_front();
      }
      stepped_.notify_all();
      if (done || failure != nullptr) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;  ///< there is more to do, or something is done
  std::condition_variable stepped_;  ///< the thread has left an operation, whether it is done or not
  std::vector<Queue*> queues_;
  Queue* running_ = nullptr;
  std::exception_ptr failure_;
  bool ended_ = false;
  std::minstd_rand random_;
  std::thread thread_;
};

/// A point in a stream.
class DelayedEvent final : public Event {
 public:
  struct Point {
    std::atomic<bool> reached = false;
    std::chrono::steady_clock::time_point time{};
  };
  std::shared_ptr<Point> point;  ///< null: never recorded

  /// Reaches a point when its stream gets to it, or is given up before.
  class Reaching {
   public:
    explicit Reaching(std::shared_ptr<Point> point) : point_(std::move(point)) {}
    ~Reaching() { reach(); }
    Reaching(const Reaching&) = delete;
    Reaching& operator=(const Reaching&) = delete;
    void reach() {
      if (point_->reached) return;
      point_->time = std::chrono::steady_clock::now();
      point_->reached = true;
    }

   private:
    std::shared_ptr<Point> point_;
  };
};

class DelayedStream final : public WrappedStream<HostStream> {
 public:
  /// `inner` is used by the thread of `queues` alone.
  DelayedStream(std::shared_ptr<DelayedQueues> queues, Stream& inner) : queues_(std::move(queues)), inner_(inner) {
    queues_->add(queue_);
  }
  ~DelayedStream() override { queues_->remove(queue_); }
  DelayedStream(const DelayedStream&) = delete;
  DelayedStream& operator=(const DelayedStream&) = delete;

  void put(std::unique_ptr<HostOperation> operation) override {
    queues_->put(queue_, [shared = std::shared_ptr<HostOperation>(std::move(operation))] { return shared->advance(); });
  }
  void record(Event& event) override {
    auto& recorded = static_cast<DelayedEvent&>(event);
    recorded.point = std::make_shared<DelayedEvent::Point>();
    queues_->put(queue_, [reaching = std::make_shared<DelayedEvent::Reaching>(recorded.point)] {
      reaching->reach();
      return true;
    });
  }
  /// Fills memory with NaN, in float32, bfloat16 and float64.
  void spoil(void* memory, std::size_t bytes) {
    later([=](Stream&) { std::memset(memory, 0xff, bytes); });
  }
  void wait(const Event& event) override {
    const auto& other = static_cast<const DelayedEvent&>(event);
    if (other.point == nullptr) return;
    queues_->put(queue_, [point = other.point] { return point->reached.load(); });
  }

 private:
  void operate(const Operation&, std::function<void(Stream&)> call) override { later(std::move(call)); }
  template <class Call>
  void later(Call operation) {
    queues_->put(queue_, [&inner = inner_, operation = std::move(operation)] {
      operation(inner);
      return true;
    });
  }

  std::shared_ptr<DelayedQueues> queues_;
  Stream& inner_;
  DelayedQueues::Queue queue_;
};

class DelayedDevice : public Device {
 public:
  explicit DelayedDevice(unsigned seed)
      : inner_(make_cpu_device()),
        pool_(
            "the delayed device", [](std::size_t bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); },
            [](void* memory) { std::free(memory); }),
        queues_(std::make_shared<DelayedQueues>(seed)),
        main_(queues_, inner_->main()) {}

  std::string name() const override { return "delayed " + inner_->name(); }
  std::string versions() const override { return inner_->versions(); }

  void* allocate(std::size_t bytes) override {
    void* const memory = pool_.allocate(bytes);
    sizes_[memory] = bytes;
    spoil(memory, bytes);
    return memory;
  }
  void release(void* memory) override {
    spoil(memory, sizes_.at(memory));
    pool_.release(memory);
  }
  MemoryUse memory_use() const override { return pool_.use(); }
  void reset_peak_memory() override { pool_.reset_peak(); }
  void set_memory_limit(Bytes limit) override { pool_.set_limit(static_cast<std::size_t>(limit.value())); }
  std::int64_t row_stride(std::int64_t width) const override { return inner_->row_stride(width) + 3; }
  void release_unused_memory() override {}  // the device may be about to spoil it
  void* allocate_host(std::size_t bytes) override { return std::malloc(bytes); }
  void release_host(void* memory) override {
    synchronize_quietly();
    std::free(memory);
  }

  Stream& main() override { return main_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<DelayedStream>(queues_, inner_->main()); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<DelayedEvent>(); }
  bool is_done(const Event& event) override {
    const auto& point = static_cast<const DelayedEvent&>(event).point;
    return point == nullptr || point->reached;
  }
  Seconds elapsed(const Event& from, const Event& to) override {
    const std::chrono::duration<double> time =
        static_cast<const DelayedEvent&>(to).point->time - static_cast<const DelayedEvent&>(from).point->time;
    return Seconds(time.count());
  }
  void flush_caches() override {}
  double clock_hz() const override { return 0.0; }

  void give_up_transfers() override { synchronize_quietly(); }

 protected:
  void wait_for(const Event& event) override {
    queues_->wait([this, &event] { return is_done(event); });
  }

 private:
  void spoil(void* memory, std::size_t bytes) {
    try {
      main_.spoil(memory, bytes);
    } catch (const TransportError&) {  // of a transfer before: the stream has nothing left to do
    }
  }
  void synchronize_quietly() {
    try {
      synchronize();
    } catch (const TransportError&) {
    }
  }

  std::unique_ptr<Device> inner_;
  MemoryPool pool_;
  std::map<void*, std::size_t> sizes_;
  std::shared_ptr<DelayedQueues> queues_;
  DelayedStream main_;
};

}  // namespace sailor::runtime::test
