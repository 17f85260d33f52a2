// cuBLASLt is column-major: our row-major (m, n) matrix is its (n, m) matrix. So C = A · B is computed as
// Cᵀ = Bᵀ · Aᵀ, without moving data.
#include "runtime/cuda/gemm.hpp"

#include <cublasLt.h>

#include <array>
#include <map>
#include <stdexcept>
#include <string>

namespace sailor::runtime::cuda {

namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what cuBLAS recommends for Hopper

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLAS: ") + what + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(DataType type) {
  switch (type) {
    case DataType::float32:
      return CUDA_R_32F;
    case DataType::bfloat16:
      return CUDA_R_16BF;
    case DataType::float16:
      return CUDA_R_16F;
    case DataType::float64:
    case DataType::int32:
      break;
  }
  throw std::runtime_error("cuBLAS: a matrix that is neither float32 nor bfloat16 nor float16");
}

/// The largest power of two, at most 256, that a pointer is a multiple of: cuBLASLt chooses algorithms by it.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  std::uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroyer {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
using Descriptor =
    std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroyer<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroyer<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                                   Destroyer<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;
using Handle = std::unique_ptr<cublasLtContext, Destroyer<cublasLtHandle_t, cublasLtDestroy>>;

/// Layout of a matrix whose columns are `stride` values apart.
Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                                   stride),
        "layout of a matrix");
  return Layout(layout);
}

/// The auxiliary array of the epilogue, which has the shape of the output; null without gelu.
const void* auxiliary_of(const Epilogue& epilogue) {
  return epilogue.through_gelu.data != nullptr ? epilogue.through_gelu.data : epilogue.pre_activation.data;
}

cublasLtEpilogue_t epilogue_of(const Epilogue& epilogue) {
  if (epilogue.through_gelu.data != nullptr) return CUBLASLT_EPILOGUE_DGELU;
  const bool has_bias = epilogue.bias.data != nullptr;
  switch (epilogue.activation) {
    case PointwiseActivation::none:
      return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case PointwiseActivation::relu:
      return has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case PointwiseActivation::gelu:
      return has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace

/// Algorithms found once per product, by its shape, types, alignments and epilogue.
struct Gemm::Plans {
  struct Plan {
    bool exists = true;  ///< false: cuBLAS has no algorithm with that epilogue
    Descriptor descriptor;
    Layout first;
    Layout second;
    Layout output;
    cublasLtMatmulAlgo_t algorithm{};

    /// Sets the epilogue's arrays in the descriptor.
    void point_to(const Epilogue& epilogue) const {
      const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void* array) {
        if (array != nullptr)
          check(cublasLtMatmulDescSetAttribute(descriptor.get(), attribute, &array, sizeof(array)), "epilogue");
      };
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.bias.data);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, auxiliary_of(epilogue));
    }
  };
  using Key = std::array<std::int64_t, 17>;

  Handle handle;
  std::map<Key, Plan> plans;

  const Plan& plan_for(const MatrixProduct& product, ConstValues a, ConstValues b, ConstValues addend, Values output,
                       const Epilogue& epilogue, bool tf32) {
    const void* const auxiliary = auxiliary_of(epilogue);
    const Key key{product.m,
                  product.n,
                  product.k,
                  product.a_row(),
                  product.b_row(),
                  product.c_row(),
                  product.transpose_a,
                  product.transpose_b,
                  static_cast<std::int64_t>(a.type),
                  static_cast<std::int64_t>(output.type),
                  alignment_of(a.data),
                  alignment_of(b.data),
                  alignment_of(output.data),
                  addend.data != nullptr ? alignment_of(addend.data) : 0,
                  epilogue_of(epilogue),
                  auxiliary != nullptr ? alignment_of(auxiliary) : 0,
                  tf32};
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;

    Plan plan;
    const bool single = a.type == DataType::float32;
    cublasLtMatmulDesc_t descriptor = nullptr;
    check(cublasLtMatmulDescCreate(&descriptor, single && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                   CUDA_R_32F),
          "descriptor of a product");
    plan.descriptor.reset(descriptor);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value, const char* what) {
      check(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), what);
    };
    // Column-major: the first factor is b (its rows are n long as stored), the second is a.
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, "transposition");
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, "transposition");
    plan.first = product.transpose_b ? make_layout(cuda_type(b.type), product.k, product.n, product.b_row())
                                     : make_layout(cuda_type(b.type), product.n, product.k, product.b_row());
    plan.second = product.transpose_a ? make_layout(cuda_type(a.type), product.m, product.k, product.a_row())
                                      : make_layout(cuda_type(a.type), product.k, product.m, product.a_row());
    plan.output = make_layout(cuda_type(output.type), product.n, product.m, product.c_row());
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(epilogue), "epilogue");
    if (auxiliary != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cuda_type(output.type), "epilogue");
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.n, "epilogue");
    }
    if (epilogue.bias.data != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(output.type), "epilogue");
    plan.point_to(epilogue);

    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "preferences");
    const Preference owned(preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "preferences");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
           alignment_of(addend.data != nullptr ? addend.data : output.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(output.data));
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle.get(), descriptor, plan.first.get(), plan.second.get(), plan.output.get(),
                                       plan.output.get(), preference, 1, &result, &count);
    plan.exists = status == CUBLAS_STATUS_SUCCESS && count > 0;
    if (!plan.exists && !epilogue.is_empty()) return plans.emplace(key, std::move(plan)).first->second;
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choice of an algorithm");
    if (!plan.exists)
      throw std::runtime_error("cuBLAS: no algorithm for a product of " + std::to_string(product.m) + " x " +
                               std::to_string(product.k) + " and " + std::to_string(product.k) + " x " +
                               std::to_string(product.n) + " matrices");
    plan.algorithm = result.algo;
    return plans.emplace(key, std::move(plan)).first->second;
  }
};

Gemm::Gemm() : plans_(std::make_unique<Plans>()) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "start");
  plans_->handle.reset(handle);
}
Gemm::~Gemm() = default;

std::size_t Gemm::workspace() const { return workspace_bytes; }

// On an H200, cuBLASLt 13.0 multiplies by a (50257, 2560) matrix at 108 TFLOP/s, by one of 50,304 rows at over 700:
// whatever the strides, it looks at the lengths. So the part that is a multiple of 64 is multiplied apart.
bool Gemm::multiply_in_parts(const Queue& queue, const MatrixProduct& product, ConstValues a, ConstValues b,
                             ConstValues addend, Values output, bool tf32, void* workspace_memory) {
  constexpr std::int64_t fast = 8;
  constexpr std::int64_t multiple = 64;
  constexpr std::int64_t least = 512;  // shorter ones are not worth a second product
  const auto is_slow = [](std::int64_t length) { return length > least && length % fast != 0; };
  MatrixProduct large = product;
  large.a_stride = product.a_row();
  large.b_stride = product.b_row();
  large.c_stride = product.c_row();
  MatrixProduct rest = large;
  const auto cut = [](std::int64_t length, std::int64_t& in_large, std::int64_t& in_rest) {
    in_large = length / multiple * multiple;
    in_rest = length - in_large;
    return in_large;
  };
  const auto run = [&](const MatrixProduct& part, ConstValues first, ConstValues second, ConstValues added, Values to) {
    return multiply(queue, part, first, second, added, to, {}, tf32, workspace_memory);
  };
  const auto from = [&](std::int64_t first) { return addend.data == nullptr ? addend : addend + first; };
  if (is_slow(product.n)) {
    const std::int64_t first = cut(product.n, large.n, rest.n);
    return run(large, a, b, addend, output) &&
           run(rest, a, b + (product.transpose_b ? first * large.b_stride : first), from(first), output + first);
  }
  if (is_slow(product.m)) {
    const std::int64_t first = cut(product.m, large.m, rest.m);
    const std::int64_t rows = first * large.c_stride;
    return run(large, a, b, addend, output) &&
           run(rest, a + (product.transpose_a ? first : first * large.a_stride), b, from(rows), output + rows);
  }
  if (!is_slow(product.k)) return false;
  // The short sum comes first: what is rounded between the two is small.
  const std::int64_t first = cut(product.k, large.k, rest.k);
  return run(rest, a + (product.transpose_a ? first * large.a_stride : first),
             b + (product.transpose_b ? first : first * large.b_stride), addend, output) &&
         run(large, a, b, output, output);
}

bool Gemm::multiply(const Queue& queue, const MatrixProduct& product, ConstValues a, ConstValues b, ConstValues addend,
                    Values output, const Epilogue& epilogue, bool tf32, void* workspace_memory) {
  const bool on_tensor_cores = a.type != DataType::float32 || tf32;
  if (on_tensor_cores && epilogue.is_empty() &&
      multiply_in_parts(queue, product, a, b, addend, output, tf32, workspace_memory))
    return true;
  const Plans::Plan& plan = plans_->plan_for(product, a, b, addend, output, epilogue, tf32);
  if (!plan.exists) return false;
  plan.point_to(epilogue);
  const float one = 1.0f;
  const float addend_factor = addend.data != nullptr ? 1.0f : 0.0f;
  check(cublasLtMatmul(plans_->handle.get(), plan.descriptor.get(), &one, b.data, plan.first.get(), a.data,
                       plan.second.get(), &addend_factor, addend.data != nullptr ? addend.data : output.data,
                       plan.output.get(), output.data, plan.output.get(), &plan.algorithm, workspace_memory,
                       workspace_bytes, queue.stream),
        "matrix product");
  return true;
}

}  // namespace sailor::runtime::cuda
