// A queue of operations on a device. Operations of one stream run in the order in which they were enqueued; those of
// different streams run in any order that events allow. Every call here may return before its operation has run.
//
// Activations, their gradients and weights are Values: float32, bfloat16 or float16, those of one call all of one type
// unless it says otherwise. All arithmetic is in float32; what is stored in 16 bits is rounded to the nearest, ties to
// even. Statistics, losses, gradients of parameters and the optimizer's state are float32.
//
// Pointers are device memory unless a name says `host`, and must stay valid until the operation is done. Matrices are
// row-major and dense. A failing device throws std::runtime_error with the device's name (too little memory:
// OutOfMemoryError), a failing transfer TransportError (transport.hpp): from the call, from a later one on the stream,
// or when the host waits. Afterwards what the stream was to write is undefined.
//
// Only one thread at a time may enqueue on the streams of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/sharding.hpp"
#include "runtime/values.hpp"

namespace sailor::runtime {

/// A point in a stream. Owned by the caller that made it; the device must outlive it.
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
  // Row strides in values, as stored; 0: the row length.
  std::int64_t a_stride = 0;
  std::int64_t b_stride = 0;
  std::int64_t c_stride = 0;

  [[nodiscard]] constexpr std::int64_t a_row() const { return a_stride != 0 ? a_stride : transpose_a ? m : k; }
  [[nodiscard]] constexpr std::int64_t b_row() const { return b_stride != 0 ? b_stride : transpose_b ? k : n; }
  [[nodiscard]] constexpr std::int64_t c_row() const { return c_stride != 0 ? c_stride : n; }
};

/// A linear map of rows: output (rows, out) = input (rows, in) · weightᵀ + bias, with weight (out, in) as in PyTorch,
/// or input · weight where it is stored (in, out).
struct LinearShape {
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool rows_are_inputs = false;  ///< the weight is stored (in, out)
  /// Row stride of the output, or of its gradient, in values; 0: `out`. If it is not 0, there is neither bias nor
  /// residual nor activation.
  std::int64_t out_stride = 0;

  /// output = input · op(weight)
  [[nodiscard]] constexpr MatrixProduct forward() const {
    return {.transpose_b = !rows_are_inputs, .m = rows, .n = out, .k = in, .c_stride = out_stride};
  }
  /// weight_gradient += output_gradientᵀ · input, or inputᵀ · output_gradient where the weight is stored (in, out)
  [[nodiscard]] constexpr MatrixProduct backward_weight() const {
    if (rows_are_inputs)
      return {.transpose_a = true, .m = in, .n = out, .k = rows, .accumulate = true, .b_stride = out_stride};
    return {.transpose_a = true, .m = out, .n = in, .k = rows, .accumulate = true, .a_stride = out_stride};
  }
  /// input_gradient = output_gradient · op(weight)
  [[nodiscard]] constexpr MatrixProduct backward_input() const {
    return {.transpose_b = rows_are_inputs, .m = rows, .n = in, .k = out, .a_stride = out_stride};
  }
};

/// Logits (rows, classes.size()) of classes [first, last); the others are on other devices.
struct LogitsShape {
  std::int64_t rows = 0;
  Range classes{};
  std::int64_t stride = 0;  ///< row stride in values
};

/// Applied to every value of a linear map's output. gelu is the tanh approximation that GPT-2 and GPT-Neo use
/// ("gelu_new").
enum class PointwiseActivation { none, relu, gelu };

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

  [[nodiscard]] constexpr std::int64_t tokens() const { return sequences * sequence_length; }
  [[nodiscard]] constexpr std::int64_t width() const { return heads * head_width; }
  [[nodiscard]] constexpr std::int64_t key_value_width() const { return key_value_heads * head_width; }
  [[nodiscard]] constexpr std::int64_t projected_width() const { return width() + 2 * key_value_width(); }
};

/// A mixture of experts: each token goes to `per_token` of them. The pairs of a token and an expert have an order of
/// their own: by expert, then by token, so that every expert has its tokens side by side.
struct RoutingShape {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t per_token = 0;  ///< at most `experts`

  [[nodiscard]] constexpr std::int64_t pairs() const { return tokens * per_token; }
};

/// Where tokens go, in device memory.
struct Routing {
  std::int32_t* tokens = nullptr;   ///< (pairs): the token of each pair
  std::int32_t* places = nullptr;   ///< (tokens, per_token): indices of a token's pairs, the best expert first
  std::int32_t* offsets = nullptr;  ///< (experts + 1): place of each expert's first pair, then the number of pairs
  float* weights = nullptr;         ///< (pairs): factor of the expert's output in the token's sum
};

/// A loss that spreads tokens over experts: factor times the sum of p_i c_i over experts i, where p is the softmax of a
/// token's logits and c (`counts`) are constants of its sequence.
struct RoutingBalance {
  ConstValues logits = nullptr;      ///< (tokens, experts)
  const float* counts = nullptr;     ///< (sequences, experts)
  std::int64_t sequence_length = 1;  ///< tokens of a sequence
  float factor = 0.0f;
};

/// One step of AdamW (Loshchilov & Hutter 2019, decoupled weight decay).
struct AdamWStep {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;
  std::int64_t step = 1;  ///< counted from 1, for the bias correction
};

/// `count` elements that AdamW updates.
struct OptimizerSegment {
  float* value = nullptr;
  const float* gradient = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  std::int64_t count = 0;
  bool decays = true;        ///< weight decay applies
  Values rounded = nullptr;  ///< if not null, it becomes the new value: 16-bit weights to compute with
};

class Stream {
 public:
  Stream() = default;
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // ---- Order
  /// The event becomes the point after everything enqueued on this stream so far; it may have been another point
  /// before.
  virtual void record(Event& event) = 0;
  /// Operations enqueued on this stream from now on run after the event, which may be of any stream of the device. Does
  /// nothing if the event was never recorded.
  virtual void wait(const Event& event) = 0;

  // ---- Copies
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  /// Copies `rows` rows of `bytes` bytes, which begin `to_stride` and `from_stride` bytes apart.
  virtual void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                         std::size_t rows) = 0;
  /// The host's memory is read and written when the operation runs; pinned memory (Device::allocate_host) lets the host
  /// go on meanwhile.
  virtual void copy_from_host(void* to, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* memory, std::size_t bytes) = 0;
  /// to = from, of any two types.
  virtual void convert(Values to, ConstValues from, std::int64_t count) = 0;

  // ---- Linear algebra
  /// A and B have one type, C may have another: gradients of 16-bit weights are added up in float32.
  virtual void matmul(const MatrixProduct& product, ConstValues a, ConstValues b, Values c) = 0;
  /// output (rows, out) = activation(residual + input · weight + bias). `bias` (out) and `residual` (rows, out) may be
  /// null. With gelu, `pre_activation` (rows, out) becomes the input of the activation; otherwise it is null.
  virtual void linear_forward(const LinearShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                              ConstValues residual, PointwiseActivation activation, Values pre_activation,
                              Values output) = 0;
  /// weight_gradient += the gradient of the map's weight; bias_gradient (out), if not null, += column sums of
  /// output_gradient.
  virtual void linear_backward_parameters(const LinearShape& shape, ConstValues input, ConstValues output_gradient,
                                          float* weight_gradient, float* bias_gradient) = 0;
  /// input_gradient (rows, in) = output_gradient (rows, out) · weight.
  virtual void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                                     Values input_gradient) = 0;
  /// The same, and back through the activation whose output was the map's input: input_gradient is the gradient of the
  /// activation's input. With gelu, `kept_to_output` (rows, in) holds the activation's input and becomes its output,
  /// which is needed for weight gradients; with relu it already is the output.
  virtual void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                                     PointwiseActivation activation, Values kept_to_output, Values input_gradient) = 0;
  /// values (rows, width) += bias (width)
  virtual void add_bias(Values values, ConstValues bias, std::int64_t rows, std::int64_t width) = 0;
  /// to += from
  virtual void add(Values to, ConstValues from, std::int64_t count) = 0;
  /// values *= factor
  virtual void scale(float* values, float factor, std::int64_t count) = 0;

  // ---- Normalisation
  /// output = (input - mean) · reciprocal_deviation · weight + bias, per row; output may be input.
  /// mean and reciprocal_deviation (rows) are written for the backward pass.
  virtual void layer_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                                  Values output, float* mean, float* reciprocal_deviation) = 0;
  /// On entry, `gradient` (rows, width) is the gradient of the output. The gradient of the input is added to `sum`
  /// (rows, width), and `gradient` is undefined afterwards; if `sum` is null, it replaces `gradient`. weight_gradient
  /// and bias_gradient (width) are accumulated.
  virtual void layer_norm_backward(const NormShape& shape, ConstValues input, const float* mean,
                                   const float* reciprocal_deviation, ConstValues weight, Values gradient, Values sum,
                                   float* weight_gradient, float* bias_gradient) = 0;
  /// RMSNorm (Zhang & Sennrich 2019): output = input · reciprocal_rms · weight per row, with reciprocal_rms =
  /// 1 / sqrt(mean of squares + epsilon), which is written for the backward pass (rows); output may be input.
  virtual void rms_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, Values output,
                                float* reciprocal_rms) = 0;
  /// `gradient` and `sum` as in layer_norm_backward; weight_gradient (width) is accumulated.
  virtual void rms_norm_backward(const NormShape& shape, ConstValues input, const float* reciprocal_rms,
                                 ConstValues weight, Values gradient, Values sum, float* weight_gradient) = 0;

  // ---- Gated activation
  /// output (rows, width) = factor · silu(gate) · up, of input (rows, [gate | up]) with `width` values each (Shazeer
  /// 2020). `factors` (rows) may be null: 1.
  virtual void swiglu_forward(ConstValues input, const float* factors, Values output, std::int64_t rows,
                              std::int64_t width) = 0;
  /// input (rows, 2 · width) becomes its gradient, and the gradient of the output (rows, width) becomes the output,
  /// which is needed for weight gradients. `factor_gradients` (rows), null where `factors` is, are written.
  virtual void swiglu_backward(Values input_to_gradient, const float* factors, Values gradient_to_output,
                               float* factor_gradients, std::int64_t rows, std::int64_t width) = 0;

  // ---- Mixture of experts
  /// Chooses for each token the experts with the largest of its logits (tokens, experts), of equal ones the first;
  /// their weights are the softmax over the chosen (Jiang et al. 2024, Mixtral, section 2.1). Writes all of `routing`.
  virtual void route(const RoutingShape& shape, ConstValues logits, const Routing& routing) = 0;
  /// logits_gradient (tokens, experts) from the gradients of the weights (pairs); 0 for experts that were not chosen.
  /// `balance` (null: none) adds its part before anything is rounded.
  virtual void route_backward(const RoutingShape& shape, const Routing& routing, const float* weight_gradients,
                              const RoutingBalance* balance, Values logits_gradient) = 0;
  /// counts (sequences, experts) = tokens of each sequence of `sequence_length` tokens that go to each expert.
  virtual void count_choices(const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length,
                             float* counts) = 0;
  /// sums (tokens, width) += the rows of each token's pairs, of `pairs` (pairs, width).
  virtual void add_pairs(const RoutingShape& shape, const std::int32_t* places, ConstValues pairs, std::int64_t width,
                         Values sums) = 0;

  // ---- Attention
  /// Rotary position embedding (Su et al. 2021) of the queries and keys in projected (tokens, projected_width), in the
  /// layout of Hugging Face's LLaMA: values i and i + head_width / 2 of a head are turned by the angle
  /// position · base^(-2i / head_width). `inverse` turns back: for gradients.
  virtual void rotary(const AttentionShape& shape, double base, bool inverse, Values projected) = 0;
  /// projected (tokens, projected_width) -> output (tokens, width). log_sum (tokens times heads) is written for the
  /// backward pass: the logarithm of each softmax denominator, in a device-specific order.
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
  /// Logits of all classes become their gradient, times `gradient_scale`; *loss_sum += the sum of the rows'
  /// cross-entropies (natural logarithm, not scaled). Values between two rows are left unchanged, here and below.
  virtual void softmax_cross_entropy(const LogitsShape& shape, Values logits_to_gradient, const std::int32_t* targets,
                                     float gradient_scale, double* loss_sum) = 0;
  // The same in three steps, where this device has only some of the classes: between the first and the second, maxima
  // must become the max over all devices; between the second and the third, sums and target_logits must be summed over
  // the devices.
  /// maxima (rows) = largest logit of each row
  virtual void row_maxima(const LogitsShape& shape, ConstValues logits, float* maxima) = 0;
  /// logits become exp(logit - maximum); sums (rows) = their sums; target_logits (rows) = logit of the target -
  /// maximum, or 0 where it is on another device.
  virtual void softmax_sums(const LogitsShape& shape, Values logits_to_exponentials, const float* maxima,
                            const std::int32_t* targets, float* sums, float* target_logits) = 0;
  /// Exponentials become the gradient of the logits, times `gradient_scale`; *loss_sum += the sum of the rows'
  /// cross-entropies, which is complete on every device.
  virtual void softmax_gradient(const LogitsShape& shape, Values exponentials_to_gradient, const float* sums,
                                const float* target_logits, const std::int32_t* targets, float gradient_scale,
                                double* loss_sum) = 0;

  // ---- Optimizer
  /// *sum += the squares of all values, in fp64.
  virtual void add_squares(std::span<const std::span<const float>> values, double* sum) = 0;
  /// *factor = factor for gradients whose squares add up to *squared_norm: it divides them by `scale` and then limits
  /// their norm to `clip_norm` (0: no limit); NaN if *squared_norm is not finite.
  virtual void clip_factor(const double* squared_norm, double scale, double clip_norm, float* factor) = 0;
  /// Updates all segments. Gradients are multiplied by *gradient_factor first (null: 1); nothing is updated if that is
  /// NaN.
  virtual void adamw(const AdamWStep& step, std::span<const OptimizerSegment> segments,
                     const float* gradient_factor) = 0;
};

}  // namespace sailor::runtime
