#include "runtime/sharding.hpp"

#include <algorithm>

namespace sailor::runtime {

std::vector<Piece> pieces_of(const std::vector<std::int64_t>& segments, std::int64_t width, const Shard& shard,
                             const Range& held) {
  std::vector<Piece> pieces;
  std::int64_t start = 0;  // of the segment in the whole parameter
  std::int64_t local = 0;
  for (std::int64_t i = 0; i < std::ssize(segments); ++i) {
    const std::int64_t rows = segments[static_cast<std::size_t>(i)];
    const Range mine = held.first <= i && i < held.last ? cut(rows, shard) : Range{};
    if (mine.size() > 0) {
      const Piece piece{.whole = start + mine.first * width, .local = local, .count = mine.size() * width};
      if (!pieces.empty() && pieces.back().whole + pieces.back().count == piece.whole)
        pieces.back().count += piece.count;
      else
        pieces.push_back(piece);
    }
    start += rows * width;
    local += mine.size() * width;
  }
  return pieces;
}

std::vector<Piece> clip(const std::vector<Piece>& pieces, const Range& local) {
  std::vector<Piece> clipped;
  for (const Piece& piece : pieces) {
    const std::int64_t first = std::max(piece.local, local.first);
    const std::int64_t last = std::min(piece.local + piece.count, local.last);
    if (first < last) clipped.push_back({piece.whole + first - piece.local, first, last - first});
  }
  return clipped;
}

}  // namespace sailor::runtime
