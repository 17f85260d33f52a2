// Matrix products of float32, bfloat16 and float16 matrices by the BLAS, which supports float32 only. Each thread calls
// it with a part of the rows or columns.
#pragma once

#include <cstdint>

#include "runtime/cpu/threads.hpp"
#include "runtime/device.hpp"

namespace sailor::runtime::cpu {

/// Workspace of a product, in floats; 0 if all three matrices are float32.
std::int64_t matmul_workspace(const Threads& threads, const MatrixProduct& product, ConstValues a, ConstValues b,
                              ConstValues c);
/// Same as Device::matmul(). Throws std::logic_error if A and B are of different types.
void matmul(const Threads& threads, const MatrixProduct& product, ConstValues a, ConstValues b, Values c,
            float* workspace);

}  // namespace sailor::runtime::cpu
