// Matrix products on tensor cores.
#pragma once

#include <memory>

#include "runtime/cuda/kernels.hpp"

namespace sailor::runtime::cuda {

class Gemm {
 public:
  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Bytes of device memory that multiply() may use.
  [[nodiscard]] std::size_t workspace() const;
  /// output (m, n) = op(a) · op(b) + addend. `addend` (m, n) is of output's type, may be output itself, and may be
  /// null; product.accumulate is not looked at. a and b have one type. Float32 is multiplied as TF32 where `tf32` says
  /// so; sums are float32. Throws std::runtime_error with cuBLAS's words.
  void multiply(const Queue& queue, const MatrixProduct& product, ConstValues a, ConstValues b, ConstValues addend,
                Values output, bool tf32, void* workspace_memory);

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace sailor::runtime::cuda
