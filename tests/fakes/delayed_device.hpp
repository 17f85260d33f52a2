// A device that computes on the CPU, but late: for tests of what the runtime waits for.
//
// A thread of the device runs the operations of all streams, one at a time, in a random order that streams and events
// allow; the host runs ahead. Memory that is released, or new, is filled with NaN in the order of the main stream. What
// is read before it is there, or after it is gone, shows as a wrong loss.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cpu/cpu_device.hpp"
#include "runtime/host_stream.hpp"
#include "runtime/memory_pool.hpp"
#include "runtime/transport.hpp"

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
    changed_.wait(lock, [&] { return running_ != &queue; });
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
      if (idle > busy.size()) std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
      running_ = nullptr;
      if (failure != nullptr) {
        failure_ = failure;
        for (Queue* one : queues_) one->steps.clear();
      } else if (done) {
        queue.steps.pop_front();
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
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
};

class DelayedStream final : public HostStream {
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
    queues_->put(queue_, [point = recorded.point] {
      point->time = std::chrono::steady_clock::now();
      point->reached = true;
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

  void copy(void* to, const void* from, std::size_t bytes) override {
    later([=](Stream& inner) { inner.copy(to, from, bytes); });
  }
  void copy_from_host(void* to, const void* host, std::size_t bytes) override {
    later([=](Stream& inner) { inner.copy_from_host(to, host, bytes); });
  }
  void copy_to_host(void* host, const void* from, std::size_t bytes) override {
    later([=](Stream& inner) { inner.copy_to_host(host, from, bytes); });
  }
  void zero(void* memory, std::size_t bytes) override {
    later([=](Stream& inner) { inner.zero(memory, bytes); });
  }
  void convert(Values to, ConstValues from, std::int64_t count) override {
    later([=](Stream& inner) { inner.convert(to, from, count); });
  }
  void matmul(const MatrixProduct& product, ConstValues a, ConstValues b, Values c) override {
    later([=](Stream& inner) { inner.matmul(product, a, b, c); });
  }
  void linear_forward(const LinearShape& shape, ConstValues input, ConstValues weight, ConstValues bias, ConstValues residual, PointwiseActivation activation, Values pre_activation, Values output) override {
    later([=](Stream& inner) { inner.linear_forward(shape, input, weight, bias, residual, activation, pre_activation, output); });
  }
  void linear_backward_parameters(const LinearShape& shape, ConstValues input, ConstValues output_gradient, float* weight_gradient, float* bias_gradient) override {
    later([=](Stream& inner) { inner.linear_backward_parameters(shape, input, output_gradient, weight_gradient, bias_gradient); });
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight, Values input_gradient) override {
    later([=](Stream& inner) { inner.linear_backward_input(shape, output_gradient, weight, input_gradient); });
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight, PointwiseActivation activation, Values kept_to_output, Values input_gradient) override {
    later([=](Stream& inner) { inner.linear_backward_input(shape, output_gradient, weight, activation, kept_to_output, input_gradient); });
  }
  void add_bias(Values values, ConstValues bias, std::int64_t rows, std::int64_t width) override {
    later([=](Stream& inner) { inner.add_bias(values, bias, rows, width); });
  }
  void add(Values to, ConstValues from, std::int64_t count) override {
    later([=](Stream& inner) { inner.add(to, from, count); });
  }
  void scale(float* values, float factor, std::int64_t count) override {
    later([=](Stream& inner) { inner.scale(values, factor, count); });
  }
  void layer_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias, Values output, float* mean, float* reciprocal_deviation) override {
    later([=](Stream& inner) { inner.layer_norm_forward(shape, input, weight, bias, output, mean, reciprocal_deviation); });
  }
  void layer_norm_backward(const NormShape& shape, ConstValues input, const float* mean, const float* reciprocal_deviation, ConstValues weight, Values gradient, Values sum, float* weight_gradient, float* bias_gradient) override {
    later([=](Stream& inner) { inner.layer_norm_backward(shape, input, mean, reciprocal_deviation, weight, gradient, sum, weight_gradient, bias_gradient); });
  }
  void rms_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, Values output, float* reciprocal_rms) override {
    later([=](Stream& inner) { inner.rms_norm_forward(shape, input, weight, output, reciprocal_rms); });
  }
  void rms_norm_backward(const NormShape& shape, ConstValues input, const float* reciprocal_rms, ConstValues weight, Values gradient, Values sum, float* weight_gradient) override {
    later([=](Stream& inner) { inner.rms_norm_backward(shape, input, reciprocal_rms, weight, gradient, sum, weight_gradient); });
  }
  void swiglu_forward(ConstValues input, Values output, std::int64_t rows, std::int64_t width) override {
    later([=](Stream& inner) { inner.swiglu_forward(input, output, rows, width); });
  }
  void swiglu_backward(Values input_to_gradient, Values gradient_to_output, std::int64_t rows, std::int64_t width) override {
    later([=](Stream& inner) { inner.swiglu_backward(input_to_gradient, gradient_to_output, rows, width); });
  }
  void rotary(const AttentionShape& shape, double base, bool inverse, Values projected) override {
    later([=](Stream& inner) { inner.rotary(shape, base, inverse, projected); });
  }
  void attention_forward(const AttentionShape& shape, ConstValues projected, Values output, float* log_sum) override {
    later([=](Stream& inner) { inner.attention_forward(shape, projected, output, log_sum); });
  }
  void attention_backward(const AttentionShape& shape, ConstValues projected, ConstValues output, const float* log_sum, ConstValues output_gradient, Values projected_gradient) override {
    later([=](Stream& inner) { inner.attention_backward(shape, projected, output, log_sum, output_gradient, projected_gradient); });
  }
  void gather_rows(ConstValues table, const Range& rows, const std::int32_t* tokens, std::int64_t count, std::int64_t width, Values output) override {
    later([=](Stream& inner) { inner.gather_rows(table, rows, tokens, count, width, output); });
  }
  void scatter_add_rows(float* table_gradient, const Range& rows, const std::int32_t* tokens, std::int64_t count, std::int64_t width, ConstValues gradient) override {
    later([=](Stream& inner) { inner.scatter_add_rows(table_gradient, rows, tokens, count, width, gradient); });
  }
  void add_repeated(Values values, ConstValues table, std::int64_t repeats, std::int64_t count) override {
    later([=](Stream& inner) { inner.add_repeated(values, table, repeats, count); });
  }
  void add_repeated_gradient(float* table_gradient, ConstValues gradient, std::int64_t repeats, std::int64_t count) override {
    later([=](Stream& inner) { inner.add_repeated_gradient(table_gradient, gradient, repeats, count); });
  }
  void softmax_cross_entropy(const LogitsShape& shape, Values logits_to_gradient, const std::int32_t* targets, float gradient_scale, double* loss_sum) override {
    later([=](Stream& inner) { inner.softmax_cross_entropy(shape, logits_to_gradient, targets, gradient_scale, loss_sum); });
  }
  void row_maxima(const LogitsShape& shape, ConstValues logits, float* maxima) override {
    later([=](Stream& inner) { inner.row_maxima(shape, logits, maxima); });
  }
  void softmax_sums(const LogitsShape& shape, Values logits_to_exponentials, const float* maxima, const std::int32_t* targets, float* sums, float* target_logits) override {
    later([=](Stream& inner) { inner.softmax_sums(shape, logits_to_exponentials, maxima, targets, sums, target_logits); });
  }
  void softmax_gradient(const LogitsShape& shape, Values exponentials_to_gradient, const float* sums, const float* target_logits, const std::int32_t* targets, float gradient_scale, double* loss_sum) override {
    later([=](Stream& inner) { inner.softmax_gradient(shape, exponentials_to_gradient, sums, target_logits, targets, gradient_scale, loss_sum); });
  }
  void clip_factor(const double* squared_norm, double scale, double clip_norm, float* factor) override {
    later([=](Stream& inner) { inner.clip_factor(squared_norm, scale, clip_norm, factor); });
  }
  void add_squares(std::span<const std::span<const float>> values, double* sum) override {
    later([all = std::vector(values.begin(), values.end()), sum](Stream& inner) { inner.add_squares(all, sum); });
  }
  void adamw(const AdamWStep& step, std::span<const OptimizerSegment> segments, const float* gradient_factor) override {
    later([=, all = std::vector(segments.begin(), segments.end())](Stream& inner) {
      inner.adamw(step, all, gradient_factor);
    });
  }

 private:
  template <class Operation>
  void later(Operation operation) {
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
