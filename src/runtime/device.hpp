// Interface of a device for the training runtime: memory with accounting, streams of operations (stream.hpp), and the
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

/// An allocation that failed. The device remains usable, and earlier allocations remain valid.
class OutOfMemoryError : public std::runtime_error {
 public:
  OutOfMemoryError(const std::string& message, Bytes requested_bytes, Bytes reserved_bytes, Bytes available_bytes)
      : std::runtime_error(message), requested(requested_bytes), reserved(reserved_bytes), available(available_bytes) {}
  Bytes requested;
  Bytes reserved;   ///< taken from the system before, not counting memory that could be given back
  Bytes available;  ///< memory of the device for this rank, including `reserved`; `reserved` if there is no limit
};

/// Allocator of tensor memory. Contents of new memory are undefined. Alignment is at least 64 bytes.
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

/// Memory that a device itself allocates belongs to its main stream: released memory may be reused at once, since
/// operations of that stream run in order. Another stream may use it after an event that the main stream recorded after
/// the allocation; before the release, the main stream must wait for that stream's last use.
class Device : public MemorySource {
 public:
  /// "AMD EPYC 7763", "NVIDIA H200".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Compute libraries with their versions: "OpenBLAS 0.3.21".
  [[nodiscard]] virtual std::string versions() const = 0;

  // ---- Memory
  [[nodiscard]] virtual MemoryUse memory_use() const = 0;
  virtual void reset_peak_memory() = 0;
  /// Maximum memory to reserve; 0: as much as there is. If it is below what is reserved now, only new memory is
  /// refused.
  virtual void set_memory_limit(Bytes limit) = 0;
  /// Returns the memory that the pool keeps for reuse to the system, so that the next allocations lie elsewhere.
  virtual void release_unused_memory() = 0;
  // The next three are about the memory that holds tensors, which is the host's unless a device overrides them.
  /// Memory that this rank may still take when `ranks_of_host` ranks of its host compute; 0 if the system does not say.
  [[nodiscard]] virtual Bytes available_memory(int ranks_of_host) const;
  /// Memory taken outside the pool. On a GPU: what is in use of the whole GPU without what the pool has reserved, so
  /// that memory of other processes is included. On the host: all resident memory of this process. 0 if the system does
  /// not say.
  [[nodiscard]] virtual Bytes memory_of_process() const;
  /// The most that this process has ever taken; of a GPU, what is taken now, including what other processes have there.
  [[nodiscard]] virtual Bytes peak_memory_of_process() const;
  /// Pinned host memory: the device copies from and to it without the host waiting. Throws std::bad_alloc.
  [[nodiscard]] virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* memory) = 0;
  /// Whether device memory is host memory: transfers may then use memory of allocate_host(), too.
  [[nodiscard]] virtual bool computes_on_host() const { return false; }

  /// Row stride in values, at least `width`, with which products with a matrix (rows, `width`) of 16-bit numbers or
  /// float32 are fast.
  [[nodiscard]] virtual std::int64_t row_stride(std::int64_t width) const { return width; }

  // ---- Streams
  /// The stream that computes.
  [[nodiscard]] virtual Stream& main() = 0;
  /// An additional stream. The device must outlive it.
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream() = 0;
  /// A new event that is not recorded yet.
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;
  /// Whether everything before the event has run. Does not wait.
  [[nodiscard]] virtual bool is_done(const Event& event) = 0;
  /// The host waits until everything before the event has run; returns at once if it was never recorded.
  void wait(const Event& event) {
    ++host_waits_;
    wait_for(event);
  }
  /// The host waits for everything enqueued on the main stream.
  void synchronize();
  /// How often the host has waited for this device so far.
  [[nodiscard]] std::int64_t host_waits() const { return host_waits_; }
  /// To be called after a TransportError, once everything else that was made with the transport is destroyed: drops the
  /// main stream's remaining transfers, and the host waits for its other operations. The device remains usable.
  virtual void give_up_transfers() { synchronize(); }
  /// Advances transfers in flight that need the host to progress.
  virtual void progress() {}

  // ---- Copies that the host waits for
  void write(void* to, const void* host, std::size_t bytes);
  void read(void* host, const void* from, std::size_t bytes);

  // ---- Measuring
  /// Time from one recorded event to a later one; both must be done.
  [[nodiscard]] virtual Seconds elapsed(const Event& from, const Event& to) = 0;
  /// When it returns, no cache of the device holds a tensor.
  virtual void flush_caches() = 0;
  /// Current clock rate of the processor; 0 if the system does not say.
  [[nodiscard]] virtual double clock_hz() const = 0;

 private:
  virtual void wait_for(const Event& event) = 0;

  std::int64_t host_waits_ = 0;
  std::unique_ptr<Event> synchronized_;
};

}  // namespace sailor::runtime
