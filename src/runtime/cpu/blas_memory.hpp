// Memory that the BLAS allocates internally.
#pragma once

#include "core/error.hpp"

namespace sailor::runtime::cpu {

/// Makes OpenBLAS allocate now the memory for `threads` concurrent matrix products: when it finds none later, it
/// retries forever. Does nothing with another BLAS. Errors (unavailable): not enough memory.
Result<void> reserve_blas_memory(int threads);

}  // namespace sailor::runtime::cpu
