// Optional GPU support. All code that needs CUDA is in a module that is loaded on demand: the same programs run on
// nodes without CUDA.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/control.hpp"
#include "runtime/device.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

/// A GPU that is visible to this process.
struct GpuDescription {
  std::string name;            ///< "NVIDIA H200"
  std::string bus_id;          ///< "0000:65:00.0"
  int compute_capability = 0;  ///< 90 for 9.0
  Bytes memory{};
};

struct GpuSettings {
  int index = 0;     ///< among the GPUs that are visible to this process
  bool tf32 = true;  ///< tensor cores multiply float32 as TF32
  /// Results are the same bits in every run, at some cost.
  bool deterministic = false;
  bool fused_attention = true;  ///< cuDNN's, if available; false: our own kernels, which are slow
};

class GpuBackend {
 public:
  GpuBackend() = default;
  virtual ~GpuBackend() = default;
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;

  /// All GPUs visible to this process, at least one. Errors (unavailable): there is none; the message is CUDA's.
  [[nodiscard]] virtual Result<std::vector<GpuDescription>> gpus() const = 0;
  /// Throws std::runtime_error with CUDA's message if that GPU cannot be used.
  [[nodiscard]] virtual std::unique_ptr<Device> make_device(const GpuSettings& settings) const = 0;
  /// The data plane between GPUs; `device` must be one of this backend's. `device` and `control` must outlive it. Gives
  /// up when there is no progress for `timeout` while the host waits. Null if the module was built without NCCL.
  [[nodiscard]] virtual std::unique_ptr<Transport> make_transport(Control& control, Device& device,
                                                                  Seconds timeout) const = 0;
};

/// The module that is installed with this program; empty if this build has none. What it needs from the system, and a
/// GPU, may still be missing.
std::filesystem::path installed_gpu_module();

/// Loads the module, which stays loaded. Errors (unavailable): `file` is empty, does not exist, does not load, or is of
/// another version.
Result<const GpuBackend*> load_gpu_backend(const std::filesystem::path& file);

/// The object that the module exports as `sailor_gpu_module`.
struct GpuModule {
  const char* version;  ///< of Sailor: program and module must be of the same build
  const GpuBackend* backend;
};

}  // namespace sailor::runtime
