// Operations on some cores of the host, in the order in which they are asked for.
#pragma once

#include <memory>

#include "runtime/cpu/threads.hpp"
#include "runtime/host_stream.hpp"
#include "runtime/memory_pool.hpp"

namespace sailor::runtime {

/// Kernels run in the calling thread, after the stream has completed all transfers before them.
class CpuStream : public HostStream {
 public:
  /// Transfers that are not complete never will be: their other ranks are gone.
  virtual void give_up() = 0;
};

/// The arguments must outlive the stream.
std::unique_ptr<CpuStream> make_cpu_stream(const cpu::Threads& threads, MemoryPool& pool, HostQueues& queues);

}  // namespace sailor::runtime
