#include "runtime/device.hpp"

#include "runtime/process_memory.hpp"

namespace sailor::runtime {

Bytes Device::available_memory(int ranks_of_host) const { return runtime::available_memory() / ranks_of_host; }

Bytes Device::memory_of_process() const { return resident_memory().now; }

Bytes Device::peak_memory_of_process() const { return resident_memory().peak; }

void Device::synchronize() {
  if (synchronized_ == nullptr) synchronized_ = make_event();
  main().record(*synchronized_);
  wait(*synchronized_);
}

void Device::write(void* to, const void* host, std::size_t bytes) {
  main().copy_from_host(to, host, bytes);
  synchronize();
}

void Device::read(void* host, const void* from, std::size_t bytes) {
  main().copy_to_host(host, from, bytes);
  synchronize();
}

}  // namespace sailor::runtime
