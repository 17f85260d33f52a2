// A GPU as a device of the runtime.
#pragma once

#include <memory>

#include "runtime/cuda/cuda_stream.hpp"
#include "runtime/gpu_backend.hpp"

namespace sailor::runtime {

/// Throws std::runtime_error with CUDA's message if that GPU cannot be used.
std::unique_ptr<CudaDevice> make_cuda_device(const GpuSettings& settings = {});

}  // namespace sailor::runtime
