#include "runtime/checkpoint/pieces.hpp"

namespace sailor::runtime {

std::vector<OwnPiece> own_pieces(const ParameterStorage& storage, const std::vector<Range>& written) {
  std::vector<OwnPiece> own;
  for (std::size_t i = 0; i < storage.parameters().size(); ++i) {
    const Parameter& parameter = *storage.parameters()[i];
    const std::int64_t start = storage.offset(i);
    const std::vector<Piece> all = parameter.pieces();
    for (const Range& range : written) {
      const Range local{std::max(range.first - start, std::int64_t{0}),
                        std::min(range.last - start, parameter.elements())};
      if (local.first >= local.last) continue;
      for (Piece piece : clip(all, local))
        while (piece.count > 0) {
          const std::int64_t count = std::min(piece.count, largest_piece);
          own.push_back({i, {piece.whole, piece.local, count}});
          piece = {piece.whole + count, piece.local + count, piece.count - count};
        }
    }
  }
  return own;
}

Shape whole_shape(const Parameter& parameter) {
  Shape shape = parameter.shape;
  if (parameter.is_divided()) shape.front() = parameter.whole_elements() / parameter.width();
  return shape;
}

}  // namespace sailor::runtime
