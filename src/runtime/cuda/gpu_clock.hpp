// Clock frequency of a GPU's processors, from NVIDIA's management library if it is installed.
#pragma once

#include <string>

#include "core/shared_library.hpp"

struct nvmlDevice;

namespace sailor::runtime::cuda {

class GpuClock {
 public:
  /// Clock of the GPU with this bus id ("0000:65:00.0").
  explicit GpuClock(const std::string& bus_id);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  /// Current frequency; 0 if the library is missing, or does not say. Takes milliseconds.
  [[nodiscard]] double hz() const;

 private:
  SharedLibrary nvml_;
  nvmlDevice* device_ = nullptr;
  bool has_started_ = false;
};

}  // namespace sailor::runtime::cuda
