// Parts of fused operations, for tests that look at one part: with a weight of 1 a linear map changes nothing, to the
// last bit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime::test {

/// A weight of 1 of the type of `values`.
struct One {
  explicit One(DataType type) : type_(type), narrow_(type == DataType::float16 ? 0x3c00 : 0x3f80) {}
  operator ConstValues() const {  // NOLINT(google-explicit-constructor)
    return type_ == DataType::float32 ? ConstValues(&wide_) : ConstValues(&narrow_, type_);
  }

 private:
  DataType type_;
  float wide_ = 1.0f;
  std::uint16_t narrow_;
};

inline std::vector<char> copy_of(ConstValues values, std::int64_t count) {
  const auto* const from = static_cast<const char*>(values.data);
  return {from, from + bytes_of(values.type, count)};
}

/// values = max(values, 0)
inline void relu_forward(Device& device, Values values, std::int64_t count) {
  const std::vector<char> input = copy_of(values, count);
  device.main().linear_forward({.rows = count, .in = 1, .out = 1}, {input.data(), values.type}, One(values.type),
                               nullptr, nullptr, PointwiseActivation::relu, nullptr, values);
}
/// output = gelu(input)
inline void gelu_forward(Device& device, ConstValues input, Values output, std::int64_t count) {
  std::vector<char> before = copy_of(input, count);
  device.main().linear_forward({.rows = count, .in = 1, .out = 1}, input, One(input.type), nullptr, nullptr,
                               PointwiseActivation::gelu, {before.data(), input.type}, output);
}
/// gradient = 0 where output = 0
inline void relu_backward(Device& device, Values output, Values gradient, std::int64_t count) {
  const std::vector<char> before = copy_of(gradient, count);
  device.main().linear_backward_input({.rows = count, .in = 1, .out = 1}, {before.data(), gradient.type},
                                      One(gradient.type), PointwiseActivation::relu, output, gradient);
}
/// gradient *= gelu'(input_to_output); then input_to_output = gelu(input_to_output)
inline void gelu_backward(Device& device, Values input_to_output, Values gradient, std::int64_t count) {
  const std::vector<char> before = copy_of(gradient, count);
  device.main().linear_backward_input({.rows = count, .in = 1, .out = 1}, {before.data(), gradient.type},
                                      One(gradient.type), PointwiseActivation::gelu, input_to_output, gradient);
}
/// bias_gradient (width) += column sums of gradient (rows, width)
inline void add_bias_gradient(Device& device, float* bias_gradient, ConstValues gradient, std::int64_t rows,
                              std::int64_t width) {
  const std::vector<char> zeros(bytes_of(gradient.type, rows));
  std::vector<float> weight_gradient(static_cast<std::size_t>(width));
  device.main().linear_backward_parameters({.rows = rows, .in = 1, .out = width}, {zeros.data(), gradient.type},
                                           gradient, weight_gradient.data(), bias_gradient);
}
inline double squared_sum(Device& device, const float* values, std::int64_t count) {
  double sum = 0.0;
  const std::array<std::span<const float>, 1> all{std::span(values, static_cast<std::size_t>(count))};
  device.main().add_squares(all, &sum);
  return sum;
}
/// Values that decay.
inline void adamw(Device& device, const AdamWStep& step, float* value, const float* gradient, float* first_moment,
                  float* second_moment, std::int64_t count, Values rounded = nullptr) {
  const std::array<OptimizerSegment, 1> all{{{.value = value,
                                              .gradient = gradient,
                                              .first_moment = first_moment,
                                              .second_moment = second_moment,
                                              .count = count,
                                              .rounded = rounded}}};
  device.main().adamw(step, all, nullptr);
}

}  // namespace sailor::runtime::test
