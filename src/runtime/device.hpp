// What the training runtime needs of a processor: memory with accounting, streams of operations (stream.hpp), and the
// host's view of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/units.hpp"
#include "runtime/stream.hpp"

namespace sailor::runtime {

/// Bytes of tensors on a device.
struct MemoryUse {
  Bytes alive{};     ///< allocated now
  Bytes peak{};      ///< largest `alive` since the last reset_peak_memory()
  Bytes reserved{};  ///< taken from the system: alive plus what the pool keeps for reuse
};

/// An allocation that failed. The device can be used on, and what was allocated before is there.
class OutOfMemoryError : public std::runtime_error {
 public:
  OutOfMemoryError(const std::string& message, Bytes requested_bytes, Bytes reserved_bytes, Bytes available_bytes)
      : std::runtime_error(message), requested(requested_bytes), reserved(reserved_bytes), available(available_bytes) {}
  Bytes requested;
  Bytes reserved;   ///< taken from the system before, without what could be given back
  Bytes available;  ///< that the device has for this rank, `reserved` included; where it has no limit, `reserved`
};

/// Where tensors get their memory. Contents of new memory are undefined. Alignment is at least 64 bytes.
class MemorySource {
 public:
  MemorySource() = default;
  virtual ~MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  /// Throws OutOfMemoryError.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
};

/// Memory of a device itself belongs to its main stream: what was released may be handed out again at once, since
/// operations of that stream run one after the other. Another stream may touch it after an event of the main stream
/// that was recorded after it was allocated; and before it is released, the main stream must wait for the other's last
/// use.
class Device : public MemorySource {
 public:
  /// "AMD EPYC 7763", "NVIDIA H200".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Libraries that compute, with versions: "OpenBLAS 0.3.21".
  [[nodiscard]] virtual std::string versions() const = 0;

  // ---- Memory
  [[nodiscard]] virtual MemoryUse memory_use() const = 0;
  virtual void reset_peak_memory() = 0;
  /// Reserve no more than that; 0: as much as there is. Below what is reserved now only new memory is refused.
  virtual void set_memory_limit(Bytes limit) = 0;
  /// Returns to the system what the pool keeps for reuse, so that what is allocated next lies elsewhere.
  virtual void release_unused_memory() = 0;
  // Of the memory that tensors are in, which is the host's unless a device says otherwise.
  /// What this rank may still take where so many ranks of its host compute. 0: the
  /// system does not say.
  [[nodiscard]] virtual Bytes available_memory(int ranks_of_host) const;
  /// What this process has taken, without what the pool has reserved on a GPU. On the host all that is
  /// resident. 0: the system does not say.
  [[nodiscard]] virtual Bytes memory_of_process() const;
  /// Memory of the host that the device copies from and to without the host waiting. Throws std::bad_alloc.
  [[nodiscard]] virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* memory) = 0;
  /// Its own memory is the host's: transfers may be made of memory of allocate_host(), too.
  [[nodiscard]] virtual bool computes_on_host() const { return false; }

  /// Values from a row to the next one of a matrix (rows, `width`) of 16-bit numbers or float32, so that products with
  /// it are fast: at least `width`.
  [[nodiscard]] virtual std::int64_t row_stride(std::int64_t width) const { return width; }

  // ---- Streams
  /// The one that computes.
  [[nodiscard]] virtual Stream& main() = 0;
  /// Another one. The device must outlive it.
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream() = 0;
  /// Not recorded yet.
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;
  /// Whether all before the event has run. Does not wait.
  [[nodiscard]] virtual bool is_done(const Event& event) = 0;
  /// The host waits until all before the event has run; nothing where it was never recorded.
  void wait(const Event& event) {
    ++host_waits_;
    wait_for(event);
  }
  /// The host waits for everything asked of the main stream.
  void synchronize();
  /// How often the host has waited for this device so far.
  [[nodiscard]] std::int64_t host_waits() const { return host_waits_; }
  /// After a TransportError, when everything else that was made of its transport is gone: what the main stream has left
  /// of transfers is given up, and the host waits for the rest. The device can be used on.
  virtual void give_up_transfers() { synchronize(); }
  /// Lets transfers under way go on where they need the host for it.
  virtual void progress() {}

  // ---- The same in one: the host waits.
  void write(void* to, const void* host, std::size_t bytes);
  void read(void* host, const void* from, std::size_t bytes);

  // ---- Measuring
  /// From one recorded event to a later one, both of which are done.
  [[nodiscard]] virtual Seconds elapsed(const Event& from, const Event& to) = 0;
  /// When it returns, no cache of the device holds memory that an operation used before.
  virtual void flush_caches() = 0;
  /// Of the processor now; 0 when the system does not say.
  [[nodiscard]] virtual double clock_hz() const = 0;

 private:
  virtual void wait_for(const Event& event) = 0;

  std::int64_t host_waits_ = 0;
  std::unique_ptr<Event> synchronized_;
};

}  // namespace sailor::runtime
