// bfloat16 on the CPU, which has no arithmetic in it that is worth using: values are widened to float32 for the kernels
// and rounded back, part by part, so that the scratch memory stays small and in the caches.
#pragma once

#include <cstdint>

#include "runtime/device.hpp"

namespace sailor::runtime::cpu {

void widen(const std::uint16_t* from, float* to, std::int64_t count);
/// As to_bfloat16().
void round(const float* from, std::uint16_t* to, std::int64_t count);
/// Rows of `width` values of a matrix whose rows are `stride` apart to rows without gaps, or the other way round.
void widen_rows(const std::uint16_t* from, std::int64_t stride, std::int64_t rows, std::int64_t width, float* to);
void round_rows(const float* from, std::int64_t rows, std::int64_t width, std::uint16_t* to, std::int64_t stride);

// The operations of Device that need more than a few rows at a time. They take floats of workspace.

std::int64_t rotary_bfloat16_workspace(const AttentionShape& shape);
void rotary_bfloat16(const AttentionShape& shape, double base, bool inverse, std::uint16_t* projected,
                     float* workspace);
/// As attention_workspace(); groups as there.
std::int64_t attention_bfloat16_workspace(const AttentionShape& shape, bool backward);
void attention_forward_bfloat16(const AttentionShape& shape, const Range& groups, const std::uint16_t* projected,
                                std::uint16_t* output, float* log_sum, float* workspace);
void attention_backward_bfloat16(const AttentionShape& shape, const Range& groups, const std::uint16_t* projected,
                                 const std::uint16_t* output, const float* log_sum,
                                 const std::uint16_t* output_gradient, std::uint16_t* projected_gradient,
                                 float* workspace);

}  // namespace sailor::runtime::cpu
