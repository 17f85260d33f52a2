// Matrix products on tensor cores.
#pragma once

#include <memory>

#include "runtime/cuda/kernels.hpp"

namespace sailor::runtime::cuda {

/// What is done to a product before it is written. Rows are those of the output (m, n), and what is null is left out.
struct Epilogue {
  ConstValues bias{nullptr};  ///< (n), of the output's type: added to each row
  PointwiseActivation activation = PointwiseActivation::none;
  /// (m, n), of the output's type. With gelu it becomes what the activation is applied to.
  Values pre_activation{nullptr};
  /// (m, n), of the output's type: the output is multiplied by gelu's derivative there. Alone.
  ConstValues through_gelu{nullptr};

  [[nodiscard]] bool is_empty() const {
    return bias.data == nullptr && activation == PointwiseActivation::none && through_gelu.data == nullptr;
  }
};

class Gemm {
 public:
  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Bytes of device memory that multiply() may use.
  [[nodiscard]] std::size_t workspace() const;
  /// output (m, n) = epilogue(op(a) · op(b) + addend). `addend` (m, n) is laid out as output is, may be output
  /// itself, and may be null; product.accumulate is not looked at. a and b have one type. Float32 is multiplied as TF32
  /// where `tf32` says so; sums are float32. False, and nothing is done, where cuBLAS does not take that epilogue.
  /// Throws std::runtime_error with cuBLAS's words.
  [[nodiscard]] bool multiply(const Queue& queue, const MatrixProduct& product, ConstValues a, ConstValues b,
                              ConstValues addend, Values output, const Epilogue& epilogue, bool tf32,
                              void* workspace_memory);

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace sailor::runtime::cuda
