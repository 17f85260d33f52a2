// Some cores of the host CPU as a device, with a BLAS for matrix products. Everything is done on return.
#pragma once

#include <memory>

#include "runtime/device.hpp"

namespace sailor::runtime {

/// Operations run on so many threads. Sets the BLAS to one thread, since each of these calls it.
std::unique_ptr<Device> make_cpu_device(int threads = 1);

}  // namespace sailor::runtime
