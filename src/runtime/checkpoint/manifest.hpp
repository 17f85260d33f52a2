// manifest.json: what a checkpoint contains and where, in coordinates of whole parameters, so that any plan can read a
// checkpoint of any other. It is written last, and ends with its own checksum: a folder with a valid manifest is a
// checkpoint.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "model/model.hpp"
#include "runtime/loss_scale.hpp"
#include "runtime/state_pieces.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

inline constexpr int checkpoint_schema_version = 1;
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* plan_name = "plan.toml";

/// Properties that can affect the mathematics of a model, by name: "hidden": "128".
using Architecture = std::map<std::string, std::string>;
Architecture architecture_of(const Model& model);
/// "hidden is 128 in the checkpoint and 256 in the model", for the first few differences; "" when there are none.
std::string difference(const Architecture& in_checkpoint, const Architecture& in_model);

/// The training that wrote a checkpoint.
struct TrainingFacts {
  std::uint64_t seed = 0;
  std::int64_t sequence_length = 0;
  std::int64_t global_batch = 0;
  std::string data;                             ///< prefix of the token file
  std::map<std::string, std::string> settings;  ///< learning rate and so on, as the trainer names and writes them
  std::optional<LossScale> loss_scale{};        ///< of a training that runs, or began, in fp16
};

/// Elements [first, first + count) of a whole parameter, as float32, little-endian.
struct StoredPiece {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::size_t file = 0;  ///< index in Manifest::files
  std::int64_t offset = 0;
  std::uint64_t checksum = 0;
  [[nodiscard]] std::int64_t bytes() const { return count * static_cast<std::int64_t>(sizeof(float)); }
};

struct StoredTensor {
  int layer = 0;
  std::string name;
  Shape shape;  ///< of the whole tensor
  /// Pieces by StoredArray; ascending, together the whole tensor. No pieces: zeros (the moments of an imported model).
  std::array<std::vector<StoredPiece>, 3> pieces;
  [[nodiscard]] std::int64_t elements() const { return element_count(shape); }
  [[nodiscard]] const std::vector<StoredPiece>& of(StoredArray array) const {
    return pieces[static_cast<std::size_t>(array)];
  }
  [[nodiscard]] std::vector<StoredPiece>& of(StoredArray array) { return pieces[static_cast<std::size_t>(array)]; }
};

struct StoredFile {
  std::string name;  ///< in the checkpoint's folder
  std::int64_t bytes = 0;
  std::optional<std::uint64_t> checksum{};  ///< of the whole file; null if its pieces have checksums
};

struct Manifest {
  std::int64_t sequence = 0;   ///< increases with every checkpoint of a folder: the newest has the largest
  std::int64_t iteration = 0;  ///< to run next
  std::string model;
  Architecture architecture;
  std::optional<TrainingFacts> training;  ///< std::nullopt: imported
  std::string source;                     ///< "trained on gpu07", "imported from ..."
  std::optional<double> write_time_s;     ///< of the rank that took longest to store its file; std::nullopt: unknown
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  ///< by layer and name

  [[nodiscard]] const StoredTensor* find(int layer, std::string_view name) const;
  [[nodiscard]] std::int64_t bytes() const;  ///< of all files
};

/// Sorts tensors and pieces. Errors (invalid_input): elements in no piece or in several, pieces outside their file, and
/// everything else that parse_manifest refuses.
Result<void> complete_manifest(Manifest& manifest);

/// The file's text. The manifest must be complete.
std::string manifest_text(const Manifest& manifest);
/// Errors (invalid_input): not a manifest, of a newer schema, damaged. `source_name` stands for the file in messages.
Result<Manifest> parse_manifest(std::string_view text, std::string_view source_name);

/// `body`, a JSON object, with its checksum as the last key.
std::string seal_manifest(std::string body);

}  // namespace sailor::runtime
