// The clock of a GPU's processors, by NVIDIA's management library where that is there.
#pragma once

#include <string>

#include "core/shared_library.hpp"

struct nvmlDevice;

namespace sailor::runtime::cuda {

class GpuClock {
 public:
  /// Of the GPU with this bus id ("0000:65:00.0").
  explicit GpuClock(const std::string& bus_id);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  /// Now; 0: the library is not there, or does not say. Milliseconds.
  [[nodiscard]] double hz() const;

 private:
  SharedLibrary nvml_;
  nvmlDevice* device_ = nullptr;
  bool has_started_ = false;
};

}  // namespace sailor::runtime::cuda
