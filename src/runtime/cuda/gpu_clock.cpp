// The functions are declared here as in NVIDIA's nvml.h, so that programs start without a driver.
#include "runtime/cuda/gpu_clock.hpp"

namespace sailor::runtime::cuda {

GpuClock::GpuClock(const std::string& bus_id) : nvml_("libnvidia-ml.so.1") {
  has_started_ = nvml_.call("nvmlInit_v2");
  if (!has_started_ ||
      !nvml_.call<const char*, nvmlDevice**>("nvmlDeviceGetHandleByPciBusId_v2", bus_id.c_str(), &device_))
    device_ = nullptr;
}

GpuClock::~GpuClock() {
  if (has_started_) nvml_.call("nvmlShutdown");
}

double GpuClock::hz() const {
  constexpr int of_processors = 1;  // NVML_CLOCK_SM
  unsigned int megahertz = 0;
  if (device_ == nullptr ||
      !nvml_.call<nvmlDevice*, int, unsigned int*>("nvmlDeviceGetClockInfo", device_, of_processors, &megahertz))
    return 0.0;
  return 1e6 * megahertz;
}

}  // namespace sailor::runtime::cuda
