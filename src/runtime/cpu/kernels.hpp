// Kernels of the CPU: free functions on host pointers, with the semantics of Stream.
#pragma once

#include <cstdint>

#include "runtime/stream.hpp"

// On x86-64 a second version of a kernel is compiled for CPUs with AVX2 and FMA, and chosen when the program is loaded;
// elsewhere the base architecture's vectors (NEON on aarch64) are used. Sanitizers do not work in the loader's
// resolvers.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SAILOR_CPU_VERSIONS __attribute__((target_clones("arch=haswell", "default")))
#else
#define SAILOR_CPU_VERSIONS
#endif

namespace sailor::runtime::cpu {

void add(float* to, const float* from, std::int64_t count);
void scale(float* values, float factor, std::int64_t count);
double squared_sum(const float* values, std::int64_t count);
void add_bias(float* values, const float* bias, std::int64_t rows, std::int64_t width);
void add_bias_gradient(float* bias_gradient, const float* gradient, std::int64_t rows, std::int64_t width);
void relu_forward(float* values, std::int64_t count);
void relu_backward(const float* output, float* gradient, std::int64_t count);
void gelu_forward(const float* input, float* output, std::int64_t count);
void gelu_backward(float* input_to_output, float* gradient, std::int64_t count);
void swiglu_forward(const float* input, const float* factors, float* output, std::int64_t rows, std::int64_t width);
void swiglu_backward(float* input_to_gradient, const float* factors, float* gradient_to_output, float* factor_gradients,
                     std::int64_t rows, std::int64_t width);
void route(const RoutingShape& shape, const float* logits, const Routing& routing);
void route_backward(const RoutingShape& shape, const Routing& routing, const float* weight_gradients,
                    float* logits_gradient);
void count_choices(const RoutingShape& shape, const Routing& routing, std::int64_t sequence_length, float* counts);
/// logits_gradient += that of `balance`, whose logits are `logits`.
void add_balance_gradient(const RoutingShape& shape, const RoutingBalance& balance, const float* logits,
                          float* logits_gradient);
void adamw(const AdamWStep& step, bool decays, float gradient_factor, float* value, const float* gradient,
           float* first_moment, float* second_moment, std::int64_t count);

void layer_norm_forward(const NormShape& shape, const float* input, const float* weight, const float* bias,
                        float* output, float* mean, float* reciprocal_deviation);
void layer_norm_backward(const NormShape& shape, const float* input, const float* mean,
                         const float* reciprocal_deviation, const float* weight, float* gradient,
                         float* weight_gradient, float* bias_gradient);
void rms_norm_forward(const NormShape& shape, const float* input, const float* weight, float* output,
                      float* reciprocal_rms);
void rms_norm_backward(const NormShape& shape, const float* input, const float* reciprocal_rms, const float* weight,
                       float* gradient, float* weight_gradient);
void softmax_cross_entropy(const LogitsShape& shape, float* logits_to_gradient, const std::int32_t* targets,
                           float gradient_scale, double* loss_sum);

void row_maxima(const LogitsShape& shape, const float* logits, float* maxima);
void softmax_sums(const LogitsShape& shape, float* logits_to_exponentials, const float* maxima,
                  const std::int32_t* targets, float* sums, float* target_logits);
void softmax_gradient(const LogitsShape& shape, float* exponentials_to_gradient, const float* sums,
                      const float* target_logits, const std::int32_t* targets, float gradient_scale, double* loss_sum);

void rotary(const AttentionShape& shape, double base, bool inverse, float* projected);
// Attention of some groups. A group is a key-value head of one sequence and the query heads that share it: group
// sequence · key_value_heads + i has key-value head i of that sequence; there are attention_groups(shape).
inline std::int64_t attention_groups(const AttentionShape& shape) { return shape.sequences * shape.key_value_heads; }
/// Workspace, in floats.
std::int64_t attention_workspace(const AttentionShape& shape, bool backward);
void attention_forward(const AttentionShape& shape, const Range& groups, const float* projected, float* output,
                       float* log_sum, float* workspace);
void attention_backward(const AttentionShape& shape, const Range& groups, const float* projected, const float* output,
                        const float* log_sum, const float* output_gradient, float* projected_gradient,
                        float* workspace);

}  // namespace sailor::runtime::cpu
