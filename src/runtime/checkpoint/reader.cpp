#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/text.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checksum.hpp"
#include "runtime/checkpoint/folder.hpp"
#include "runtime/state_pieces.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_open_files = 64;

/// The error of a checkpoint that cannot be used; suggests the one before it as a way out.
tl::unexpected<Error> unusable(Error error, const fs::path& checkpoint, std::optional<std::int64_t> sequence) {
  std::error_code code;
  const fs::path absolute = fs::absolute(checkpoint, code);
  const auto entries =
      list_checkpoints((absolute.filename().empty() ? absolute.parent_path() : absolute).parent_path());
  if (!entries) return fail(std::move(error));
  for (const CheckpointEntry& entry : *entries) {
    std::error_code ignored;
    if (!entry.is_valid() || (sequence && entry.sequence >= *sequence) ||
        fs::equivalent(entry.path, checkpoint, ignored))
      continue;
    error.hint = fmt::format(
        "use '{}', the newest one before it (sailor-train --checkpoints does, when you have moved the damaged one "
        "away)",
        entry.path.string());
    return fail(std::move(error));
  }
  if (error.hint.empty() && error.code == ErrorCode::invalid_input)
    error.hint = "bring its files back: there is no older checkpoint beside it";
  return fail(std::move(error));
}

}  // namespace

struct CheckpointReader::State {
  fs::path folder;
  Manifest manifest;
  std::map<std::size_t, File> files;
  // The piece that was read last: adjacent ranges often share one.
  std::optional<std::pair<std::size_t, std::int64_t>> current;  // its file and offset
  std::vector<float> data;

  /// The error with the way out.
  [[nodiscard]] tl::unexpected<Error> refuse(Error error) const {
    return unusable(std::move(error), folder, manifest.sequence);
  }

  Result<File*> file(std::size_t index) {
    if (const auto found = files.find(index); found != files.end()) return &found->second;
    auto opened = File::open(folder / manifest.files[index].name);
    if (!opened) return fail(opened.error());
    if (files.size() == most_open_files) files.clear();
    return &files.insert_or_assign(index, std::move(*opened)).first->second;
  }

  /// Reads a piece into `data`.
  Result<void> read_piece(const StoredTensor& tensor, StoredArray array, const StoredPiece& piece) {
    const std::pair key(piece.file, piece.offset);
    if (current == key && std::ssize(data) == piece.count) return {};
    current.reset();
    data.resize(static_cast<std::size_t>(piece.count));
    const auto opened = file(piece.file);
    if (!opened) return refuse(opened.error());
    if (auto read = (*opened)->read(piece.offset, data.data(), static_cast<std::size_t>(piece.bytes())); !read)
      return refuse(read.error());
    if (checksum(data.data(), static_cast<std::size_t>(piece.bytes())) != piece.checksum)
      return refuse(
          {ErrorCode::invalid_input,
           fmt::format("'{}' is damaged: bytes {} to {} ({} of layer {}, {}, elements {} to {}) do not have "
                       "their checksum",
                       (*opened)->path().string(), piece.offset, piece.offset + piece.bytes() - 1, to_string(array),
                       tensor.layer, tensor.name, piece.first, piece.first + piece.count - 1),
           {}});
    current = key;
    return {};
  }

  Result<void> verify_text_file(std::size_t index) {
    const StoredFile& stored = manifest.files[index];
    const auto opened = file(index);
    if (!opened) return refuse(opened.error());
    std::string text;
    constexpr std::int64_t largest = 1 << 28;
    if (stored.bytes > largest)
      return refuse({ErrorCode::invalid_input, fmt::format("'{}' is too large", (*opened)->path().string()), {}});
    text.resize(static_cast<std::size_t>(stored.bytes));
    if (auto read = (*opened)->read(0, text.data(), text.size()); !read) return refuse(read.error());
    if (checksum(text.data(), text.size()) != *stored.checksum)
      return refuse({ErrorCode::invalid_input,
                     fmt::format("'{}' is damaged: it does not have its checksum", (*opened)->path().string()),
                     {}});
    return {};
  }
};

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&& other) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&& other) noexcept = default;

Result<CheckpointReader> CheckpointReader::open(const fs::path& checkpoint) {
  auto manifest = read_manifest(checkpoint);
  if (!manifest) return unusable(manifest.error(), checkpoint, std::nullopt);
  return CheckpointReader(std::unique_ptr<State>(new State{.folder = checkpoint, .manifest = std::move(*manifest)}));
}

const Manifest& CheckpointReader::manifest() const { return state_->manifest; }

Result<void> CheckpointReader::check_model(const Model& model) const {
  const std::string differences = difference(state_->manifest.architecture, architecture_of(model));
  if (differences.empty()) return {};
  return fail(ErrorCode::invalid_input,
              fmt::format("checkpoint '{}' is of model '{}', which is not '{}': {}", state_->folder.string(),
                          valid_utf8(state_->manifest.model), model.name, differences),
              fmt::format("use model '{}', or a checkpoint of '{}'", valid_utf8(state_->manifest.model), model.name));
}

Result<void> CheckpointReader::read(const StoredTensor& tensor, StoredArray array, const Range& wanted, float* values) {
  const std::vector<StoredPiece>& pieces = tensor.of(array);
  if (pieces.empty()) {
    std::fill_n(values, wanted.size(), 0.0f);
    return {};
  }
  auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const StoredPiece& other) {
    return other.first + other.count <= wanted.first;
  });
  for (; piece != pieces.end() && piece->first < wanted.last; ++piece) {
    SAILOR_CHECK(state_->read_piece(tensor, array, *piece));
    const std::int64_t first = std::max(piece->first, wanted.first);
    const std::int64_t last = std::min(piece->first + piece->count, wanted.last);
    std::copy_n(state_->data.data() + (first - piece->first), last - first, values + (first - wanted.first));
  }
  return {};
}

Result<void> CheckpointReader::verify() {
  struct Place {
    const StoredTensor* tensor;
    StoredArray array;
    const StoredPiece* piece;
  };
  const Manifest& manifest = state_->manifest;
  std::vector<Place> places;
  for (const StoredTensor& tensor : manifest.tensors)
    for (const StoredArray array : stored_arrays)
      for (const StoredPiece& piece : tensor.of(array)) places.push_back({&tensor, array, &piece});
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.piece->file, a.piece->offset) < std::tie(b.piece->file, b.piece->offset);
  });
  std::vector<std::int64_t> ends(manifest.files.size(), 0);  // end of the pieces seen so far, by file
  for (const Place& place : places) {
    std::int64_t& end = ends[place.piece->file];
    if (place.piece->offset != end) break;  // reported below
    end += place.piece->bytes();
    SAILOR_CHECK(state_->read_piece(*place.tensor, place.array, *place.piece));
    if (const auto bad =
            std::find_if(state_->data.begin(), state_->data.end(), [](float v) { return !std::isfinite(v); });
        bad != state_->data.end())
      return state_->refuse({ErrorCode::invalid_input,
                             fmt::format("'{}': {} of layer {}, {}, element {} is {}: the training had diverged",
                                         state_->folder.string(), to_string(place.array), place.tensor->layer,
                                         place.tensor->name, place.piece->first + (bad - state_->data.begin()), *bad),
                             {}});
  }
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    if (manifest.files[i].checksum) {
      SAILOR_CHECK(state_->verify_text_file(i));
    } else if (ends[i] != manifest.files[i].bytes) {
      return state_->refuse({ErrorCode::invalid_input,
                             fmt::format("'{}' is damaged: '{}' has bytes from {} on that belong to no tensor, or to "
                                         "two",
                                         (state_->folder / manifest_name).string(), manifest.files[i].name, ends[i]),
                             {}});
    }
  }
  return {};
}

Result<LoadedCheckpoint> load(const fs::path& checkpoint, const Model& model, Device& device, ParameterStorage& storage,
                              AdamW& optimizer) {
  auto reader = CheckpointReader::open(checkpoint);
  if (!reader) return fail(reader.error());
  SAILOR_CHECK(reader->check_model(model));
  const Manifest& manifest = reader->manifest();
  std::vector<float> buffer;
  StateTarget target(device, storage, optimizer);
  for (const WantedPiece& wanted : target.pieces()) {
    const Parameter& parameter = *storage.parameters()[wanted.parameter];
    const StoredTensor* tensor = manifest.find(parameter.layer, parameter.name);
    const std::string where =
        fmt::format("'{}': layer {}, {}", (checkpoint / manifest_name).string(), parameter.layer, parameter.name);
    if (tensor == nullptr) return fail(ErrorCode::invalid_input, where + " is missing", "use another checkpoint");
    if (const Shape shape = whole_shape(parameter); shape != tensor->shape)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{} has shape ({}) instead of ({})", where, join(tensor->shape, ", "), join(shape, ", ")),
                  "use another checkpoint");
    const Piece& piece = wanted.piece;
    buffer.resize(static_cast<std::size_t>(piece.count));
    SAILOR_CHECK(reader->read(*tensor, wanted.array, {piece.whole, piece.whole + piece.count}, buffer.data()));
    device.write(target.memory(wanted), buffer.data(), buffer.size() * sizeof(float));
  }
  target.finish();
  device.synchronize();
  return LoadedCheckpoint{.iteration = manifest.iteration, .training = manifest.training};
}

}  // namespace sailor::runtime
