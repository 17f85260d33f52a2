// The device that a rank computes on: cores of the CPU, or one of the node's GPUs.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "plan/plan.hpp"
#include "runtime/device.hpp"
#include "runtime/gpu_backend.hpp"
#include "runtime/world.hpp"

namespace sailor::apps {

/// The GPUs that this process sees, and the module that computes on them.
struct VisibleGpus {
  const runtime::GpuBackend* backend = nullptr;
  std::vector<runtime::GpuDescription> gpus;  ///< at least one
};

/// The module for GPUs: `SAILOR_GPU_MODULE`, else the one installed with this program; empty if there is none.
std::filesystem::path gpu_module(const Environment& environment);

/// The GPUs that this process sees. Errors: unavailable (no module, or no GPU).
Result<VisibleGpus> visible_gpus(const Environment& environment);

struct RankDevice {
  std::unique_ptr<runtime::Device> device;
  std::unique_ptr<runtime::Transport> transport;  ///< between GPUs; null: the job's own transport
  std::optional<runtime::GpuDescription> gpu;     ///< std::nullopt for the CPU
  const runtime::GpuBackend* backend = nullptr;   ///< backend of the GPU

  /// The ranks of `started`, with the transport between their devices.
  [[nodiscard]] runtime::World world(const runtime::World& started) const {
    return {started.control, transport == nullptr ? started.transport : *transport};
  }
};

struct DeviceRequest {
  bool on_gpus = false;
  Precision precision = Precision::fp32;
  bool deterministic = false;  ///< GPUs give the same bits in every run, at some cost; CPUs always do
  Seconds timeout{600.0};      ///< data planes between GPUs give up after this time without progress
};

/// Opens the device of this rank. Collective; errors are agreed on (unavailable: no memory for the BLAS, no usable GPU,
/// fewer GPUs on a node than ranks). The control plane must outlive the result.
Result<RankDevice> open_device(const DeviceRequest& request, const Environment& environment, runtime::Control& control);

/// The same without the other ranks and without a transport, for a process that joins and leaves ranks. `local_rank`:
/// index among the processes of this node that share its GPUs. Errors: as open_device().
Result<RankDevice> open_own_device(const DeviceRequest& request, const Environment& environment, int local_rank,
                                   const std::string& host);
/// Collective: the transport between the devices of these ranks; null if `control`'s own data plane moves the tensors.
/// Errors are agreed on (unavailable: no NCCL).
Result<std::unique_ptr<runtime::Transport>> make_device_transport(const RankDevice& own, Seconds timeout,
                                                                  runtime::Control& control);

/// Collective: "4 x NVIDIA H200", "CPUs (AMD EPYC 7763)".
std::string describe(const RankDevice& own, runtime::Control& control);

}  // namespace sailor::apps
