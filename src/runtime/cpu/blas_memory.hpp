// Memory that the BLAS takes for itself.
#pragma once

#include "core/error.hpp"

namespace sailor::runtime::cpu {

/// Has OpenBLAS allocate now what `threads` products at the same time need: when it finds no memory it asks again and
/// again, for ever. Nothing where another BLAS is linked. Errors (unavailable): there is not as much.
Result<void> reserve_blas_memory(int threads);

}  // namespace sailor::runtime::cpu
