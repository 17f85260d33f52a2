// A norm as part of a layer: layer norm or RMSNorm. Its statistics, which the backward pass needs, are a float32
// tensor: mean and reciprocal deviation of every row (2, rows), or reciprocal root mean squares (1, rows).
#pragma once

#include "runtime/layer.hpp"

namespace sailor::runtime {

/// Parameters and rows of a norm. The layer that contains it declares the parameters.
struct Norm {
  NormShape shape{};
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;  ///< null: RMSNorm

  [[nodiscard]] Tensor make_statistics(Device& device) const { return {device, {bias != nullptr ? 2 : 1, shape.rows}}; }
};

/// output = norm(input); writes `statistics`. Also used in the backward pass to recompute an output that was not kept:
/// it then writes the same statistics again.
inline void norm_forward(Stream& stream, const Norm& norm, const Tensor& input, Tensor& statistics, Tensor& output) {
  if (norm.bias == nullptr)
    stream.rms_norm_forward(norm.shape, input.values(), norm.weight->value, output.values(), statistics.floats());
  else
    stream.layer_norm_forward(norm.shape, input.values(), norm.weight->value, norm.bias->value, output.values(),
                              statistics.floats(), statistics.floats() + norm.shape.rows);
}

/// `gradient` is that of the output. That of the input is added to `sum`, or replaces `gradient` if `sum` is empty.
inline void norm_backward(Stream& stream, const Norm& norm, const Tensor& input, const Tensor& statistics,
                          Tensor& gradient, Values sum = nullptr) {
  if (norm.bias == nullptr)
    stream.rms_norm_backward(norm.shape, input.values(), statistics.floats(), norm.weight->value, gradient.values(),
                             sum, norm.weight->gradient);
  else
    stream.layer_norm_backward(norm.shape, input.values(), statistics.floats(), statistics.floats() + norm.shape.rows,
                               norm.weight->value, gradient.values(), sum, norm.weight->gradient, norm.bias->gradient);
}

}  // namespace sailor::runtime
