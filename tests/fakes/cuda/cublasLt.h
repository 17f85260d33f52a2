// Stands in for cuBLASLt where the GPU's host code is compiled for the CPU (fake_runtime.hpp): products are plain loops
// in double precision, put on a stream. It refuses what the real one does not take: a descriptor without what its
// epilogue needs, an algorithm used with worse alignment than it was asked for, epilogues of an odd width.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime/bits16.hpp"
#include "tests/fakes/cuda/fake_runtime.hpp"

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
inline const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "CUBLAS_STATUS_INTERNAL_ERROR";
}

enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT = 1,
  CUBLASLT_EPILOGUE_RELU = 2,
  CUBLASLT_EPILOGUE_BIAS = 4,
  CUBLASLT_EPILOGUE_RELU_BIAS = 6,
  CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128,
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 128 | 4,
  CUBLASLT_EPILOGUE_DGELU = 64 | 128
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};

struct cublasLtContext {};
using cublasLtHandle_t = cublasLtContext*;
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t transposes[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* auxiliary = nullptr;
  std::int64_t auxiliary_rows = 0;  // apart
  cudaDataType_t bias_type = CUDA_R_32F;
  cudaDataType_t auxiliary_type = CUDA_R_32F;
};
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t apart = 0;  // from column to column
};
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t alignments[4] = {256, 256, 256, 256};
};
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;
struct cublasLtMatmulAlgo_t {
  std::uint32_t alignments[4] = {};
  std::uint64_t workspace = 0;
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
};

namespace emulator {

template <class T>
cublasStatus_t set(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// Values of one of the three types.
struct Numbers {
  void* data;
  cudaDataType_t type;
  [[nodiscard]] sailor::runtime::DataType narrow_type() const {
    return type == CUDA_R_16F ? sailor::runtime::DataType::float16 : sailor::runtime::DataType::bfloat16;
  }
  [[nodiscard]] double at(std::int64_t i) const {
    return type == CUDA_R_32F ? static_cast<const float*>(data)[i]
                              : sailor::runtime::from_bits16(narrow_type(), static_cast<const std::uint16_t*>(data)[i]);
  }
  void put(std::int64_t i, double value) const {
    if (type == CUDA_R_32F)
      static_cast<float*>(data)[i] = static_cast<float>(value);
    else
      static_cast<std::uint16_t*>(data)[i] = sailor::runtime::to_bits16(narrow_type(), static_cast<float>(value));
  }
};
inline Numbers numbers(const void* data, cudaDataType_t type) { return {const_cast<void*>(data), type}; }

/// The tanh approximation, and its derivative.
inline double gelu_tanh(double x) { return std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)); }
inline double gelu(double x) { return 0.5 * x * (1.0 + gelu_tanh(x)); }
inline double gelu_slope(double x) {
  const double t = gelu_tanh(x);
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

inline bool uses(cublasLtEpilogue_t epilogue, int part) { return (static_cast<int>(epilogue) & part) != 0; }

/// What a product of the descriptor needs beside its matrices.
inline bool is_complete(const cublasLtMatmulDescOpaque_t& product, const cublasLtMatrixLayoutOpaque_t& output) {
  if (uses(product.epilogue, CUBLASLT_EPILOGUE_BIAS) && (product.bias == nullptr || product.bias_type != output.type))
    return false;
  return !uses(product.epilogue, 128) || (product.auxiliary != nullptr && product.auxiliary_rows >= output.rows &&
                                          product.auxiliary_type == output.type);
}

inline void multiply(const cublasLtMatmulDescOpaque_t& product, const void* a, const cublasLtMatrixLayoutOpaque_t& a_is,
                     const void* b, const cublasLtMatrixLayoutOpaque_t& b_is, float factor, const void* c, void* d,
                     const cublasLtMatrixLayoutOpaque_t& d_is) {
  const bool transpose_a = product.transposes[0] == CUBLAS_OP_T;
  const bool transpose_b = product.transposes[1] == CUBLAS_OP_T;
  const std::int64_t inner = transpose_a ? a_is.rows : a_is.columns;
  const Numbers first = numbers(a, a_is.type);
  const Numbers second = numbers(b, b_is.type);
  const Numbers auxiliary{product.auxiliary, product.auxiliary_type};
  for (std::int64_t j = 0; j < d_is.columns; ++j)
    for (std::int64_t i = 0; i < d_is.rows; ++i) {
      double sum = factor != 0.0f ? factor * numbers(c, d_is.type).at(j * d_is.apart + i) : 0.0;
      for (std::int64_t l = 0; l < inner; ++l)
        sum += first.at(transpose_a ? i * a_is.apart + l : l * a_is.apart + i) *
               second.at(transpose_b ? l * b_is.apart + j : j * b_is.apart + l);
      if (uses(product.epilogue, CUBLASLT_EPILOGUE_BIAS)) sum += numbers(product.bias, product.bias_type).at(i);
      const std::int64_t beside = j * product.auxiliary_rows + i;
      if (product.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        sum *= gelu_slope(auxiliary.at(beside));
      } else if (uses(product.epilogue, 32)) {
        auxiliary.put(beside, sum);
        sum = gelu(sum);
      } else if (uses(product.epilogue, CUBLASLT_EPILOGUE_RELU)) {
        sum = sum > 0.0 ? sum : 0.0;
      }
      numbers(d, d_is.type).put(j * d_is.apart + i, sum);
    }
}

}  // namespace emulator

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t, cudaDataType_t) {
  *product = new cublasLtMatmulDescOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                     cublasLtMatmulDescAttributes_t attribute, const void* value,
                                                     std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return emulator::set(product->transposes[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return emulator::set(product->transposes[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return emulator::set(product->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return emulator::set(product->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return emulator::set(product->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return emulator::set(product->auxiliary, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return emulator::set(product->auxiliary_rows, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return emulator::set(product->auxiliary_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                                 std::uint64_t rows, std::uint64_t columns, std::int64_t apart) {
  *layout = new cublasLtMatrixLayoutOpaque_t{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns),
                                             apart};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void* value, std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return emulator::set(preference->workspace, value, bytes);
  return emulator::set(preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t output,
                                                     cublasLtMatmulPreference_t preference, int,
                                                     cublasLtMatmulHeuristicResult_t* result, int* count) {
  *count = 0;
  if (!emulator::is_complete(*product, *output)) return CUBLAS_STATUS_INVALID_VALUE;
  // As the real one, which wants rows of 16 bytes there.
  if (emulator::uses(product->epilogue, 128) && product->auxiliary_rows % 8 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(result->algo.alignments, preference->alignments, sizeof(preference->alignments));
  result->algo.workspace = preference->workspace;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                                     cublasLtMatrixLayout_t a_is, const void* b, cublasLtMatrixLayout_t b_is,
                                     const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                                     cublasLtMatrixLayout_t d_is, const cublasLtMatmulAlgo_t* algorithm,
                                     void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const void* const matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<std::uintptr_t>(matrices[i]) % algorithm->alignments[i] != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  if (!emulator::is_complete(*product, *d_is) || workspace == nullptr || workspace_bytes < algorithm->workspace ||
      *static_cast<const float*>(alpha) != 1.0f)
    return CUBLAS_STATUS_INVALID_VALUE;
  stream->queue.put([=, product_is = *product, first = *a_is, second = *b_is, output = *d_is,
                     factor = *static_cast<const float*>(beta)] {
    std::memset(workspace, 0xff, 64);  // it is the algorithm's
    emulator::multiply(product_is, a, first, b, second, factor, c, d, output);
  });
  return CUBLAS_STATUS_SUCCESS;
}
