// Some cores of the host CPU as a device, with a BLAS for matrix products. All operations are complete on return.
#pragma once

#include <memory>

#include "runtime/device.hpp"

namespace sailor::runtime {

/// Operations run on `threads` threads. Sets the BLAS to one thread, since each of these threads calls it.
std::unique_ptr<Device> make_cpu_device(int threads = 1);

}  // namespace sailor::runtime
