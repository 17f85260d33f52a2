// Attention by a library's fused kernels on tensor cores. Without them, the kernels of kernels.hpp are used.
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
    std::size_t forward_workspace = 0;  ///< bytes of device memory; also backward_workspace
    std::size_t backward_workspace = 0;
  };

  FusedAttention() = default;
  virtual ~FusedAttention() = default;
  FusedAttention(const FusedAttention&) = delete;
  FusedAttention& operator=(const FusedAttention&) = delete;

  /// "cuDNN 9.19.0"
  [[nodiscard]] virtual std::string version() const = 0;
  /// Plan for a shape and type; nullptr if there are no kernels. Searches once for each, for a second or two.
  [[nodiscard]] virtual const Plan* plan_for(const AttentionShape& shape, DataType type) = 0;
  /// Same as Stream::attention_forward and attention_backward, with a plan for that shape. The contents of `statistics`
  /// (tokens times heads) are only for backward() of the same plan. Both throw std::runtime_error.
  virtual void forward(const Queue& queue, const Plan& plan, const AttentionShape& shape, ConstValues projected,
                       Values output, float* statistics, void* workspace) = 0;
  virtual void backward(const Queue& queue, const Plan& plan, const AttentionShape& shape, ConstValues projected,
                        ConstValues output, const float* statistics, ConstValues output_gradient,
                        Values projected_gradient, void* workspace) = 0;
};

/// Attention of cuDNN, for bfloat16 and float16 on the current device. `deterministic`: the backward pass adds in a
/// fixed order, which is slower. Throws std::runtime_error with cuDNN's message.
std::unique_ptr<FusedAttention> make_cudnn_attention(bool deterministic);

/// Description of a device that need not be present.
struct DescribedDevice {
  std::string json;            ///< CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION
  int compute_capability = 0;  ///< 90 for 9.0
};
/// The same for a described device: plans can be made for it, but not run.
std::unique_ptr<FusedAttention> make_cudnn_attention(bool deterministic, const DescribedDevice& device);

}  // namespace sailor::runtime::cuda
