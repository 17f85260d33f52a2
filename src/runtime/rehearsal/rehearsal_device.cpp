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
  void synchronize() override {}

  std::unique_ptr<Event> make_event() override { return std::make_unique<Event>(); }
  void record(Event&) override {}
  Seconds elapsed(const Event&, const Event&) override { return {}; }
  void flush_caches() override {}
  double clock_hz() const override { return 0.0; }

  void matmul(const MatrixProduct&, const float*, const float*, float*) override {}
  void add_bias(float*, const float*, std::int64_t, std::int64_t) override {}
  void add_bias_gradient(float*, const float*, std::int64_t, std::int64_t) override {}
  void add(float*, const float*, std::int64_t) override {}
  void scale(float*, float, std::int64_t) override {}
  double squared_sum(const float*, std::int64_t) override { return 0.0; }

  void layer_norm_forward(const NormShape&, const float*, const float*, const float*, float*, float*, float*) override {
  }
  void layer_norm_backward(const NormShape&, const float*, const float*, const float*, const float*, float*, float*,
                           float*) override {}
  void rms_norm_forward(const NormShape&, const float*, const float*, float*, float*) override {}
  void rms_norm_backward(const NormShape&, const float*, const float*, const float*, float*, float*) override {}

  void relu_forward(float*, std::int64_t) override {}
  void relu_backward(const float*, float*, std::int64_t) override {}
  void gelu_forward(const float*, float*, std::int64_t) override {}
  void gelu_backward(float*, float*, std::int64_t) override {}
  void swiglu_forward(const float*, float*, std::int64_t, std::int64_t) override {}
  void swiglu_backward(float*, float*, std::int64_t, std::int64_t) override {}

  void rotary(const AttentionShape&, double, bool, float*) override {}
  void attention_forward(const AttentionShape&, const float*, float*, float*) override {}
  void attention_backward(const AttentionShape&, const float*, const float*, const float*, const float*,
                          float*) override {}

  void gather_rows(const float*, const Range&, const std::int32_t*, std::int64_t, std::int64_t, float*) override {}
  void scatter_add_rows(float*, const Range&, const std::int32_t*, std::int64_t, std::int64_t, const float*) override {}
  void add_repeated(float*, const float*, std::int64_t, std::int64_t) override {}
  void add_repeated_gradient(float*, const float*, std::int64_t, std::int64_t) override {}
  void softmax_cross_entropy(float*, const std::int32_t*, std::int64_t, std::int64_t, float, double*) override {}
  void row_maxima(const float*, std::int64_t, std::int64_t, float*) override {}
  void softmax_sums(float*, const float*, const Range&, const std::int32_t*, std::int64_t, float*, float*) override {}
  void softmax_gradient(float*, const float*, const float*, const Range&, const std::int32_t*, std::int64_t, float,
                        double*) override {}

  void adamw(const AdamWStep&, float*, const float*, float*, float*, std::int64_t) override {}

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
