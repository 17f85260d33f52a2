// How a parameter is divided among the ranks of a tensor-parallel group.
//
// A parameter is cut along its rows, which are contiguous, so that whatever a rank holds of it is contiguous too: a
// matrix whose outputs are divided is stored (out, in), one whose inputs are divided (in, out). Rows may come in
// segments that are cut each by itself: queries, keys and values of one projection. A cut falls on row
// floor(rows * index / count), so that the cuts of a degree are among those of its multiples.
#pragma once

#include <cstdint>
#include <vector>

namespace sailor::runtime {

/// Part `index` of `count`.
struct Shard {
  int index = 0;
  int count = 1;
  bool operator==(const Shard&) const = default;
};

/// Half-open range [first, last).
struct Range {
  std::int64_t first = 0;
  std::int64_t last = 0;
  [[nodiscard]] std::int64_t size() const { return last - first; }
  bool operator==(const Range&) const = default;
};

/// The part of `rows` rows that a shard holds.
constexpr Range cut(std::int64_t rows, const Shard& shard) {
  return {rows * shard.index / shard.count, rows * (shard.index + 1) / shard.count};
}

/// Elements that are contiguous both in the whole parameter and on a rank.
struct Piece {
  std::int64_t whole = 0;  ///< first element in the whole parameter
  std::int64_t local = 0;  ///< first element on the rank
  std::int64_t count = 0;
  bool operator==(const Piece&) const = default;
};

/// Pieces that a shard holds of a parameter whose segments have `segments` rows of `width` elements, in the order on
/// the rank, which holds its part of the segments `held` only.
std::vector<Piece> pieces_of(const std::vector<std::int64_t>& segments, std::int64_t width, const Shard& shard,
                             const Range& held);

/// The pieces within elements [first, last) of the rank; `local` still counts from the parameter's start.
std::vector<Piece> clip(const std::vector<Piece>& pieces, const Range& local);

}  // namespace sailor::runtime
