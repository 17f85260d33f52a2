// bfloat16 and float16 on the CPU, which has no useful arithmetic in these types: values are widened to float32 for the
// kernels and rounded back, part by part, so that the scratch memory stays small and in the caches.
#pragma once

#include <cstdint>

#include "runtime/device.hpp"

namespace sailor::runtime::cpu {

void widen(ConstValues from, float* to, std::int64_t count);
/// Rounds as to_bfloat16() and to_float16() do.
void round(const float* from, Values to, std::int64_t count);
/// Converts rows of `width` values of a matrix whose rows are `stride` apart to rows without gaps, or vice versa.
void widen_rows(ConstValues from, std::int64_t stride, std::int64_t rows, std::int64_t width, float* to);
void round_rows(const float* from, std::int64_t rows, std::int64_t width, Values to, std::int64_t stride);

// Operations of a Stream that need more than a few rows at a time. Workspaces are in floats.

std::int64_t rotary_reduced_workspace(const AttentionShape& shape);
void rotary_reduced(const AttentionShape& shape, double base, bool inverse, Values projected, float* workspace);
/// See attention_workspace(); the groups are the same.
std::int64_t attention_reduced_workspace(const AttentionShape& shape, bool backward);
void attention_forward_reduced(const AttentionShape& shape, const Range& groups, ConstValues projected, Values output,
                               float* log_sum, float* workspace);
void attention_backward_reduced(const AttentionShape& shape, const Range& groups, ConstValues projected,
                                ConstValues output, const float* log_sum, ConstValues output_gradient,
                                Values projected_gradient, float* workspace);

}  // namespace sailor::runtime::cpu
