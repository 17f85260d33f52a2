#include "runtime/cuda/cuda_device.hpp"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runtime/cuda/cuda_stream.hpp"
#include "runtime/cuda/fused_attention.hpp"
#include "runtime/cuda/gemm.hpp"
#include "runtime/cuda/gpu_clock.hpp"
#include "runtime/cuda/kernels.hpp"
#include "runtime/memory_pool.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

namespace {

using cuda::check;

class CudaEvent final : public Event {
 public:
  CudaEvent() { check(cudaEventCreateWithFlags(&event, cudaEventDefault), "making an event"); }
  ~CudaEvent() override { cudaEventDestroy(event); }
  cudaEvent_t event = nullptr;
  bool recorded = false;
};

/// Cosines and sines of rotary positions up to some length.
struct RotaryTable {
  std::int64_t length = 0;
  Tensor cosines;
  Tensor sines;
};

/// State shared by all streams of a device.
struct Shared {
  explicit Shared(std::string name)
      : pool(
            std::move(name),
            [](std::size_t bytes) {
              void* memory = nullptr;
              const cudaError_t error = cudaMalloc(&memory, bytes);
              if (error == cudaSuccess) return memory;
              cudaGetLastError();  // clears the error, which is handled here
              if (error != cudaErrorMemoryAllocation) check(error, "allocation");
              return static_cast<void*>(nullptr);
            },
            [](void* memory) { cudaFree(memory); }) {}

  int multiprocessors = 1;
  bool tf32 = true;
  MemoryPool pool;
  cuda::Gemm gemm;
  std::unique_ptr<cuda::FusedAttention> attention;                       ///< null: not available
  std::map<std::pair<double, std::int64_t>, RotaryTable> rotary_tables;  ///< by base and head width
};

/// Workspace is device memory of the main stream: operations that need some run on that stream only.
class ComputingStream final : public CudaStream {
 public:
  ComputingStream(Shared& shared, Device& device, bool is_main) : shared_(shared), device_(device), is_main_(is_main) {
    check(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking), "making a stream");
    queue_.multiprocessors = shared.multiprocessors;
  }
  ~ComputingStream() override {
    cudaStreamSynchronize(queue_.stream);
    cudaStreamDestroy(queue_.stream);
  }

  cudaStream_t handle() const override { return queue_.stream; }

  void record(Event& event) override {
    auto& recorded = static_cast<CudaEvent&>(event);
    check(cudaEventRecord(recorded.event, queue_.stream), "recording an event");
    recorded.recorded = true;
  }
  void wait(const Event& event) override {
    const auto& awaited = static_cast<const CudaEvent&>(event);
    if (awaited.recorded) check(cudaStreamWaitEvent(queue_.stream, awaited.event, 0), "waiting for an event");
  }

  void copy(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes, cudaMemcpyDeviceToDevice); }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                 std::size_t rows) override {
    if (bytes > 0 && rows > 0)
      check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, rows, cudaMemcpyDeviceToDevice, queue_.stream),
            "copying memory");
  }
  void copy_from_host(void* to, const void* host, std::size_t bytes) override {
    copy(to, host, bytes, cudaMemcpyHostToDevice);
  }
  void copy_to_host(void* host, const void* from, std::size_t bytes) override {
    copy(host, from, bytes, cudaMemcpyDeviceToHost);
  }
  void zero(void* memory, std::size_t bytes) override {
    if (bytes > 0) check(cudaMemsetAsync(memory, 0, bytes, queue_.stream), "zeroing memory");
  }
  void convert(Values to, ConstValues from, std::int64_t count) override {
    if (to.type == from.type)
      copy(to.data, from.data, bytes_of(to.type, count));
    else
      cuda::convert(queue_, to, from, count);
  }

  void matmul(const MatrixProduct& product, ConstValues a, ConstValues b, Values c) override {
    multiply(product, a, b, product.accumulate ? ConstValues(c) : ConstValues(nullptr, c.type), c);
  }
  void linear_forward(const LinearShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                      ConstValues residual, PointwiseActivation activation, Values pre_activation,
                      Values output) override {
    const MatrixProduct product = shape.forward();
    const cuda::Epilogue epilogue{.bias = bias, .activation = activation, .pre_activation = pre_activation};
    if (multiply(product, input, weight, residual, output, epilogue)) return;
    multiply(product, input, weight, residual, output);
    cuda::finish_linear(queue_, output, bias, activation, pre_activation, output, shape.rows, shape.out);
  }
  void linear_backward_parameters(const LinearShape& shape, ConstValues input, ConstValues output_gradient,
                                  float* weight_gradient, float* bias_gradient) override {
    const bool swap = shape.rows_are_inputs;
    multiply(shape.backward_weight(), swap ? input : output_gradient, swap ? output_gradient : input, weight_gradient,
             weight_gradient);
    if (bias_gradient == nullptr) return;
    const Workspace<float> workspace(*this, cuda::column_sums_workspace(queue_, shape.rows, shape.out));
    cuda::add_column_sums(queue_, bias_gradient, output_gradient, shape.rows, shape.out, workspace.data);
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                             Values input_gradient) override {
    multiply(shape.backward_input(), output_gradient, weight, {nullptr, input_gradient.type}, input_gradient);
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                             PointwiseActivation activation, Values kept_to_output, Values input_gradient) override {
    if (activation == PointwiseActivation::gelu &&
        multiply(shape.backward_input(), output_gradient, weight, {nullptr, input_gradient.type}, input_gradient,
                 {.through_gelu = kept_to_output}))
      return cuda::finish_linear(queue_, kept_to_output, {nullptr, kept_to_output.type}, activation,
                                 {nullptr, kept_to_output.type}, kept_to_output, shape.rows, shape.in);
    linear_backward_input(shape, output_gradient, weight, input_gradient);
    cuda::activation_backward(queue_, activation, kept_to_output, input_gradient, shape.rows * shape.in);
  }
  void add_bias(Values values, ConstValues bias, std::int64_t rows, std::int64_t width) override {
    cuda::add_row(queue_, values, bias, rows, width);
  }
  void add(Values to, ConstValues from, std::int64_t count) override { cuda::add(queue_, to, from, count); }
  void scale(float* values, float factor, std::int64_t count) override { cuda::scale(queue_, values, factor, count); }

  void layer_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                          Values output, float* mean, float* reciprocal_deviation) override {
    cuda::layer_norm_forward(queue_, shape, input, weight, bias, output, mean, reciprocal_deviation);
  }
  void layer_norm_backward(const NormShape& shape, ConstValues input, const float* mean,
                           const float* reciprocal_deviation, ConstValues weight, Values gradient, Values sum,
                           float* weight_gradient, float* bias_gradient) override {
    const Workspace<float> workspace(*this, cuda::norm_workspace(queue_, shape));
    cuda::layer_norm_backward(queue_, shape, input, mean, reciprocal_deviation, weight, gradient, sum, weight_gradient,
                              bias_gradient, workspace.data);
  }
  void rms_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, Values output,
                        float* reciprocal_rms) override {
    cuda::rms_norm_forward(queue_, shape, input, weight, output, reciprocal_rms);
  }
  void rms_norm_backward(const NormShape& shape, ConstValues input, const float* reciprocal_rms, ConstValues weight,
                         Values gradient, Values sum, float* weight_gradient) override {
    const Workspace<float> workspace(*this, cuda::norm_workspace(queue_, shape));
    cuda::rms_norm_backward(queue_, shape, input, reciprocal_rms, weight, gradient, sum, weight_gradient,
                            workspace.data);
  }

  void swiglu_forward(ConstValues input, const float* factors, Values output, std::int64_t rows,
                      std::int64_t width) override {
    cuda::swiglu_forward(queue_, input, factors, output, rows, width);
  }
  void swiglu_backward(Values input_to_gradient, const float* factors, Values gradient_to_output,
                       float* factor_gradients, std::int64_t rows, std::int64_t width) override {
    cuda::swiglu_backward(queue_, input_to_gradient, factors, gradient_to_output, factor_gradients, rows, width);
  }

  void route(const RoutingShape& shape, ConstValues logits, const Routing& routing) override {
    const Workspace<std::int32_t> experts(*this, shape.pairs());
    const Workspace<float> weights(*this, shape.pairs());
    cuda::route(queue_, shape, logits, routing, experts.data, weights.data);
  }
  void route_backward(const RoutingShape& shape, const Routing& routing, const float* weight_gradients,
                      const RoutingBalance* balance, Values logits_gradient) override {
    cuda::route_backward(queue_, shape, routing, weight_gradients, balance, logits_gradient);
  }
  void count_choices(const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length,
                     float* counts) override {
    cuda::count_choices(queue_, shape, routing, sequence_length, counts);
  }
  void add_pairs(const RoutingShape& shape, const std::int32_t* places, ConstValues pairs, std::int64_t width,
                 Values sums) override {
    cuda::add_pairs(queue_, shape, places, pairs, width, sums);
  }

  void rotary(const AttentionShape& shape, double base, bool inverse, Values projected) override {
    RotaryTable& table = shared_.rotary_tables[{base, shape.head_width}];
    if (table.length < shape.sequence_length) {
      table.length = shape.sequence_length;
      table.cosines = Tensor(device_, {table.length, shape.head_width / 2});
      table.sines = Tensor(device_, {table.length, shape.head_width / 2});
      cuda::rotary_table(queue_, table.length, shape.head_width, base, table.cosines.floats(), table.sines.floats());
    }
    cuda::rotary(queue_, shape, table.cosines.floats(), table.sines.floats(), inverse, projected);
  }
  void attention_forward(const AttentionShape& shape, ConstValues projected, Values output, float* log_sum) override {
    if (const auto* const plan = fused_attention(shape, projected.type)) {
      const Workspace<char> workspace(*this, static_cast<std::int64_t>(plan->forward_workspace));
      return shared_.attention->forward(queue_, *plan, shape, projected, output, log_sum, workspace.data);
    }
    cuda::attention_forward(queue_, shape, projected, output, log_sum);
  }
  void attention_backward(const AttentionShape& shape, ConstValues projected, ConstValues output, const float* log_sum,
                          ConstValues output_gradient, Values projected_gradient) override {
    if (const auto* const plan = fused_attention(shape, projected.type)) {
      const Workspace<char> workspace(*this, static_cast<std::int64_t>(plan->backward_workspace));
      return shared_.attention->backward(queue_, *plan, shape, projected, output, log_sum, output_gradient,
                                         projected_gradient, workspace.data);
    }
    const Workspace<float> workspace(*this, cuda::attention_backward_workspace(shape));
    cuda::attention_backward(queue_, shape, projected, output, log_sum, output_gradient, projected_gradient,
                             workspace.data);
  }

  void gather_rows(ConstValues table, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                   std::int64_t width, Values output) override {
    cuda::gather_rows(queue_, table, rows, tokens, count, width, output);
  }
  void scatter_add_rows(float* table_gradient, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                        std::int64_t width, ConstValues gradient) override {
    cuda::scatter_add_rows(queue_, table_gradient, rows, tokens, count, width, gradient);
  }
  void add_repeated(Values values, ConstValues table, std::int64_t repeats, std::int64_t count) override {
    cuda::add_row(queue_, values, table, repeats, count);
  }
  void add_repeated_gradient(float* table_gradient, ConstValues gradient, std::int64_t repeats,
                             std::int64_t count) override {
    const Workspace<float> workspace(*this, cuda::column_sums_workspace(queue_, repeats, count));
    cuda::add_column_sums(queue_, table_gradient, gradient, repeats, count, workspace.data);
  }
  void softmax_cross_entropy(const LogitsShape& shape, Values logits_to_gradient, const std::int32_t* targets,
                             float gradient_scale, double* loss_sum) override {
    const Workspace<double> losses(*this, shape.rows);
    cuda::softmax_cross_entropy(queue_, shape, logits_to_gradient, targets, gradient_scale, loss_sum, losses.data);
  }
  void row_maxima(const LogitsShape& shape, ConstValues logits, float* maxima) override {
    cuda::row_maxima(queue_, shape, logits, maxima);
  }
  void softmax_sums(const LogitsShape& shape, Values logits_to_exponentials, const float* maxima,
                    const std::int32_t* targets, float* sums, float* target_logits) override {
    cuda::softmax_sums(queue_, shape, logits_to_exponentials, maxima, targets, sums, target_logits);
  }
  void softmax_gradient(const LogitsShape& shape, Values exponentials_to_gradient, const float* sums,
                        const float* target_logits, const std::int32_t* targets, float gradient_scale,
                        double* loss_sum) override {
    const Workspace<double> losses(*this, shape.rows);
    cuda::softmax_gradient(queue_, shape, exponentials_to_gradient, sums, target_logits, targets, gradient_scale,
                           loss_sum, losses.data);
  }

  void add_squares(std::span<const std::span<const float>> values, double* sum) override {
    const Workspace<double> workspace(*this, cuda::squares_workspace(values));
    cuda::add_squares(queue_, values, sum, workspace.data);
  }
  void clip_factor(const double* squared_norm, double scale, double clip_norm, float* factor) override {
    cuda::clip_factor(queue_, squared_norm, scale, clip_norm, factor);
  }
  void adamw(const AdamWStep& step, std::span<const OptimizerSegment> segments, const float* gradient_factor) override {
    cuda::adamw(queue_, step, segments, gradient_factor);
  }

 private:
  /// Memory until the operations enqueued so far are done.
  template <class T>
  struct Workspace {
    Workspace(ComputingStream& stream, std::int64_t count)
        : pool(stream.workspace_pool()),
          data(static_cast<T*>(pool.allocate(static_cast<std::size_t>(count) * sizeof(T)))) {}
    ~Workspace() { pool.release(data); }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    MemoryPool& pool;
    T* data;
  };

  MemoryPool& workspace_pool() {
    if (!is_main_) throw std::logic_error("CUDA: an operation that needs workspace on a stream that has none");
    return shared_.pool;
  }

  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, kind, queue_.stream), "copying memory");
  }

  const cuda::FusedAttention::Plan* fused_attention(const AttentionShape& shape, DataType type) {
    return shared_.attention == nullptr ? nullptr : shared_.attention->plan_for(shape, type);
  }

  /// Returns false if the epilogue is not supported.
  bool multiply(const MatrixProduct& product, ConstValues a, ConstValues b, ConstValues addend, Values output,
                const cuda::Epilogue& epilogue = {}) {
    const Workspace<char> workspace(*this, static_cast<std::int64_t>(shared_.gemm.workspace()));
    return shared_.gemm.multiply(queue_, product, a, b, addend, output, epilogue, shared_.tf32, workspace.data);
  }

  Shared& shared_;
  Device& device_;
  bool is_main_;
  cuda::Queue queue_;
};

class Gpu final : public CudaDevice {
 public:
  explicit Gpu(const GpuSettings& settings) : index_(settings.index) {
    check(cudaSetDevice(index_), "choosing a GPU");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index_), "properties of a GPU");
    name_ = properties.name;
    cache_bytes_ = static_cast<std::size_t>(properties.l2CacheSize);
    shared_ = std::make_unique<Shared>(name_);
    shared_->multiprocessors = properties.multiProcessorCount;
    shared_->tf32 = settings.tf32;
#if SAILOR_HAVE_CUDNN
    if (settings.fused_attention && properties.major >= 8)
      shared_->attention = cuda::make_cudnn_attention(settings.deterministic);
#endif
    main_ = std::make_unique<ComputingStream>(*shared_, *this, true);
  }
  ~Gpu() override {
    cudaDeviceSynchronize();
    shared_->rotary_tables.clear();
    if (flush_buffer_ != nullptr) cudaFree(flush_buffer_);
  }

  std::string name() const override { return name_; }
  std::string versions() const override {
    int runtime = 0;
    int driver = 0;
    check(cudaRuntimeGetVersion(&runtime), "version");
    check(cudaDriverGetVersion(&driver), "version");
    return fmt::format("CUDA {}.{} (driver for {}.{}){}{}", runtime / 1000, runtime % 1000 / 10, driver / 1000,
                       driver % 1000 / 10, shared_->attention == nullptr ? "" : ", ",
                       shared_->attention == nullptr ? "" : shared_->attention->version());
  }

  void* allocate(std::size_t bytes) override { return shared_->pool.allocate(bytes); }
  void release(void* memory) override { shared_->pool.release(memory); }
  MemoryUse memory_use() const override { return shared_->pool.use(); }
  void reset_peak_memory() override { shared_->pool.reset_peak(); }
  void set_memory_limit(Bytes limit) override { shared_->pool.set_limit(static_cast<std::size_t>(limit.value())); }
  void release_unused_memory() override {
    check(cudaDeviceSynchronize(), "synchronising");
    shared_->pool.give_back_free_segments();
  }
  /// Rows of 16-bit numbers are aligned to 128 bytes: otherwise, with a vocabulary of 50,257, cuBLAS chooses kernels
  /// that load single numbers.
  std::int64_t row_stride(std::int64_t width) const override {
    constexpr std::int64_t multiple = 64;
    return (width + multiple - 1) / multiple * multiple;
  }
  Bytes available_memory(int) const override { return free_and_total().first; }
  Bytes memory_of_process() const override {
    // Memory of this process, unless others use the GPU, too: then theirs is included.
    const auto [free, total] = free_and_total();
    return total - free - shared_->pool.use().reserved;
  }
  Bytes peak_memory_of_process() const override {
    const auto [free, total] = free_and_total();
    return total - free;
  }
  void* allocate_host(std::size_t bytes) override {
    void* memory = nullptr;
    if (cudaMallocHost(&memory, bytes) != cudaSuccess) {
      cudaGetLastError();
      throw std::bad_alloc();
    }
    return memory;
  }
  void release_host(void* memory) override { cudaFreeHost(memory); }

  Stream& main() override { return *main_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<ComputingStream>(*shared_, *this, false); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }
  bool is_done(const Event& event) override {
    const auto& asked = static_cast<const CudaEvent&>(event);
    if (!asked.recorded) return true;
    const cudaError_t state = cudaEventQuery(asked.event);
    if (state == cudaErrorNotReady) return false;
    check(state, "looking at an event");
    return true;
  }

  Seconds elapsed(const Event& from, const Event& to) override {
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(from).event,
                               static_cast<const CudaEvent&>(to).event),
          "time between events");
    return Seconds(static_cast<double>(milliseconds) * 1e-3);
  }
  void flush_caches() override {
    if (flush_buffer_ == nullptr) check(cudaMalloc(&flush_buffer_, 2 * cache_bytes_), "buffer to flush caches with");
    check(cudaMemset(flush_buffer_, 0, 2 * cache_bytes_), "flushing caches");
    check(cudaDeviceSynchronize(), "flushing caches");
  }
  double clock_hz() const override {
    if (!clock_) {
      std::array<char, 32> bus{};
      check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index_), "place of a GPU");
      clock_.emplace(bus.data());
    }
    return clock_->hz();
  }
  void set_watch(TransferWatch* watch) override { watch_ = watch; }

 private:
  static std::pair<Bytes, Bytes> free_and_total() {
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    return {Bytes(static_cast<double>(free)), Bytes(static_cast<double>(total))};
  }
  void wait_for(const Event& event) override {
    const auto& awaited = static_cast<const CudaEvent&>(event);
    if (!awaited.recorded) return;
    if (watch_ == nullptr) return check(cudaEventSynchronize(awaited.event), "waiting for an event");
    watch_->begin();
    for (int looks = 0; !is_done(event); ++looks) {
      watch_->look();
      if (looks > 1000) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    watch_->check();  // operations of aborted communicators end, too
  }

  int index_;
  std::string name_;
  std::size_t cache_bytes_ = 0;
  std::unique_ptr<Shared> shared_;
  std::unique_ptr<ComputingStream> main_;
  mutable std::optional<cuda::GpuClock> clock_;  // created on first use
  void* flush_buffer_ = nullptr;
  TransferWatch* watch_ = nullptr;
};

}  // namespace

std::unique_ptr<CudaDevice> make_cuda_device(const GpuSettings& settings) { return std::make_unique<Gpu>(settings); }

}  // namespace sailor::runtime
