// State of one rank in host memory, on the rank itself or on a peer: two buffers, one of which receives the next
// version while the other holds the previous one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/copy_layout.hpp"
#include "runtime/device.hpp"
#include "runtime/loss_scale.hpp"
#include "runtime/state_pieces.hpp"
#include "runtime/training_state.hpp"

namespace sailor::runtime {

class KeptState {
 public:
  /// Keeps `parts` of the state of rank `owner`. The device must outlive it. A buffer is allocated when a version is
  /// first written to it.
  KeptState(Device& device, int owner, std::vector<StatePart> parts);
  ~KeptState();
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  [[nodiscard]] int owner() const { return owner_; }
  [[nodiscard]] const std::vector<StatePart>& parts() const { return parts_; }

  /// Consecutive elements of a buffer that are contiguous in the owner's memory, too: one message per array.
  struct Run {
    std::int64_t first = 0;   ///< first element in a buffer's array
    std::int64_t value = 0;   ///< first element in the owner's storage
    std::int64_t moment = 0;  ///< first element in its arrays of moments and master values
    std::int64_t count = 0;   ///< at most largest_piece
  };
  /// Runs of all parts: the same on the owner and wherever its state is kept.
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }

  class Buffer {
   public:
    [[nodiscard]] const StateVersion& version() const { return version_; }
    [[nodiscard]] const LossScale& loss_scale() const { return loss_scale_; }
    /// Whether all of the version has arrived. No transfer, not even a broken-off one, may still be writing to the
    /// buffer.
    [[nodiscard]] bool is_complete() const { return memory_ != nullptr && *mark() == mark_of(version_); }
    /// The mark (mark_bytes), which is written last, after the arrays.
    [[nodiscard]] std::int64_t* mark() const { return reinterpret_cast<std::int64_t*>(memory_); }
    /// Element `element` of an array.
    [[nodiscard]] float* memory(StoredArray array, std::int64_t element) const {
      return memory_ + head + static_cast<std::int64_t>(array) * elements_ + element;
    }

   private:
    friend class KeptState;
    float* memory_ = nullptr;
    std::int64_t elements_ = 0;
    StateVersion version_;
    LossScale loss_scale_;
  };
  [[nodiscard]] const std::array<Buffer, 2>& buffers() const { return buffers_; }
  /// Allocates both buffers now. Throws std::runtime_error if the host does not have the memory.
  void reserve();
  /// Begins `version` in the buffer of the older version, which is incomplete from now on.
  const Buffer& begin(const StateVersion& version, const LossScale& scale);
  /// Memory of elements `whole` of a parameter; null if they are not all in one part.
  [[nodiscard]] float* find(const Buffer& buffer, StoredArray array, const ParameterKey& key, const Range& whole) const;

  /// Mark of a complete version. A partly written mark does no harm: everything else arrived before it.
  static std::int64_t mark_of(const StateVersion& version) { return version.iteration + 1; }
  static constexpr std::size_t mark_bytes = sizeof(std::int64_t);
  static std::size_t buffer_bytes(std::int64_t elements) {
    return bytes_of(DataType::float32, head + static_cast<std::int64_t>(stored_arrays.size()) * elements);
  }

 private:
  void take_memory(Buffer& buffer) const;

  static constexpr std::int64_t head = 16;  // elements before the arrays, for the mark: keeps the arrays aligned

  Device& device_;
  int owner_;
  std::vector<StatePart> parts_;
  std::vector<std::int64_t> firsts_;  // first elements of the parts in a buffer's array
  std::vector<Run> runs_;
  std::int64_t elements_ = 0;
  std::array<Buffer, 2> buffers_;
};

}  // namespace sailor::runtime
