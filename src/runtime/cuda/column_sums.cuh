// Sums down the columns of a matrix, in two steps and always in the same order: slices of rows into a workspace
// (slices, width) of floats, then those.
#pragma once

#include <cstdint>

#include "runtime/cuda/device_code.cuh"

namespace sailor::runtime::cuda {

/// sums[column] += the slices' sums of it, for `count` columns.
void add_slices(const Queue& queue, float* sums, const float* slices, std::int64_t slice_count, std::int64_t count);

}  // namespace sailor::runtime::cuda
