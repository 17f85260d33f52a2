// Interfaces of a GPU's device and streams that a transport between GPUs needs.
#pragma once

#include <cuda_runtime.h>

#include "runtime/device.hpp"

namespace sailor::runtime {

/// A stream of a CUDA device: others may enqueue operations on it, too.
class CudaStream : public Stream {
 public:
  [[nodiscard]] virtual cudaStream_t handle() const = 0;
};

/// Polled by a device while its host waits.
class TransferWatch {
 public:
  TransferWatch() = default;
  virtual ~TransferWatch() = default;
  TransferWatch(const TransferWatch&) = delete;
  TransferWatch& operator=(const TransferWatch&) = delete;

  /// Called when the host begins to wait.
  virtual void begin() = 0;
  /// Throws TransportError if transfers have failed, or nothing has progressed for too long.
  virtual void look() = 0;
  /// Throws TransportError if transfers have failed.
  virtual void check() = 0;
};

class CudaDevice : public Device {
 public:
  /// Sets the watch to poll; null: none. The watch must live until another one, or none, is set.
  virtual void set_watch(TransferWatch* watch) = 0;
};

}  // namespace sailor::runtime
