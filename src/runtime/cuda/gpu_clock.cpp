// The functions are declared here as NVIDIA's nvml.h does, so that programs start where there is no driver.
#include "runtime/cuda/gpu_clock.hpp"

#include <dlfcn.h>

namespace sailor::runtime::cuda {

struct GpuClock::Library {
  using Device = struct nvmlDevice*;
  static constexpr int success = 0;
  static constexpr int of_processors = 1;  // NVML_CLOCK_SM

  /// Stays loaded: NVIDIA's does not survive dlclose.
  void* handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  Device device = nullptr;
  bool has_started = false;

  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle, name));
    return function != nullptr && function(arguments...) == success;
  }
};

GpuClock::GpuClock(const std::string& bus_id) : library_(std::make_unique<Library>()) {
  if (library_->handle == nullptr) {
    library_.reset();
    return;
  }
  library_->has_started = library_->call("nvmlInit_v2");
  if (!library_->has_started || !library_->call<const char*, Library::Device*>("nvmlDeviceGetHandleByPciBusId_v2",
                                                                               bus_id.c_str(), &library_->device))
    library_->device = nullptr;
}

GpuClock::~GpuClock() {
  if (library_ != nullptr && library_->has_started) library_->call("nvmlShutdown");
}

double GpuClock::hz() const {
  unsigned int megahertz = 0;
  if (library_ == nullptr || library_->device == nullptr ||
      !library_->call<Library::Device, int, unsigned int*>("nvmlDeviceGetClockInfo", library_->device,
                                                           Library::of_processors, &megahertz))
    return 0.0;
  return 1e6 * megahertz;
}

}  // namespace sailor::runtime::cuda
