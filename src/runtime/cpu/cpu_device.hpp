// One core of the host CPU as a device: fp32 with a BLAS for matrix products. Everything is done on return.
#pragma once

#include <memory>

#include "runtime/device.hpp"

namespace sailor::runtime {

/// Sets the BLAS to one thread, as a rank is one core.
std::unique_ptr<Device> make_cpu_device();

}  // namespace sailor::runtime
