// The training state as pieces of whole parameters, which checkpoints store and ranks of one plan send to those of
// another. Values are transferred as float32, whatever type a rank computes with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/optimizer.hpp"
#include "runtime/parameters.hpp"

namespace sailor::runtime {

/// The three arrays that a parameter has.
enum class StoredArray { value, first_moment, second_moment };
inline constexpr std::array<StoredArray, 3> stored_arrays{StoredArray::value, StoredArray::first_moment,
                                                          StoredArray::second_moment};
std::string_view to_string(StoredArray array);

/// Maximum number of elements of a piece, which a checkpoint reads and checks at once (16 MiB). Larger pieces are
/// refused.
inline constexpr std::int64_t largest_piece = std::int64_t{1} << 22;

/// Elements of one parameter that are contiguous both in the whole parameter and on a rank.
struct OwnPiece {
  std::size_t parameter = 0;  ///< index in the storage
  Piece piece{};              ///< at most largest_piece elements
};

/// Declarations in the order of a storage, with or without memory.
using Declarations = std::vector<const Parameter*>;
Declarations declarations_of(const ParameterStorage& storage);
Declarations declarations_of(const std::vector<Parameter>& parameters);

/// Pieces of elements `ranges` of a storage of these parameters, without padding, ascending.
std::vector<OwnPiece> own_pieces(const Declarations& parameters, const std::vector<Range>& ranges);

/// Calls `use(first, count, moment)` for all elements of `local` that the optimizer updates: [first, first + count) are
/// elements of storage parameter `parameter` on this rank, `moment` is their place in the arrays of moments. Returns
/// their number.
template <class Use>
std::int64_t for_moments(const AdamW& optimizer, std::size_t parameter, const Range& local, const Use& use) {
  std::int64_t found = 0;
  const auto& parts = optimizer.parts();
  auto part = std::partition_point(parts.begin(), parts.end(), [&](const AdamW::Part& other) {
    return other.parameter < parameter || (other.parameter == parameter && other.first + other.count <= local.first);
  });
  for (; part != parts.end() && part->parameter == parameter && part->first < local.last; ++part) {
    const std::int64_t first = std::max(local.first, part->first);
    const std::int64_t count = std::min(local.last, part->first + part->count) - first;
    use(first, count, part->moment + first - part->first);
    found += count;
  }
  return found;
}

/// Shape of the whole parameter, over all shards. The rank must hold some of it.
Shape whole_shape(const Parameter& parameter);

/// A piece of an array that a rank needs.
struct WantedPiece {
  StoredArray array{};
  std::size_t parameter = 0;  ///< index in the storage
  Piece piece{};
};

/// All pieces that a rank needs which has these parameters and updates elements `owned` of its storage: first the
/// values of all elements, then the moments of the owned ones, array by array.
std::vector<WantedPiece> wanted_pieces(const Declarations& parameters, const std::vector<Range>& owned);

/// State of a rank while it is replaced from a checkpoint or from other ranks.
class StateTarget {
 public:
  /// Storage and optimizer must outlive it. Gradients become undefined.
  StateTarget(Device& device, ParameterStorage& storage, AdamW& optimizer);
  [[nodiscard]] const std::vector<WantedPiece>& pieces() const { return pieces_; }
  /// Device memory for the float32 elements of a piece.
  [[nodiscard]] float* memory(const WantedPiece& piece);
  /// To be called when all pieces have arrived, on the main stream: 16-bit weights and master values are computed from
  /// them.
  void finish();

 private:
  Device& device_;
  ParameterStorage& storage_;
  AdamW& optimizer_;
  std::vector<WantedPiece> pieces_;
};

/// The optimizer's array; for values, its master values, which are null if the storage is float32.
float* moments_of(AdamW& optimizer, StoredArray array);

/// Device memory of float32 elements [local.first, local.last) of an array of a storage's parameter; null if the
/// optimizer does not update all of them in one part.
const float* stepped_memory(ParameterStorage& storage, AdamW& optimizer, StoredArray array, std::size_t parameter,
                            const Range& local);

}  // namespace sailor::runtime
