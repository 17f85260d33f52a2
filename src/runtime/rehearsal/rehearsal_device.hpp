// A device that computes nothing and has memory in name only: what is allocated is accounted for and has an address,
// but may not be touched (a process that does ends with SIGSEGV). Values that come from it are zeros.
#pragma once

#include <memory>
#include <string>

#include "runtime/device.hpp"

namespace sailor::runtime {

/// `name` is that of the device that is rehearsed.
std::unique_ptr<Device> make_rehearsal_device(const std::string& name);

}  // namespace sailor::runtime
