// Attention by a library's fused kernels on tensor cores. Where there is none, that of kernels.hpp computes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/cuda/kernels.hpp"

namespace sailor::runtime::cuda {

class FusedAttention {
 public:
  /// Kernels that were chosen for one shape and type.
  struct Plan {
    std::size_t forward_workspace = 0;  ///< bytes of device memory, also below
    std::size_t backward_workspace = 0;
  };

  FusedAttention() = default;
  virtual ~FusedAttention() = default;
  FusedAttention(const FusedAttention&) = delete;
  FusedAttention& operator=(const FusedAttention&) = delete;

  /// "cuDNN 9.19.0"
  [[nodiscard]] virtual std::string version() const = 0;
  /// Null: there are no kernels for these. Looks for them once, for a second or two.
  [[nodiscard]] virtual const Plan* plan_for(const AttentionShape& shape, DataType type) = 0;
  /// As Stream::attention_forward and attention_backward, with a plan for that shape. What is in `statistics` (tokens
  /// times heads) only backward() of the same plan understands. Both throw std::runtime_error.
  virtual void forward(const Queue& queue, const Plan& plan, const AttentionShape& shape, ConstValues projected,
                       Values output, float* statistics, void* workspace) = 0;
  virtual void backward(const Queue& queue, const Plan& plan, const AttentionShape& shape, ConstValues projected,
                        ConstValues output, const float* statistics, ConstValues output_gradient,
                        Values projected_gradient, void* workspace) = 0;
};

/// cuDNN's, for bfloat16 and float16 on the current device. `deterministic`: the backward pass adds in an order that
/// is always the same, which is slower. Throws std::runtime_error with cuDNN's words.
std::unique_ptr<FusedAttention> make_cudnn_attention(bool deterministic);

/// A device that need not be there.
struct DescribedDevice {
  std::string json;            ///< CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION
  int compute_capability = 0;  ///< 90 for 9.0
};
/// The same for a device on which plans can be made, but not run.
std::unique_ptr<FusedAttention> make_cudnn_attention(bool deterministic, const DescribedDevice& device);

}  // namespace sailor::runtime::cuda
