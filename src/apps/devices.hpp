// What each rank computes on: cores of the CPU, or one of the node's GPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "plan/plan.hpp"
#include "runtime/device.hpp"
#include "runtime/gpu_backend.hpp"
#include "runtime/world.hpp"

namespace sailor::apps {

/// The precisions that Sailor computes in, there.
Result<void> check_precision(Precision precision, bool on_gpus);

struct RankDevice {
  std::unique_ptr<runtime::Device> device;
  std::unique_ptr<runtime::Transport> transport;  ///< between GPUs; null: the job's own
  runtime::GpuDescription gpu;                    ///< where it is one

  /// Of the job's ranks `started`, with what moves tensors between these devices.
  [[nodiscard]] runtime::World world(const runtime::World& started) const {
    return {started.control, transport == nullptr ? started.transport : *transport};
  }
};

/// Collective; errors are agreed on (unavailable: no memory for the BLAS, no usable GPU, fewer GPUs on a node than
/// ranks). The control plane must outlive the result. Data planes between GPUs give up when nothing gets on for
/// `timeout`.
Result<RankDevice> open_device(bool on_gpus, Precision precision, const Environment& environment,
                               runtime::Control& control, Seconds timeout);

/// Collective: the texts of all ranks on all ranks. They have no line breaks.
std::vector<std::string> share(runtime::Control& control, const std::string& text);

/// Collective: "4 x NVIDIA H200", "CPUs (AMD EPYC 7763)".
std::string describe(const RankDevice& own, runtime::Control& control);

}  // namespace sailor::apps
