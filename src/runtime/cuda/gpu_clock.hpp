// The clock of a GPU's processors, by NVIDIA's management library where that is there.
#pragma once

#include <memory>
#include <string>

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
  struct Library;
  std::unique_ptr<Library> library_;  // null: it is not there
};

}  // namespace sailor::runtime::cuda
