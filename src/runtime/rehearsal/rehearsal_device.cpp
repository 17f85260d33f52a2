#include "runtime/rehearsal/rehearsal_device.hpp"

#include <sys/mman.h>

#include <cstring>
#include <map>

#include "runtime/memory_pool.hpp"

namespace sailor::runtime {

namespace {

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

  void copy(void*, const void*, std::size_t) override {}
  void copy_from_host(void*, const void*, std::size_t) override {}
  void copy_to_host(void* host, const void*, std::size_t bytes) override { std::memset(host, 0, bytes); }
  void zero(void*, std::size_t) override {}
  void convert(Values, ConstValues, std::int64_t) override {}
  void synchronize() override {}

  std::unique_ptr<Event> make_event() override { return std::make_unique<Event>(); }
  void record(Event&) override {}
  Seconds elapsed(const Event&, const Event&) override { return {}; }
  void flush_caches() override {}
  double clock_hz() const override { return 0.0; }

  void matmul(const MatrixProduct&, ConstValues, ConstValues, Values) override {}
  void add_bias(Values, ConstValues, std::int64_t, std::int64_t) override {}
  void add_bias_gradient(float*, ConstValues, std::int64_t, std::int64_t) override {}
  void add(Values, ConstValues, std::int64_t) override {}
  void scale(float*, float, std::int64_t) override {}
  double squared_sum(const float*, std::int64_t) override { return 0.0; }

  void layer_norm_forward(const NormShape&, ConstValues, ConstValues, ConstValues, Values, float*, float*) override {}
  void layer_norm_backward(const NormShape&, ConstValues, const float*, const float*, ConstValues, Values, float*,
                           float*) override {}
  void rms_norm_forward(const NormShape&, ConstValues, ConstValues, Values, float*) override {}
  void rms_norm_backward(const NormShape&, ConstValues, const float*, ConstValues, Values, float*) override {}

  void relu_forward(Values, std::int64_t) override {}
  void relu_backward(ConstValues, Values, std::int64_t) override {}
  void gelu_forward(ConstValues, Values, std::int64_t) override {}
  void gelu_backward(Values, Values, std::int64_t) override {}
  void swiglu_forward(ConstValues, Values, std::int64_t, std::int64_t) override {}
  void swiglu_backward(Values, Values, std::int64_t, std::int64_t) override {}

  void rotary(const AttentionShape&, double, bool, Values) override {}
  void attention_forward(const AttentionShape&, ConstValues, Values, float*) override {}
  void attention_backward(const AttentionShape&, ConstValues, ConstValues, const float*, ConstValues, Values) override {
  }

  void gather_rows(ConstValues, const Range&, const std::int32_t*, std::int64_t, std::int64_t, Values) override {}
  void scatter_add_rows(float*, const Range&, const std::int32_t*, std::int64_t, std::int64_t, ConstValues) override {}
  void add_repeated(Values, ConstValues, std::int64_t, std::int64_t) override {}
  void add_repeated_gradient(float*, ConstValues, std::int64_t, std::int64_t) override {}
  void softmax_cross_entropy(Values, const std::int32_t*, std::int64_t, std::int64_t, float, double*) override {}
  void row_maxima(ConstValues, std::int64_t, std::int64_t, float*) override {}
  void softmax_sums(Values, const float*, const Range&, const std::int32_t*, std::int64_t, float*, float*) override {}
  void softmax_gradient(Values, const float*, const float*, const Range&, const std::int32_t*, std::int64_t, float,
                        double*) override {}

  void adamw(const AdamWStep&, float*, const float*, float*, float*, std::int64_t, Values) override {}

 private:
  // Addresses without memory behind them, which cost nothing.
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
};

}  // namespace

std::unique_ptr<Device> make_rehearsal_device(const std::string& name) {
  return std::make_unique<RehearsalDevice>(name);
}

}  // namespace sailor::runtime
