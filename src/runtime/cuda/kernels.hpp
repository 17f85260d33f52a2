// The GPU's kernels: functions that enqueue them on a CUDA stream. Semantics are those of runtime::Stream; matrix
// products are cuBLASLt's. All sums are computed in an order that depends only on the shape and the device, so that
// runs are bitwise reproducible.
//
// Values are float32, bfloat16 or float16; all values of one call have the same type unless stated otherwise. Errors of
// a launch throw std::runtime_error with CUDA's message.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "runtime/stream.hpp"

namespace sailor::runtime::cuda {

/// The stream that kernels are enqueued on.
struct Queue {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;  ///< of the device; determines the grid size of kernels that loop
};

/// Throws std::runtime_error "CUDA: <what>: <CUDA's message>" unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);

// ---- Elementwise
void convert(const Queue& queue, Values to, ConstValues from, std::int64_t count);
void add(const Queue& queue, Values to, ConstValues from, std::int64_t count);
void scale(const Queue& queue, float* values, float factor, std::int64_t count);
/// values (rows, width) += row (width)
void add_row(const Queue& queue, Values values, ConstValues row, std::int64_t rows, std::int64_t width);
/// Rest of a linear map after its product (rows, width), for what cuBLASLt does not support: pre_activation = product +
/// bias; output = activation(pre_activation). `bias` may be null; so may `pre_activation`, unless the activation is
/// gelu. `output` may be `product`.
void finish_linear(const Queue& queue, ConstValues product, ConstValues bias, PointwiseActivation activation,
                   Values pre_activation, Values output, std::int64_t rows, std::int64_t width);
/// Same as Stream::linear_backward_input: turns the gradient of an activation's output into that of its input.
void activation_backward(const Queue& queue, PointwiseActivation activation, Values kept_to_output, Values gradient,
                         std::int64_t count);
/// `factors` and `factor_gradients` as in Stream: both null, or neither.
void swiglu_forward(const Queue& queue, ConstValues input, const float* factors, Values output, std::int64_t rows,
                    std::int64_t width);
void swiglu_backward(const Queue& queue, Values input_to_gradient, const float* factors, Values gradient_to_output,
                     float* factor_gradients, std::int64_t rows, std::int64_t width);

// ---- Mixtures of experts
/// Same as Stream::route; `experts` and `weights` (pairs) are workspace.
void route(const Queue& queue, const RoutingShape& shape, ConstValues logits, const Routing& routing,
           std::int32_t* experts, float* weights);
void route_backward(const Queue& queue, const RoutingShape& shape, const Routing& routing,
                    const float* weight_gradients, const RoutingBalance* balance, Values logits_gradient);
void count_choices(const Queue& queue, const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length,
                   float* counts);
void add_pairs(const Queue& queue, const RoutingShape& shape, const std::int32_t* places, ConstValues pairs,
               std::int64_t width, Values sums);

// ---- Sums over rows
/// Floats of workspace for add_column_sums.
std::int64_t column_sums_workspace(const Queue& queue, std::int64_t rows, std::int64_t width);
/// sums (width) += column sums of values (rows, width)
void add_column_sums(const Queue& queue, float* sums, ConstValues values, std::int64_t rows, std::int64_t width,
                     float* workspace);

// ---- Norms
void layer_norm_forward(const Queue& queue, const NormShape& shape, ConstValues input, ConstValues weight,
                        ConstValues bias, Values output, float* mean, float* reciprocal_deviation);
void rms_norm_forward(const Queue& queue, const NormShape& shape, ConstValues input, ConstValues weight, Values output,
                      float* reciprocal_rms);
/// Floats of workspace for either backward pass.
std::int64_t norm_workspace(const Queue& queue, const NormShape& shape);
void layer_norm_backward(const Queue& queue, const NormShape& shape, ConstValues input, const float* mean,
                         const float* reciprocal_deviation, ConstValues weight, Values gradient, Values sum,
                         float* weight_gradient, float* bias_gradient, float* workspace);
void rms_norm_backward(const Queue& queue, const NormShape& shape, ConstValues input, const float* reciprocal_rms,
                       ConstValues weight, Values gradient, Values sum, float* weight_gradient, float* workspace);

// ---- Attention
/// Cosines and sines (sequence_length, head_width / 2) of rotary positions, which rotary() reads.
void rotary_table(const Queue& queue, std::int64_t sequence_length, std::int64_t head_width, double base,
                  float* cosines, float* sines);
void rotary(const Queue& queue, const AttentionShape& shape, const float* cosines, const float* sines, bool inverse,
            Values projected);
/// Max head width of attention_forward() and attention_backward().
inline constexpr std::int64_t widest_head = 256;
/// Fused attention without tensor cores: the reference for cuDNN, and the fallback where cuDNN cannot run.
void attention_forward(const Queue& queue, const AttentionShape& shape, ConstValues projected, Values output,
                       float* log_sum);
/// Floats of workspace.
std::int64_t attention_backward_workspace(const AttentionShape& shape);
void attention_backward(const Queue& queue, const AttentionShape& shape, ConstValues projected, ConstValues output,
                        const float* log_sum, ConstValues output_gradient, Values projected_gradient, float* workspace);

// ---- Embedding and loss
void gather_rows(const Queue& queue, ConstValues table, const Range& rows, const std::int32_t* tokens,
                 std::int64_t count, std::int64_t width, Values output);
void scatter_add_rows(const Queue& queue, float* table_gradient, const Range& rows, const std::int32_t* tokens,
                      std::int64_t count, std::int64_t width, ConstValues gradient);
/// `row_losses` (rows) is workspace, here and below.
void softmax_cross_entropy(const Queue& queue, const LogitsShape& shape, Values logits_to_gradient,
                           const std::int32_t* targets, float gradient_scale, double* loss_sum, double* row_losses);
void row_maxima(const Queue& queue, const LogitsShape& shape, ConstValues logits, float* maxima);
void softmax_sums(const Queue& queue, const LogitsShape& shape, Values logits_to_exponentials, const float* maxima,
                  const std::int32_t* targets, float* sums, float* target_logits);
void softmax_gradient(const Queue& queue, const LogitsShape& shape, Values exponentials_to_gradient, const float* sums,
                      const float* target_logits, const std::int32_t* targets, float gradient_scale, double* loss_sum,
                      double* row_losses);

// ---- Optimizer
/// Doubles of workspace for add_squares.
std::int64_t squares_workspace(std::span<const std::span<const float>> values);
void add_squares(const Queue& queue, std::span<const std::span<const float>> values, double* sum, double* workspace);
void clip_factor(const Queue& queue, const double* squared_norm, double scale, double clip_norm, float* factor);
void adamw(const Queue& queue, const AdamWStep& step, std::span<const OptimizerSegment> segments,
           const float* gradient_factor);

}  // namespace sailor::runtime::cuda
