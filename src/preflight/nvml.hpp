// NVIDIA's management library, loaded if it is there: nothing of CUDA is needed to build this, and nothing of it on
// nodes without GPUs.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "preflight/rank_facts.hpp"

namespace sailor::preflight {

struct Nvml {
  std::string driver{};          ///< version: "570.86.15"
  std::string cuda{};            ///< newest version that the driver supports: "12.8"
  std::vector<GpuFacts> gpus{};  ///< those that this process may use; cores and xids are not filled in
};

/// Asks the library for all GPUs. Facts that it does not answer stay empty. Errors (unavailable): there is no library,
/// or no driver.
Result<Nvml> ask_nvml(const char* library = "libnvidia-ml.so.1");

/// The version of NCCL in the library of this name, "2.30.7"; empty if it is not there.
std::string nccl_version(const char* library = "libnccl.so.2");
/// The version of libfabric, "2.6"; empty if it is not there.
std::string libfabric_version(const char* library = "libfabric.so.1");

}  // namespace sailor::preflight
