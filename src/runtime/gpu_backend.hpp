// GPUs, where there are some. What needs CUDA is a module that is loaded when it is wanted: the same programs run on
// nodes that have none of it.
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

/// One that this process sees.
struct GpuDescription {
  std::string name;            ///< "NVIDIA H200"
  std::string bus_id;          ///< "0000:65:00.0"
  int compute_capability = 0;  ///< 90 for 9.0
  Bytes memory{};
};

struct GpuSettings {
  int index = 0;     ///< among the GPUs that this process sees
  bool tf32 = true;  ///< tensor cores multiply float32 as TF32
  /// The same bits in every run, at some cost.
  bool deterministic = false;
  bool fused_attention = true;  ///< cuDNN's, where it is there; false: our own kernels, which are slow
};

class GpuBackend {
 public:
  GpuBackend() = default;
  virtual ~GpuBackend() = default;
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;

  /// At least one. Errors (unavailable): there is none, in CUDA's words.
  [[nodiscard]] virtual Result<std::vector<GpuDescription>> gpus() const = 0;
  /// Throws std::runtime_error where that GPU cannot be used, in CUDA's words.
  [[nodiscard]] virtual std::unique_ptr<Device> make_device(const GpuSettings& settings) const = 0;
  /// The data plane between GPUs, of which `device` is one of this backend's. It and `control` must outlive it. Gives
  /// up when nothing gets on for `timeout` while the host waits. Null: the module was built without NCCL.
  [[nodiscard]] virtual std::unique_ptr<Transport> make_transport(Control& control, Device& device,
                                                                  Seconds timeout) const = 0;
};

/// The module that is installed with this program; empty: this build has none. What it needs of the system, and a GPU,
/// may still be missing.
std::filesystem::path installed_gpu_module();

/// Loads the module, which stays loaded. Errors (unavailable): `file` is empty, is not there, does
/// not load, or is of another version.
Result<const GpuBackend*> load_gpu_backend(const std::filesystem::path& file);

/// What the module exports as `sailor_gpu_module`.
struct GpuModule {
  const char* version;  ///< of Sailor: both sides must be of the same build
  const GpuBackend* backend;
};

}  // namespace sailor::runtime
