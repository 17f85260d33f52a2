// A GPU as a device of the runtime.
#pragma once

#include <memory>

#include "runtime/cuda/cuda_stream.hpp"

namespace sailor::runtime {

struct CudaSettings {
  int index = 0;     ///< among the GPUs that this process sees
  bool tf32 = true;  ///< tensor cores multiply float32 as TF32
};

/// Throws std::runtime_error where that GPU cannot be used, with CUDA's words.
std::unique_ptr<CudaDevice> make_cuda_device(const CudaSettings& settings = {});

}  // namespace sailor::runtime
