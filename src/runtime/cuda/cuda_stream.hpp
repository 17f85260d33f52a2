// What a transport between GPUs needs of a GPU's device and its streams.
#pragma once

#include <cuda_runtime.h>

#include "runtime/device.hpp"

namespace sailor::runtime {

/// A stream of a CUDA device: others may put operations on it, too.
class CudaStream : public Stream {
 public:
  [[nodiscard]] virtual cudaStream_t handle() const = 0;
};

/// Whom a device asks, again and again, while its host waits.
class TransferWatch {
 public:
  TransferWatch() = default;
  virtual ~TransferWatch() = default;
  TransferWatch(const TransferWatch&) = delete;
  TransferWatch& operator=(const TransferWatch&) = delete;

  /// The host begins to wait.
  virtual void begin() = 0;
  /// Throws TransportError when transfers have failed, or nothing has got on for too long.
  virtual void look() = 0;
};

class CudaDevice : public Device {
 public:
  /// Null: nobody. The watch must outlive its being one.
  virtual void set_watch(TransferWatch* watch) = 0;
};

}  // namespace sailor::runtime
