#include "runtime/process_memory.hpp"

#include <cstdlib>
#include <fstream>
#include <string>

namespace sailor::runtime {

ResidentMemory resident_memory() {
  ResidentMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {  // "VmHWM:     1234 kB", where kB is 1024 bytes
    const auto value = [&] { return kib * std::strtod(line.c_str() + line.find(':') + 1, nullptr); };
    if (line.starts_with("VmRSS:")) memory.now = value();
    if (line.starts_with("VmHWM:")) memory.peak = value();
  }
  return memory;
}

}  // namespace sailor::runtime
