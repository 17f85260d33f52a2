// State of one rank in the memory of a host, its own or a peer's: two buffers, of which one takes the next version
// while the other has the one before.
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
  /// Of parts of rank `owner`. The device must outlive it. Memory of a buffer is taken when a version comes to it.
  KeptState(Device& device, int owner, std::vector<StatePart> parts);
  ~KeptState();
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  [[nodiscard]] int owner() const { return owner_; }
  [[nodiscard]] const std::vector<StatePart>& parts() const { return parts_; }

  /// Neighbouring elements of the buffers that follow each other in the owner's memory, too: of each array one message.
  struct Run {
    std::int64_t first = 0;   ///< in a buffer's array
    std::int64_t value = 0;   ///< in the owner's storage
    std::int64_t moment = 0;  ///< in its arrays of moments and master values
    std::int64_t count = 0;   ///< at most largest_piece
  };
  /// The same on the owner and wherever its state is kept.
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }

  class Buffer {
   public:
    [[nodiscard]] const StateVersion& version() const { return version_; }
    [[nodiscard]] const LossScale& loss_scale() const { return loss_scale_; }
    /// All of the version is here. Whoever wrote it, or broke off, must be done.
    [[nodiscard]] bool is_complete() const { return memory_ != nullptr && *mark() == mark_of(version_); }
    /// Comes last, behind the arrays: mark_bytes.
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
  /// Takes the memory of both buffers now. Throws std::runtime_error where the host does not have it.
  void reserve();
  /// The buffer of the older version is to take that one: it is not complete from now on.
  const Buffer& begin(const StateVersion& version, const LossScale& scale);
  /// The memory of elements `whole` of a parameter, all in one part; null where they are not.
  [[nodiscard]] float* find(const Buffer& buffer, StoredArray array, const ParameterKey& key, const Range& whole) const;

  /// What the mark of a complete version says. A mark of which only some bytes have come cannot do harm: everything
  /// else came before it.
  static std::int64_t mark_of(const StateVersion& version) { return version.iteration + 1; }
  static constexpr std::size_t mark_bytes = sizeof(std::int64_t);
  static std::size_t buffer_bytes(std::int64_t elements) {
    return bytes_of(DataType::float32, head + static_cast<std::int64_t>(stored_arrays.size()) * elements);
  }

 private:
  void take_memory(Buffer& buffer) const;

  static constexpr std::int64_t head = 16;  // elements in front of the arrays, for the mark: they stay aligned

  Device& device_;
  int owner_;
  std::vector<StatePart> parts_;
  std::vector<std::int64_t> firsts_;  // of the parts, in a buffer's array
  std::vector<Run> runs_;
  std::int64_t elements_ = 0;
  std::array<Buffer, 2> buffers_;
};

}  // namespace sailor::runtime
