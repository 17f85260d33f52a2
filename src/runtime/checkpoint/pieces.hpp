// Which elements of which whole parameters a checkpoint has of a rank's storage.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/parameters.hpp"

namespace sailor::runtime {

/// Elements of one parameter that are written as one piece.
struct OwnPiece {
  std::size_t parameter = 0;  ///< index in the storage
  Piece piece{};              ///< at most largest_piece elements
};

/// Pieces of elements `written` of the storage, without the padding, ascending.
std::vector<OwnPiece> own_pieces(const ParameterStorage& storage, const std::vector<Range>& written);

/// Calls `use(first, count, moment)` for elements [first, first + count) of storage parameter `parameter` on this rank
/// and their place in the arrays of moments, for all of `local` that the optimizer steps. Returns how many.
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

/// Shape of the parameter that all shards make together. The rank must hold some of it.
Shape whole_shape(const Parameter& parameter);

}  // namespace sailor::runtime
