#include "runtime/cpu/cpu_device.hpp"

#include <cblas.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "runtime/cpu/host_cpu.hpp"
#include "runtime/cpu/kernels.hpp"
#include "runtime/memory_pool.hpp"

// Not every BLAS has these two; any that is linked may be OpenBLAS behind libblas.so.
extern "C" {
void openblas_set_num_threads(int threads) __attribute__((weak));
char* openblas_get_config() __attribute__((weak));
}

namespace sailor::runtime {

namespace {

class CpuEvent final : public Event {
 public:
  std::chrono::steady_clock::time_point time;
};

class CpuDevice final : public Device {
 public:
  CpuDevice()
      : pool_(
            "the CPU", [](std::size_t bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); },
            [](void* memory) { std::free(memory); }) {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  }

  std::string name() const override { return cpu::processor_name(); }

  std::string versions() const override {
    if (openblas_get_config == nullptr) return "BLAS";
    // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the first two words
    const std::string text = openblas_get_config();
    return text.substr(0, text.find(' ', text.find(' ') + 1));
  }

  void* allocate(std::size_t bytes) override { return pool_.allocate(bytes); }
  void release(void* memory) override { pool_.release(memory); }
  MemoryUse memory_use() const override { return pool_.use(); }
  void reset_peak_memory() override { pool_.reset_peak(); }
  void set_memory_limit(Bytes limit) override { pool_.set_limit(static_cast<std::size_t>(limit.value())); }
  void release_unused_memory() override {
    pool_.give_back_free_segments();
#ifdef __GLIBC__
    ::malloc_trim(0);  // free() may keep what it got
#endif
  }

  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_from_host(void* to, const void* host, std::size_t bytes) override { std::memcpy(to, host, bytes); }
  void copy_to_host(void* host, const void* from, std::size_t bytes) override { std::memcpy(host, from, bytes); }
  void zero(void* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }
  void synchronize() override {}

  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
  void record(Event& event) override { static_cast<CpuEvent&>(event).time = std::chrono::steady_clock::now(); }
  Seconds elapsed(const Event& from, const Event& to) override {
    const std::chrono::duration<double> time =
        static_cast<const CpuEvent&>(to).time - static_cast<const CpuEvent&>(from).time;
    return Seconds(time.count());
  }
  void flush_caches() override {
    // Twice the cache, as its replacement policy may keep some old lines. No part of the pool: not a tensor.
    if (flush_buffer_.empty()) flush_buffer_.resize(2 * cpu::last_level_cache() / sizeof(std::uint64_t));
    for (std::size_t i = 0; i < flush_buffer_.size(); ++i) flush_buffer_[i] += i;
  }
  double clock_hz() const override { return cpu::clock_hz(); }

  void matmul(const MatrixProduct& product, const float* a, const float* b, float* c) override {
    const auto narrow = [](std::int64_t value) {
      if (value > std::numeric_limits<int>::max())  // BLAS with 32-bit integers
        throw std::runtime_error("matrix with more than 2^31 rows or columns; use a smaller micro-batch");
      return static_cast<int>(value);
    };
    const int m = narrow(product.m);
    const int n = narrow(product.n);
    const int k = narrow(product.k);
    cblas_sgemm(CblasRowMajor, product.transpose_a ? CblasTrans : CblasNoTrans,
                product.transpose_b ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, a, product.transpose_a ? m : k, b,
                product.transpose_b ? k : n, product.accumulate ? 1.0f : 0.0f, c, n);
  }

  void add_bias(float* values, const float* bias, std::int64_t rows, std::int64_t width) override {
    cpu::add_bias(values, bias, rows, width);
  }
  void add_bias_gradient(float* bias_gradient, const float* gradient, std::int64_t rows, std::int64_t width) override {
    cpu::add_bias_gradient(bias_gradient, gradient, rows, width);
  }
  void add(float* to, const float* from, std::int64_t count) override { cpu::add(to, from, count); }
  void scale(float* values, float factor, std::int64_t count) override { cpu::scale(values, factor, count); }
  double squared_sum(const float* values, std::int64_t count) override { return cpu::squared_sum(values, count); }

  void layer_norm_forward(const NormShape& shape, const float* input, const float* weight, const float* bias,
                          float* output, float* mean, float* reciprocal_deviation) override {
    cpu::layer_norm_forward(shape, input, weight, bias, output, mean, reciprocal_deviation);
  }
  void layer_norm_backward(const NormShape& shape, const float* input, const float* mean,
                           const float* reciprocal_deviation, const float* weight, float* gradient,
                           float* weight_gradient, float* bias_gradient) override {
    cpu::layer_norm_backward(shape, input, mean, reciprocal_deviation, weight, gradient, weight_gradient,
                             bias_gradient);
  }

  void rms_norm_forward(const NormShape& shape, const float* input, const float* weight, float* output,
                        float* reciprocal_rms) override {
    cpu::rms_norm_forward(shape, input, weight, output, reciprocal_rms);
  }
  void rms_norm_backward(const NormShape& shape, const float* input, const float* reciprocal_rms, const float* weight,
                         float* gradient, float* weight_gradient) override {
    cpu::rms_norm_backward(shape, input, reciprocal_rms, weight, gradient, weight_gradient);
  }

  void relu_forward(float* values, std::int64_t count) override { cpu::relu_forward(values, count); }
  void relu_backward(const float* output, float* gradient, std::int64_t count) override {
    cpu::relu_backward(output, gradient, count);
  }
  void gelu_forward(const float* input, float* output, std::int64_t count) override {
    cpu::gelu_forward(input, output, count);
  }
  void gelu_backward(float* input_to_output, float* gradient, std::int64_t count) override {
    cpu::gelu_backward(input_to_output, gradient, count);
  }

  void swiglu_forward(const float* input, float* output, std::int64_t rows, std::int64_t width) override {
    cpu::swiglu_forward(input, output, rows, width);
  }
  void swiglu_backward(float* input_to_gradient, float* gradient_to_output, std::int64_t rows,
                       std::int64_t width) override {
    cpu::swiglu_backward(input_to_gradient, gradient_to_output, rows, width);
  }

  void rotary(const AttentionShape& shape, double base, bool inverse, float* projected) override {
    cpu::rotary(shape, base, inverse, projected);
  }
  void attention_forward(const AttentionShape& shape, const float* projected, float* output, float* log_sum) override {
    const Workspace workspace(*this, cpu::attention_workspace(shape, false));
    cpu::attention_forward(shape, projected, output, log_sum, workspace.floats);
  }
  void attention_backward(const AttentionShape& shape, const float* projected, const float* output,
                          const float* log_sum, const float* output_gradient, float* projected_gradient) override {
    const Workspace workspace(*this, cpu::attention_workspace(shape, true));
    cpu::attention_backward(shape, projected, output, log_sum, output_gradient, projected_gradient, workspace.floats);
  }

  void gather_rows(const float* table, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                   std::int64_t width, float* output) override {
    const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
    for (std::int64_t i = 0; i < count; ++i) {
      if (rows.first <= tokens[i] && tokens[i] < rows.last)
        std::memcpy(output + i * width, table + (tokens[i] - rows.first) * width, bytes);
      else
        std::memset(output + i * width, 0, bytes);
    }
  }
  void scatter_add_rows(float* table_gradient, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                        std::int64_t width, const float* gradient) override {
    for (std::int64_t i = 0; i < count; ++i)
      if (rows.first <= tokens[i] && tokens[i] < rows.last)
        cpu::add(table_gradient + (tokens[i] - rows.first) * width, gradient + i * width, width);
  }
  void add_repeated(float* values, const float* table, std::int64_t repeats, std::int64_t count) override {
    cpu::add_bias(values, table, repeats, count);
  }
  void add_repeated_gradient(float* table_gradient, const float* gradient, std::int64_t repeats,
                             std::int64_t count) override {
    cpu::add_bias_gradient(table_gradient, gradient, repeats, count);
  }
  void softmax_cross_entropy(float* logits_to_gradient, const std::int32_t* targets, std::int64_t rows,
                             std::int64_t classes, float gradient_scale, double* loss_sum) override {
    cpu::softmax_cross_entropy(logits_to_gradient, targets, rows, classes, gradient_scale, loss_sum);
  }
  void row_maxima(const float* values, std::int64_t rows, std::int64_t width, float* maxima) override {
    cpu::row_maxima(values, rows, width, maxima);
  }
  void softmax_sums(float* logits_to_exponentials, const float* maxima, const Range& classes,
                    const std::int32_t* targets, std::int64_t rows, float* sums, float* target_logits) override {
    cpu::softmax_sums(logits_to_exponentials, maxima, classes, targets, rows, sums, target_logits);
  }
  void softmax_gradient(float* exponentials_to_gradient, const float* sums, const float* target_logits,
                        const Range& classes, const std::int32_t* targets, std::int64_t rows, float gradient_scale,
                        double* loss_sum) override {
    cpu::softmax_gradient(exponentials_to_gradient, sums, target_logits, classes, targets, rows, gradient_scale,
                          loss_sum);
  }

  void adamw(const AdamWStep& step, float* value, const float* gradient, float* first_moment, float* second_moment,
             std::int64_t count) override {
    cpu::adamw(step, value, gradient, first_moment, second_moment, count);
  }

 private:
  // From the pool, so that it counts as tensor memory.
  struct Workspace {
    Workspace(CpuDevice& owner, std::int64_t count)
        : device(owner), floats(static_cast<float*>(owner.allocate(static_cast<std::size_t>(count) * sizeof(float)))) {}
    ~Workspace() { device.release(floats); }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    CpuDevice& device;
    float* floats;
  };

  MemoryPool pool_;
  std::vector<std::uint64_t> flush_buffer_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace sailor::runtime
