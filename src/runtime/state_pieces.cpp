#include "runtime/state_pieces.hpp"

#include <numeric>

namespace sailor::runtime {

float* moments_of(AdamW& optimizer, StoredArray array) {
  switch (array) {
    case StoredArray::value:
      return optimizer.master_values();
    case StoredArray::first_moment:
      return optimizer.first_moments();
    case StoredArray::second_moment:
      return optimizer.second_moments();
  }
  return nullptr;
}

std::string_view to_string(StoredArray array) {
  constexpr std::array<std::string_view, 3> names{"value", "first_moment", "second_moment"};
  return names[static_cast<std::size_t>(array)];
}

Declarations declarations_of(const ParameterStorage& storage) {
  return {storage.parameters().begin(), storage.parameters().end()};
}

Declarations declarations_of(const std::vector<Parameter>& parameters) {
  Declarations declarations;
  for (const Parameter& parameter : parameters) declarations.push_back(&parameter);
  return declarations;
}

std::vector<OwnPiece> own_pieces(const Declarations& parameters, const std::vector<Range>& ranges) {
  std::vector<OwnPiece> own;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    const std::vector<Piece> all = parameter.pieces();
    for (const Range& range : ranges) {
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
    start += padded(parameter.elements());
  }
  return own;
}

Shape whole_shape(const Parameter& parameter) {
  Shape shape = parameter.shape;
  if (parameter.is_divided()) shape.front() = parameter.whole_elements() / parameter.width();
  return shape;
}

std::vector<WantedPiece> wanted_pieces(const Declarations& parameters, const std::vector<Range>& owned) {
  std::vector<WantedPiece> wanted;
  const std::int64_t size =
      std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0},
                      [](std::int64_t sum, const Parameter* one) { return sum + padded(one->elements()); });
  for (const OwnPiece& own : own_pieces(parameters, {{0, size}}))
    wanted.push_back({StoredArray::value, own.parameter, own.piece});
  const std::vector<OwnPiece> stepped = own_pieces(parameters, owned);
  for (const StoredArray array : {StoredArray::first_moment, StoredArray::second_moment})
    for (const OwnPiece& own : stepped) wanted.push_back({array, own.parameter, own.piece});
  return wanted;
}

StateTarget::StateTarget(Device& device, ParameterStorage& storage, AdamW& optimizer)
    : device_(device), storage_(storage), optimizer_(optimizer) {
  std::vector<Range> owned;
  for (const AdamW::Part& part : optimizer.parts()) {
    const std::int64_t first = storage.offset(part.parameter) + part.first;
    owned.push_back({first, first + part.count});
  }
  pieces_ = wanted_pieces(declarations_of(storage), owned);
}

float* StateTarget::memory(const WantedPiece& wanted) {
  const auto [whole, local, count] = wanted.piece;
  // Gradients have the same layout as values, in float32.
  if (wanted.array == StoredArray::value)
    return (storage_.type() == DataType::float32 ? storage_.values().floats() : storage_.gradients()) +
           storage_.offset(wanted.parameter) + local;
  float* memory = nullptr;
  for_moments(optimizer_, wanted.parameter, {local, local + count},
              [&](std::int64_t, std::int64_t, std::int64_t moment) {
                if (memory == nullptr) memory = moments_of(optimizer_, wanted.array) + moment;
              });
  return memory;
}

void StateTarget::finish() {
  if (storage_.type() == DataType::float32) return;
  Stream& main = device_.main();
  main.convert(storage_.values(), ConstValues(storage_.gradients()), storage_.size());
  for (const AdamW::Part& part : optimizer_.parts())
    main.copy(optimizer_.master_values() + part.moment,
              storage_.gradients() + storage_.offset(part.parameter) + part.first,
              bytes_of(DataType::float32, part.count));
}

const float* stepped_memory(ParameterStorage& storage, AdamW& optimizer, StoredArray array, std::size_t parameter,
                            const Range& local) {
  const float* memory = nullptr;
  std::int64_t here = 0;
  for_moments(optimizer, parameter, local, [&](std::int64_t first, std::int64_t count, std::int64_t moment) {
    if (first != local.first) return;
    here = count;
    memory = array == StoredArray::value && storage.type() == DataType::float32
                 ? storage.values().floats() + storage.offset(parameter) + first
                 : moments_of(optimizer, array) + moment;
  });
  return here == local.size() ? memory : nullptr;
}

}  // namespace sailor::runtime
