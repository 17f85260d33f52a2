// A stream that passes every operation on as a call, with its name, shape and cost: to run it later, or to time it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/stream.hpp"

namespace sailor::runtime::test {

/// What an operation is, and what it costs at least.
struct Operation {
  const char* name;
  std::array<std::int64_t, 3> shape{};  ///< as far as it is not 0
  double flop = 0.0;                    ///< of matrix products; 0: it is bound by memory
  double bytes = 0.0;                   ///< of device memory, each value read and written once

  auto operator<=>(const Operation&) const = default;
};

/// Of `amount` values of that type, `times` over.
inline double traffic(DataType type, std::int64_t amount, double times) {
  return times * static_cast<double>(bytes_of(type, amount));
}
inline double flop_of(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}
/// Of the two products in causal attention's forward pass, without what is masked.
inline double flop_of(const AttentionShape& shape) {
  const std::int64_t length = shape.sequence_length;
  const std::int64_t window = shape.window > 0 ? std::min(shape.window, length) : length;
  const auto seen = static_cast<double>(window * (window + 1) / 2 + (length - window) * window);
  return 4.0 * static_cast<double>(shape.sequences) * seen * static_cast<double>(shape.width());
}

/// Base: Stream, or HostStream.
template <class Base>
class WrappedStream : public Base {
 public:
  void copy(void* to, const void* from, std::size_t bytes) override {
    operate({"copy", {}, 0.0, 2.0 * static_cast<double>(bytes)}, [=](Stream& inner) { inner.copy(to, from, bytes); });
  }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                 std::size_t rows) override {
    operate({"copy rows", {}, 0.0, 2.0 * static_cast<double>(bytes * rows)},
            [=](Stream& inner) { inner.copy_rows(to, to_stride, from, from_stride, bytes, rows); });
  }
  void copy_from_host(void* to, const void* host, std::size_t bytes) override {
    operate({"copy from host"}, [=](Stream& inner) { inner.copy_from_host(to, host, bytes); });
  }
  void copy_to_host(void* host, const void* from, std::size_t bytes) override {
    operate({"copy to host"}, [=](Stream& inner) { inner.copy_to_host(host, from, bytes); });
  }
  void zero(void* memory, std::size_t bytes) override {
    operate({"zero", {}, 0.0, static_cast<double>(bytes)}, [=](Stream& inner) { inner.zero(memory, bytes); });
  }
  void convert(Values to, ConstValues from, std::int64_t count) override {
    operate({"convert", {count}, 0.0, traffic(to.type, count, 1) + traffic(from.type, count, 1)},
            [=](Stream& inner) { inner.convert(to, from, count); });
  }
  void matmul(const MatrixProduct& product, ConstValues a, ConstValues b, Values c) override {
    operate({"matrix product", {product.m, product.n, product.k}, flop_of(product.m, product.n, product.k)},
            [=](Stream& inner) { inner.matmul(product, a, b, c); });
  }
  void linear_forward(const LinearShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                      ConstValues residual, PointwiseActivation activation, Values pre_activation,
                      Values output) override {
    operate(linear("linear, forward", shape), [=](Stream& inner) {
      inner.linear_forward(shape, input, weight, bias, residual, activation, pre_activation, output);
    });
  }
  void linear_backward_parameters(const LinearShape& shape, ConstValues input, ConstValues output_gradient,
                                  float* weight_gradient, float* bias_gradient) override {
    operate(linear("linear, weight gradient", shape), [=](Stream& inner) {
      inner.linear_backward_parameters(shape, input, output_gradient, weight_gradient, bias_gradient);
    });
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                             Values input_gradient) override {
    operate(linear("linear, input gradient", shape),
            [=](Stream& inner) { inner.linear_backward_input(shape, output_gradient, weight, input_gradient); });
  }
  void linear_backward_input(const LinearShape& shape, ConstValues output_gradient, ConstValues weight,
                             PointwiseActivation activation, Values kept_to_output, Values input_gradient) override {
    operate(linear("linear, input gradient + activation", shape), [=](Stream& inner) {
      inner.linear_backward_input(shape, output_gradient, weight, activation, kept_to_output, input_gradient);
    });
  }
  void add_bias(Values values, ConstValues bias, std::int64_t rows, std::int64_t width) override {
    operate({"add bias", {rows, width}, 0.0, traffic(values.type, rows * width, 2)},
            [=](Stream& inner) { inner.add_bias(values, bias, rows, width); });
  }
  void add(Values to, ConstValues from, std::int64_t count) override {
    operate({"add", {count}, 0.0, traffic(to.type, count, 3)}, [=](Stream& inner) { inner.add(to, from, count); });
  }
  void scale(float* values, float factor, std::int64_t count) override {
    operate({"scale", {count}, 0.0, traffic(DataType::float32, count, 2)},
            [=](Stream& inner) { inner.scale(values, factor, count); });
  }
  void layer_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, ConstValues bias,
                          Values output, float* mean, float* reciprocal_deviation) override {
    operate(norm("layer norm, forward", shape, input.type, 2), [=](Stream& inner) {
      inner.layer_norm_forward(shape, input, weight, bias, output, mean, reciprocal_deviation);
    });
  }
  void layer_norm_backward(const NormShape& shape, ConstValues input, const float* mean,
                           const float* reciprocal_deviation, ConstValues weight, Values gradient, Values sum,
                           float* weight_gradient, float* bias_gradient) override {
    operate(norm("layer norm, backward", shape, input.type, sum.data != nullptr ? 4 : 3), [=](Stream& inner) {
      inner.layer_norm_backward(shape, input, mean, reciprocal_deviation, weight, gradient, sum, weight_gradient,
                                bias_gradient);
    });
  }
  void rms_norm_forward(const NormShape& shape, ConstValues input, ConstValues weight, Values output,
                        float* reciprocal_rms) override {
    operate(norm("RMSNorm, forward", shape, input.type, 2),
            [=](Stream& inner) { inner.rms_norm_forward(shape, input, weight, output, reciprocal_rms); });
  }
  void rms_norm_backward(const NormShape& shape, ConstValues input, const float* reciprocal_rms, ConstValues weight,
                         Values gradient, Values sum, float* weight_gradient) override {
    operate(norm("RMSNorm, backward", shape, input.type, sum.data != nullptr ? 4 : 3), [=](Stream& inner) {
      inner.rms_norm_backward(shape, input, reciprocal_rms, weight, gradient, sum, weight_gradient);
    });
  }
  void swiglu_forward(ConstValues input, const float* factors, Values output, std::int64_t rows,
                      std::int64_t width) override {
    operate({"SwiGLU, forward", {rows, width}, 0.0, traffic(input.type, rows * width, 3)},
            [=](Stream& inner) { inner.swiglu_forward(input, factors, output, rows, width); });
  }
  void swiglu_backward(Values input_to_gradient, const float* factors, Values gradient_to_output,
                       float* factor_gradients, std::int64_t rows, std::int64_t width) override {
    operate({"SwiGLU, backward", {rows, width}, 0.0, traffic(input_to_gradient.type, rows * width, 6)},
            [=](Stream& inner) {
              inner.swiglu_backward(input_to_gradient, factors, gradient_to_output, factor_gradients, rows, width);
            });
  }
  void route(const RoutingShape& shape, ConstValues logits, const Routing& routing) override {
    operate({"routing", {shape.tokens, shape.experts}, 0.0, traffic(logits.type, shape.tokens * shape.experts, 1)},
            [=](Stream& inner) { inner.route(shape, logits, routing); });
  }
  void route_backward(const RoutingShape& shape, const Routing& routing, const float* weight_gradients,
                      const RoutingBalance* balance, Values logits_gradient) override {
    operate({"routing, backward",
             {shape.tokens, shape.experts},
             0.0,
             traffic(logits_gradient.type, shape.tokens * shape.experts, 1)},
            [=, kept = balance != nullptr ? std::optional(*balance) : std::nullopt](Stream& inner) {
              inner.route_backward(shape, routing, weight_gradients, kept ? &*kept : nullptr, logits_gradient);
            });
  }
  void count_choices(const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length,
                     float* counts) override {
    operate({"choices of experts", {shape.tokens, shape.experts}, 0.0, traffic(DataType::int32, shape.pairs(), 1)},
            [=](Stream& inner) { inner.count_choices(shape, routing, sequence_length, counts); });
  }
  void add_pairs(const RoutingShape& shape, const std::int32_t* places, ConstValues pairs, std::int64_t width,
                 Values sums) override {
    operate({"sums of pairs",
             {shape.tokens, width},
             0.0,
             traffic(pairs.type, (shape.pairs() + 2 * shape.tokens) * width, 1)},
            [=](Stream& inner) { inner.add_pairs(shape, places, pairs, width, sums); });
  }
  void rotary(const AttentionShape& shape, double base, bool inverse, Values projected) override {
    operate({"rotary positions",
             {shape.tokens(), shape.width() + shape.key_value_width()},
             0.0,
             traffic(projected.type, shape.tokens() * (shape.width() + shape.key_value_width()), 2)},
            [=](Stream& inner) { inner.rotary(shape, base, inverse, projected); });
  }
  void attention_forward(const AttentionShape& shape, ConstValues projected, Values output, float* log_sum) override {
    operate({"attention, forward", {shape.sequences, shape.sequence_length, shape.width()}, flop_of(shape)},
            [=](Stream& inner) { inner.attention_forward(shape, projected, output, log_sum); });
  }
  void attention_backward(const AttentionShape& shape, ConstValues projected, ConstValues output, const float* log_sum,
                          ConstValues output_gradient, Values projected_gradient) override {
    operate({"attention, backward", {shape.sequences, shape.sequence_length, shape.width()}, 2.5 * flop_of(shape)},
            [=](Stream& inner) {
              inner.attention_backward(shape, projected, output, log_sum, output_gradient, projected_gradient);
            });
  }
  void gather_rows(ConstValues table, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                   std::int64_t width, Values output) override {
    operate({"embedding, forward", {count, width}, 0.0, traffic(output.type, count * width, 2)},
            [=](Stream& inner) { inner.gather_rows(table, rows, tokens, count, width, output); });
  }
  void scatter_add_rows(float* table_gradient, const Range& rows, const std::int32_t* tokens, std::int64_t count,
                        std::int64_t width, ConstValues gradient) override {
    operate({"embedding, backward",
             {count, width},
             0.0,
             traffic(gradient.type, count * width, 1) + traffic(DataType::float32, count * width, 2)},
            [=](Stream& inner) { inner.scatter_add_rows(table_gradient, rows, tokens, count, width, gradient); });
  }
  void add_repeated(Values values, ConstValues table, std::int64_t repeats, std::int64_t count) override {
    operate({"positions, forward", {repeats, count}, 0.0, traffic(values.type, repeats * count, 2)},
            [=](Stream& inner) { inner.add_repeated(values, table, repeats, count); });
  }
  void add_repeated_gradient(float* table_gradient, ConstValues gradient, std::int64_t repeats,
                             std::int64_t count) override {
    operate({"positions, backward", {repeats, count}, 0.0, traffic(gradient.type, repeats * count, 1)},
            [=](Stream& inner) { inner.add_repeated_gradient(table_gradient, gradient, repeats, count); });
  }
  void softmax_cross_entropy(const LogitsShape& shape, Values logits_to_gradient, const std::int32_t* targets,
                             float gradient_scale, double* loss_sum) override {
    operate(loss("cross-entropy", shape, logits_to_gradient.type, 3), [=](Stream& inner) {
      inner.softmax_cross_entropy(shape, logits_to_gradient, targets, gradient_scale, loss_sum);
    });
  }
  void row_maxima(const LogitsShape& shape, ConstValues logits, float* maxima) override {
    operate(loss("cross-entropy, maxima", shape, logits.type, 1),
            [=](Stream& inner) { inner.row_maxima(shape, logits, maxima); });
  }
  void softmax_sums(const LogitsShape& shape, Values logits_to_exponentials, const float* maxima,
                    const std::int32_t* targets, float* sums, float* target_logits) override {
    operate(loss("cross-entropy, sums", shape, logits_to_exponentials.type, 2), [=](Stream& inner) {
      inner.softmax_sums(shape, logits_to_exponentials, maxima, targets, sums, target_logits);
    });
  }
  void softmax_gradient(const LogitsShape& shape, Values exponentials_to_gradient, const float* sums,
                        const float* target_logits, const std::int32_t* targets, float gradient_scale,
                        double* loss_sum) override {
    operate(loss("cross-entropy, gradient", shape, exponentials_to_gradient.type, 2), [=](Stream& inner) {
      inner.softmax_gradient(shape, exponentials_to_gradient, sums, target_logits, targets, gradient_scale, loss_sum);
    });
  }
  void add_squares(std::span<const std::span<const float>> values, double* sum) override {
    std::int64_t count = 0;
    for (const auto& part : values) count += static_cast<std::int64_t>(part.size());
    operate({"gradient norm", {count}, 0.0, traffic(DataType::float32, count, 1)},
            [all = std::vector(values.begin(), values.end()), sum](Stream& inner) { inner.add_squares(all, sum); });
  }
  void clip_factor(const double* squared_norm, double scale, double clip_norm, float* factor) override {
    operate({"clip factor"}, [=](Stream& inner) { inner.clip_factor(squared_norm, scale, clip_norm, factor); });
  }
  void adamw(const AdamWStep& step, std::span<const OptimizerSegment> segments, const float* gradient_factor) override {
    std::int64_t count = 0;
    double bytes = 0.0;
    for (const OptimizerSegment& segment : segments) {
      count += segment.count;
      bytes += traffic(DataType::float32, segment.count, 7);
      if (segment.rounded.data != nullptr) bytes += traffic(segment.rounded.type, segment.count, 1);
    }
    operate({"AdamW", {count}, 0.0, bytes}, [=, all = std::vector(segments.begin(), segments.end())](Stream& inner) {
      inner.adamw(step, all, gradient_factor);
    });
  }

 private:
  virtual void operate(const Operation& operation, std::function<void(Stream&)> call) = 0;

  static Operation linear(const char* name, const LinearShape& shape) {
    return {name, {shape.rows, shape.in, shape.out}, flop_of(shape.rows, shape.in, shape.out)};
  }
  static Operation norm(const char* name, const NormShape& shape, DataType type, double times) {
    return {name, {shape.rows, shape.width}, 0.0, traffic(type, shape.rows * shape.width, times)};
  }
  static Operation loss(const char* name, const LogitsShape& shape, DataType type, double times) {
    return {name, {shape.rows, shape.classes.size()}, 0.0, traffic(type, shape.rows * shape.classes.size(), times)};
  }
};

}  // namespace sailor::runtime::test
