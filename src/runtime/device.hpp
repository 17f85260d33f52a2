// What the training runtime needs of a processor: memory with accounting, copies, and the operations of a
// transformer.
//
// Activations, their gradients and weights are Values: float32 or bfloat16, those of one call all of one type unless it
// says otherwise. All arithmetic is in float32; what is stored as bfloat16 is rounded to the nearest, ties to even.
// Statistics, losses, gradients of parameters and the optimizer's state are float32.
//
// Pointers are device memory unless a name says `host`. Matrices are row-major and dense unless a leading
// dimension is given. Operations may be queued and return early; they run in the order they were asked for,
// and synchronize() waits for them. A failing device throws std::runtime_error with the device's name (too little
// memory: OutOfMemoryError); the rank's main loop turns that into a message and ends the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/units.hpp"
#include "runtime/sharding.hpp"
#include "runtime/values.hpp"

namespace sailor::runtime {

/// Bytes of tensors on a device.
struct MemoryUse {
  Bytes alive{};     ///< allocated now
  Bytes peak{};      ///< largest `alive` since the last reset_peak_memory()
  Bytes reserved{};  ///< taken from the system: alive plus what the pool keeps for reuse
};

/// An allocation that failed. The device can be used on, and what was allocated before is there.
class OutOfMemoryError : public std::runtime_error {
 public:
  OutOfMemoryError(const std::string& message, Bytes requested_bytes, Bytes reserved_bytes, Bytes available_bytes)
      : std::runtime_error(message), requested(requested_bytes), reserved(reserved_bytes), available(available_bytes) {}
  Bytes requested;
  Bytes reserved;   ///< taken from the system before, without what could be given back
  Bytes available;  ///< that the device has for this rank, `reserved` included; where it has no limit, `reserved`
};

/// A point in a device's queue of operations, for measuring the time between two of them.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

/// C (m, n) = op(A) (m, k) · op(B) (k, n), or C += that. A is stored (k, m) when transposed, B (n, k).
struct MatrixProduct {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool accumulate = false;  ///< add to C instead of overwriting it
};

/// Rows of `width` values, each normalised by itself.
struct NormShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float epsilon = 1e-5f;
};

/// Causal self-attention. Queries, keys and values of a token stand side by side in one row, [query | key | value], of
/// `heads`, `key_value_heads` and again `key_value_heads` heads of head_width values. Grouped-query attention: query
/// heads i · g to (i + 1) · g - 1 share key-value head i, with g = heads / key_value_heads.
struct AttentionShape {
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  std::int64_t heads = 0;
  std::int64_t key_value_heads = 0;  ///< divides heads
  std::int64_t head_width = 0;
  float score_scale = 1.0f;  ///< scores are multiplied by it
  std::int64_t window = 0;   ///< a token sees itself and window - 1 tokens before it; 0 = all before it

  [[nodiscard]] std::int64_t tokens() const { return sequences * sequence_length; }
  [[nodiscard]] std::int64_t width() const { return heads * head_width; }
  [[nodiscard]] std::int64_t key_value_width() const { return key_value_heads * head_width; }
  [[nodiscard]] std::int64_t projected_width() const { return width() + 2 * key_value_width(); }
};

/// One step of AdamW (Loshchilov & Hutter 2019, decoupled weight decay).
struct AdamWStep {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;
  std::int64_t step = 1;        ///< counted from 1, for the bias correction
  float gradient_scale = 1.0f;  ///< gradients are multiplied by it first (clipping)
};

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// "AMD EPYC 7763", "NVIDIA H200".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Libraries that compute, with versions: "OpenBLAS 0.3.21".
  [[nodiscard]] virtual std::string versions() const = 0;

  // ---- Memory. Contents of new memory are undefined. Alignment is at least 64 bytes.
  /// Throws OutOfMemoryError.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  [[nodiscard]] virtual MemoryUse memory_use() const = 0;
  virtual void reset_peak_memory() = 0;
  /// Reserve no more than that; 0: as much as there is. Below what is reserved now only new memory is refused.
  virtual void set_memory_limit(Bytes limit) = 0;
  /// Returns to the system what the pool keeps for reuse, so that what is allocated next lies elsewhere.
  virtual void release_unused_memory() = 0;

  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  /// The host memory may be reused when these return.
  virtual void copy_from_host(void* to, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* memory, std::size_t bytes) = 0;
  /// to = from, of any two types.
  virtual void convert(Values to, ConstValues from, std::int64_t count) = 0;
  virtual void synchronize() = 0;

  // ---- Measuring
  /// An event of this device, which must outlive it. Not recorded yet.
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;
  /// The event becomes the point behind all operations asked for so far; it may have been another before.
  virtual void record(Event& event) = 0;
  /// From one recorded event to a later one. Waits until the device has got to `to`.
  [[nodiscard]] virtual Seconds elapsed(const Event& from, const Event& to) = 0;
  /// When it returns, no cache of the device holds memory that an operation used before.
  virtual void flush_caches() = 0;
  /// Of the processor now; 0 when the system does not say.
  [[nodiscard]] virtual double clock_hz() const = 0;

  // ---- Linear algebra
  /// A and B have one type, C may have another: gradients of bfloat16 weights are added up in float32.
  virtual void matmul(const MatrixProduct& product, ConstValues a, ConstValues b, Values c) = 0;
  /// values (rows, width) += bias (width)
  virtual void add_bias(Values values, ConstValues bias, std::int64_t rows, std::int64_t width) = 0;
  /// bias_gradient (width) += column sums of gradient (rows, width)
  virtual void add_bias_gradient(float* bias_gradient, ConstValues gradient, std::int64_t rows, std::int64_t width) = 0;
  /// to += from
  virtual void add(Values to, ConstValues from, std::int64_t count) = 0;
  /// values *= factor
  virtual void scale(float* values, float factor, std::int64_t count) = 0;
  /// The sum of squares, in fp64. Waits for it.
  [[nodiscard]] virtual double squared_sum(const float* values, std::int64_t count) = 0;

  // ---- Normalisation
  /// output = (input - mean) · reciprocal_deviation · weight + bias, per row; output may be input.
  /// mean and reciprocal_deviation (rows) are written for the backward pass.
  virtual void layer_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                                  Values output, float* mean, float* reciprocal_deviation) = 0;
  /// `gradient` (rows, width) is the gradient of the output on entry and of the input on return.
  /// weight_gradient and bias_gradient (width) are added to.
  virtual void layer_norm_backward(const NormShape& shape, ConstValues input, const float* mean,
                                   const float* reciprocal_deviation, ConstValues weight, Values gradient,
                                   float* weight_gradient, float* bias_gradient) = 0;
  /// RMSNorm (Zhang & Sennrich 2019): output = input · reciprocal_rms · weight per row, with reciprocal_rms =
  /// 1 / sqrt(mean of squares + epsilon), which is written for the backward pass (rows); output may be input.
  virtual void rms_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, Values output,
                                float* reciprocal_rms) = 0;
  /// `gradient` as in layer_norm_backward; weight_gradient (width) is added to.
  virtual void rms_norm_backward(const NormShape& shape, ConstValues input, const float* reciprocal_rms,
                                 ConstValues weight, Values gradient, float* weight_gradient) = 0;

  // ---- Activation functions
  /// values = max(values, 0)
  virtual void relu_forward(Values values, std::int64_t count) = 0;
  /// gradient = 0 where output = 0
  virtual void relu_backward(ConstValues output, Values gradient, std::int64_t count) = 0;
  /// output = gelu(input), in the tanh approximation that GPT-2 and GPT-Neo use ("gelu_new").
  virtual void gelu_forward(ConstValues input, Values output, std::int64_t count) = 0;
  /// gradient *= gelu'(input_to_output); then input_to_output = gelu(input_to_output): the output is needed for
  /// weight gradients and costs next to nothing here, so that forward need not keep it.
  virtual void gelu_backward(Values input_to_output, Values gradient, std::int64_t count) = 0;
  /// output (rows, width) = silu(gate) · up, of input (rows, [gate | up]) with `width` values each (Shazeer 2020).
  virtual void swiglu_forward(ConstValues input, Values output, std::int64_t rows, std::int64_t width) = 0;
  /// input (rows, 2 · width) becomes its gradient, and the gradient of the output (rows, width) becomes the output,
  /// which is needed for weight gradients.
  virtual void swiglu_backward(Values input_to_gradient, Values gradient_to_output, std::int64_t rows,
                               std::int64_t width) = 0;

  // ---- Attention
  /// Rotary position embedding (Su et al. 2021) of the queries and keys in projected (tokens, projected_width), in the
  /// layout of Hugging Face's LLaMA: values i and i + head_width / 2 of a head are turned by the angle
  /// position · base^(-2i / head_width). `inverse` turns back: for gradients.
  virtual void rotary(const AttentionShape& shape, double base, bool inverse, Values projected) = 0;
  /// projected (tokens, projected_width) -> output (tokens, width). log_sum (tokens, heads) is written for the backward
  /// pass: the logarithm of each softmax denominator.
  virtual void attention_forward(const AttentionShape& shape, ConstValues projected, Values output, float* log_sum) = 0;
  /// Writes projected_gradient (tokens, projected_width).
  virtual void attention_backward(const AttentionShape& shape, ConstValues projected, ConstValues output,
                                  const float* log_sum, ConstValues output_gradient, Values projected_gradient) = 0;

  // ---- Embedding and loss
  /// output (count, width) = rows `tokens` of a table of which `table` is rows [rows.first, rows.last); tokens outside
  /// get zeros.
  virtual void gather_rows(ConstValues table, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                           std::int64_t width, Values output) = 0;
  /// rows `tokens` of table_gradient += gradient (count, width); those of tokens outside `rows` are left out.
  virtual void scatter_add_rows(float* table_gradient, const Range& rows, const std::int32_t* tokens,
                                std::int64_t count, std::int64_t width, ConstValues gradient) = 0;
  /// values (repeats, count) += table (count); for learned positions count = sequence_length · hidden.
  virtual void add_repeated(Values values, ConstValues table, std::int64_t repeats, std::int64_t count) = 0;
  /// table_gradient (count) += sum over repeats of gradient (repeats, count)
  virtual void add_repeated_gradient(float* table_gradient, ConstValues gradient, std::int64_t repeats,
                                     std::int64_t count) = 0;
  /// logits (rows, classes) become their gradient, times `gradient_scale`; *loss_sum += the sum of the rows'
  /// cross-entropies (natural logarithm, not scaled).
  virtual void softmax_cross_entropy(Values logits_to_gradient, const std::int32_t* targets, std::int64_t rows,
                                     std::int64_t classes, float gradient_scale, double* loss_sum) = 0;
  // The same in three steps where this device has only classes [first, last) of the logits (rows, last - first):
  // maxima are to be made those of all classes between the first and the second, sums and target_logits summed over
  // the devices between the second and the third.
  /// maxima (rows) = largest of each row of values (rows, width)
  virtual void row_maxima(ConstValues values, std::int64_t rows, std::int64_t width, float* maxima) = 0;
  /// logits become exp(logit - maximum); sums (rows) = their sums; target_logits (rows) = logit of the target -
  /// maximum, or 0 where it is on another device.
  virtual void softmax_sums(Values logits_to_exponentials, const float* maxima, const Range& classes,
                            const std::int32_t* targets, std::int64_t rows, float* sums, float* target_logits) = 0;
  /// Exponentials become the gradient of the logits, times `gradient_scale`; *loss_sum += the sum of the rows'
  /// cross-entropies, whole on every device.
  virtual void softmax_gradient(Values exponentials_to_gradient, const float* sums, const float* target_logits,
                                const Range& classes, const std::int32_t* targets, std::int64_t rows,
                                float gradient_scale, double* loss_sum) = 0;

  // ---- Optimizer
  /// Steps `value` by `gradient`. Where `rounded` is not null it becomes the new value: bfloat16 weights to work with.
  virtual void adamw(const AdamWStep& step, float* value, const float* gradient, float* first_moment,
                     float* second_moment, std::int64_t count, Values rounded = nullptr) = 0;
};

}  // namespace sailor::runtime
