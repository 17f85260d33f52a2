#include "runtime/rehearsal/rehearsal_device.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "runtime/memory_pool.hpp"
#include "runtime/rehearsal/rehearsal_stream.hpp"

namespace sailor::runtime {

namespace {

class NullStream final : public RehearsalStream {
 public:
  /// The device tracks queues of other streams than the main one while they exist.
  explicit NullStream(bool is_main) : is_main_(is_main) {}

  [[nodiscard]] const std::shared_ptr<RehearsalQueue>& queue() const { return queue_; }

  void put(std::unique_ptr<RehearsalRequest> request) override {
    if (is_main_)
      request->wait();
    else
      queue_->put(std::move(request));
  }
  void record(Event& event) override {
    auto& recorded = static_cast<RehearsalEvent&>(event);
    recorded.queue = queue_;
    recorded.after = queue_->asked();
  }
  /// Other streams than the main one begin operations at the time of the call.
  void wait(const Event& event) override {
    const auto& point = static_cast<const RehearsalEvent&>(event);
    if (is_main_ && point.queue != nullptr) point.queue->wait(point.after);
  }

  void copy(void*, const void*, std::size_t) override {}
  void copy_rows(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t) override {}
  void copy_from_host(void*, const void*, std::size_t) override {}
  void copy_to_host(void* host, const void*, std::size_t bytes) override { std::memset(host, 0, bytes); }
  void zero(void*, std::size_t) override {}
  void convert(Values, ConstValues, std::int64_t) override {}
  void matmul(const MatrixProduct&, ConstValues, ConstValues, Values) override {}
  void linear_forward(const LinearShape&, ConstValues, ConstValues, ConstValues, ConstValues, PointwiseActivation,
                      Values, Values) override {}
  void linear_backward_parameters(const LinearShape&, ConstValues, ConstValues, float*, float*) override {}
  void linear_backward_input(const LinearShape&, ConstValues, ConstValues, Values) override {}
  void linear_backward_input(const LinearShape&, ConstValues, ConstValues, PointwiseActivation, Values,
                             Values) override {}
  void add_bias(Values, ConstValues, std::int64_t, std::int64_t) override {}
  void add(Values, ConstValues, std::int64_t) override {}
  void scale(float*, float, std::int64_t) override {}
  void layer_norm_forward(const NormShape&, ConstValues, ConstValues, ConstValues, Values, float*, float*) override {}
  void layer_norm_backward(const NormShape&, ConstValues, const float*, const float*, ConstValues, Values, Values,
                           float*, float*) override {}
  void rms_norm_forward(const NormShape&, ConstValues, ConstValues, Values, float*) override {}
  void rms_norm_backward(const NormShape&, ConstValues, const float*, ConstValues, Values, Values, float*) override {}
  void swiglu_forward(ConstValues, const float*, Values, std::int64_t, std::int64_t) override {}
  void swiglu_backward(Values, const float*, Values, float*, std::int64_t, std::int64_t) override {}
  void route(const RoutingShape&, ConstValues, const Routing&) override {}
  void route_backward(const RoutingShape&, const Routing&, const float*, const RoutingBalance*, Values) override {}
  void count_choices(const RoutingShape&, const Routing&, std::int64_t, float*) override {}
  void add_pairs(const RoutingShape&, const std::int32_t*, ConstValues, std::int64_t, Values) override {}
  void rotary(const AttentionShape&, double, bool, Values) override {}
  void attention_forward(const AttentionShape&, ConstValues, Values, float*) override {}
  void attention_backward(const AttentionShape&, ConstValues, ConstValues, const float*, ConstValues, Values) override {
  }
  void gather_rows(ConstValues, const Range&, const std::int32_t*, std::int64_t, std::int64_t, Values) override {}
  void scatter_add_rows(float*, const Range&, const std::int32_t*, std::int64_t, std::int64_t, ConstValues) override {}
  void add_repeated(Values, ConstValues, std::int64_t, std::int64_t) override {}
  void add_repeated_gradient(float*, ConstValues, std::int64_t, std::int64_t) override {}
  void softmax_cross_entropy(const LogitsShape&, Values, const std::int32_t*, float, double*) override {}
  void row_maxima(const LogitsShape&, ConstValues, float*) override {}
  void softmax_sums(const LogitsShape&, Values, const float*, const std::int32_t*, float*, float*) override {}
  void softmax_gradient(const LogitsShape&, Values, const float*, const float*, const std::int32_t*, float,
                        double*) override {}
  void add_squares(std::span<const std::span<const float>>, double*) override {}
  void clip_factor(const double*, double, double, float*) override {}
  void adamw(const AdamWStep&, std::span<const OptimizerSegment>, const float*) override {}

 private:
  bool is_main_;
  std::shared_ptr<RehearsalQueue> queue_ = std::make_shared<RehearsalQueue>();
};

class RehearsalDevice final : public Device {
 public:
  explicit RehearsalDevice(std::string name)
      : name_(std::move(name)),
        pool_(
            name_, [this](std::size_t bytes) { return reserve(bytes); }, [this](void* memory) { give_back(memory); }) {}

  std::string name() const override { return name_; }
  std::string versions() const override { return "rehearsal"; }

  void* allocate(std::size_t bytes) override { return pool_.allocate(bytes); }
  void release(void* memory) override { pool_.release(memory); }
  MemoryUse memory_use() const override { return pool_.use(); }
  void reset_peak_memory() override { pool_.reset_peak(); }
  void set_memory_limit(Bytes limit) override { pool_.set_limit(static_cast<std::size_t>(limit.value())); }
  void release_unused_memory() override { pool_.give_back_free_segments(); }
  void* allocate_host(std::size_t bytes) override {
    void* const memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  void release_host(void* memory) override { std::free(memory); }

  Stream& main() override { return main_; }
  std::unique_ptr<Stream> make_stream() override {
    auto stream = std::make_unique<NullStream>(false);
    queues_.push_back(stream->queue());
    return stream;
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<RehearsalEvent>(); }
  bool is_done(const Event& event) override {
    const auto& point = static_cast<const RehearsalEvent&>(event);
    return point.queue == nullptr || point.queue->is_done(point.after);
  }
  void progress() override {
    for (const auto& weak : queues_)
      if (const auto queue = weak.lock()) queue->progress();
  }
  /// Times are measured by the rehearsal's clock instead.
  Seconds elapsed(const Event&, const Event&) override { return {}; }
  void flush_caches() override {}
  double clock_hz() const override { return 0.0; }

 private:
  void wait_for(const Event& event) override { main_.wait(event); }

  // Reserves addresses without memory behind them, which cost nothing.
  void* reserve(std::size_t bytes) {
    void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    segments_[address] = bytes;
    return address;
  }
  void give_back(void* segment) {
    ::munmap(segment, segments_.at(segment));
    segments_.erase(segment);
  }

  std::string name_;
  std::map<void*, std::size_t> segments_;  // outlives the pool
  MemoryPool pool_;
  NullStream main_{true};
  std::vector<std::weak_ptr<RehearsalQueue>> queues_;  // of all other streams
};

}  // namespace

std::unique_ptr<Device> make_rehearsal_device(const std::string& name) {
  return std::make_unique<RehearsalDevice>(name);
}

}  // namespace sailor::runtime
