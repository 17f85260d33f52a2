// Functions of libsailor_cuda.so for the programs that load it.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/gpu_backend.hpp"
#if SAILOR_HAVE_NCCL
#include "runtime/cuda/nccl_transport.hpp"
#endif

namespace sailor::runtime {

namespace {

class CudaBackend final : public GpuBackend {
 public:
  Result<std::vector<GpuDescription>> gpus() const override {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    std::vector<GpuDescription> found;
    for (int i = 0; error == cudaSuccess && i < count; ++i) {
      cudaDeviceProp properties{};
      std::array<char, 32> bus{};
      error = cudaGetDeviceProperties(&properties, i);
      if (error == cudaSuccess) error = cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), i);
      found.push_back({.name = properties.name,
                       .bus_id = bus.data(),
                       .compute_capability = 10 * properties.major + properties.minor,
                       .memory = Bytes(static_cast<double>(properties.totalGlobalMem))});
    }
    if (error == cudaSuccess && found.empty()) error = cudaErrorNoDevice;
    if (error != cudaSuccess) {
      cudaGetLastError();  // clears the error, which is handled here
      return fail(ErrorCode::unavailable, fmt::format("CUDA says: {}", cudaGetErrorString(error)),
                  "ask Slurm for GPUs (--gpus-per-task=1); nvidia-smi says what this node has");
    }
    return found;
  }
  std::unique_ptr<Device> make_device(const GpuSettings& settings) const override { return make_cuda_device(settings); }
  std::unique_ptr<Transport> make_transport([[maybe_unused]] Control& control, [[maybe_unused]] Device& device,
                                            [[maybe_unused]] Seconds timeout) const override {
#if SAILOR_HAVE_NCCL
    return make_nccl_transport(control, dynamic_cast<CudaDevice&>(device), {.timeout = timeout});
#else
    return nullptr;
#endif
  }
};

const CudaBackend backend;

}  // namespace

}  // namespace sailor::runtime

extern "C" __attribute__((visibility("default"))) const sailor::runtime::GpuModule sailor_gpu_module;
extern "C" const sailor::runtime::GpuModule sailor_gpu_module{SAILOR_VERSION, &sailor::runtime::backend};
