// Sums of a matrix's columns, in two steps and always in the same order: slices of rows are summed into a workspace
// (slices, width) of floats, then the slices are.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/cuda/device_code.cuh"

namespace sailor::runtime::cuda {

/// sums[0][column] += the sum of the slices' values in that column, for `count` columns. Where sums[1] is not null, it
/// gets the sums of as many slices behind those.
void add_slices(const Queue& queue, const std::array<float*, 2>& sums, const float* slices, std::int64_t slice_count,
                std::int64_t count);

}  // namespace sailor::runtime::cuda
