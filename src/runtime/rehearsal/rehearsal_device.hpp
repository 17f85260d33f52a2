// A device that computes nothing and has no real memory: allocations are accounted for and have addresses, but must not
// be touched (a process that does ends with SIGSEGV). Values read from it are zeros.
#pragma once

#include <memory>
#include <string>

#include "runtime/device.hpp"

namespace sailor::runtime {

/// `name` is the name of the rehearsed device.
std::unique_ptr<Device> make_rehearsal_device(const std::string& name);

}  // namespace sailor::runtime
