// Layer norm as a part of a layer. Its statistics (mean and reciprocal deviation of every row) are a tensor (2, rows).
#pragma once

#include "runtime/layer.hpp"

namespace sailor::runtime {

/// output = norm(input); writes `statistics`. Also used in backward, where an output is needed again and was not kept:
/// it then writes the same statistics once more.
inline void norm_forward(Device& device, const NormShape& shape, const Parameter& weight, const Parameter& bias,
                         const Tensor& input, Tensor& statistics, Tensor& output) {
  device.layer_norm_forward(shape, input.floats(), weight.value, bias.value, output.floats(), statistics.floats(),
                            statistics.floats() + shape.rows);
}

/// `gradient` of the output becomes that of the input.
inline void norm_backward(Device& device, const NormShape& shape, Parameter& weight, Parameter& bias,
                          const Tensor& input, const Tensor& statistics, Tensor& gradient) {
  device.layer_norm_backward(shape, input.floats(), statistics.floats(), statistics.floats() + shape.rows, weight.value,
                             gradient.floats(), weight.gradient, bias.gradient);
}

}  // namespace sailor::runtime
