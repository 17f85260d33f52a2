// Matrix products on tensor cores.
#pragma once

#include <memory>

#include "runtime/cuda/kernels.hpp"

namespace sailor::runtime::cuda {

/// Operations on a product before it is written. Rows are those of the output (m, n); null members are left out.
struct Epilogue {
  ConstValues bias{nullptr};  ///< (n), of the output's type: added to each row
  PointwiseActivation activation = PointwiseActivation::none;
  /// (m, n), of the output's type. With gelu it receives the input of the activation.
  Values pre_activation{nullptr};
  /// (m, n), of the output's type: the output is multiplied by gelu's derivative there. Excludes the other members.
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
  /// output (m, n) = epilogue(op(a) · op(b) + addend). `addend` (m, n) has the layout of `output`, may be `output`
  /// itself, and may be null; product.accumulate is ignored. a and b have the same type. Float32 is multiplied as TF32
  /// if `tf32` is set; accumulation is in float32. Returns false, and does nothing, if cuBLAS does not support that
  /// epilogue. Throws std::runtime_error with cuBLAS's message.
  [[nodiscard]] bool multiply(const Queue& queue, const MatrixProduct& product, ConstValues a, ConstValues b,
                              ConstValues addend, Values output, const Epilogue& epilogue, bool tf32,
                              void* workspace_memory);

 private:
  struct Plans;

  /// As multiply(), but split into two products if m or n is a length for which cuBLASLt is slow. Returns false, and
  /// does nothing, if no split is needed.
  [[nodiscard]] bool multiply_in_parts(const Queue& queue, const MatrixProduct& product, ConstValues a, ConstValues b,
                                       ConstValues addend, Values output, bool tf32, void* workspace_memory);
  std::unique_ptr<Plans> plans_;
};

}  // namespace sailor::runtime::cuda
