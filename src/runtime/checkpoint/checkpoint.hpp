// Checkpoints: weights and optimizer state of a training, from which any plan can go on bit by bit.
//
// Values are float32 whatever the training computes with: of a bfloat16 one the master values, so that it goes on bit
// by bit, and under another precision too.
//
//   FOLDER/iteration-00000100/rank-00003.bin   values and moments that rank 3 wrote
//                             plan.toml        the plan that was running
//                             manifest.json    what is where, with checksums; written last (manifest.hpp)
//
// A folder without a manifest is no checkpoint but the rest of an interrupted one, and goes when its training, or one
// that has taken over from it, writes again. Killing ranks, or the power, at any moment leaves the checkpoints before
// untouched. Where an iteration's folder is taken, the new checkpoint's has ".2", ".3" and so on at the end.
//
// Before a manifest is written every rank has read its file again and found what it wrote. Only then older checkpoints
// go, and only while FOLDER/owner.json says that the folder is this training's (owner.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/control.hpp"
#include "runtime/device.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/parameters.hpp"
#include "runtime/sharding.hpp"

namespace sailor::runtime {

class FolderOwner;

/// What a checkpoint says about the training besides its tensors. Only rank 0's counts.
struct CheckpointFacts {
  Model model;
  TrainingFacts training;
  std::string plan;  ///< plan.toml's text
};

/// How one checkpoint ended: the same on all ranks.
struct CheckpointOutcome {
  std::int64_t iteration = 0;
  std::filesystem::path folder;
  Bytes bytes{};            ///< of all ranks
  Result<void> written;     ///< an error says who could not write what, and why; older checkpoints are as they were
  std::string warning{};    ///< written, but an old checkpoint could not be removed; empty when all is well
  bool not_finite = false;  ///< not written, since values are not finite: the training has diverged
  bool taken_over = false;  ///< another training has the folder now (owner.hpp): this one must not go on
};

/// Writes the checkpoints of a training; one per rank. The ranks' threads only copy: a thread of its own writes.
class CheckpointWriter {
 public:
  /// `keep` newest checkpoints stay in `folder`, which is made where it is missing; 0: all. `owner`, on rank 0, must
  /// outlive the writer; null: nobody else writes to the folder.
  CheckpointWriter(Device& device, std::filesystem::path folder, int keep, FolderOwner* owner = nullptr);
  /// What is under way is completed on this rank, without the others: a checkpoint only if finish() came before.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective. Copies the values and moments of elements `written` of the storage (ascending, not overlapping,
  /// padding allowed; the optimizer has moments of them) to the host's memory, and returns; the rest happens in the
  /// background. The ranges of all ranks have each element of the model exactly once: else the checkpoint fails.
  /// `iteration` is the one to run next. Waits for a checkpoint that is still under way, and returns its outcome.
  /// Whatever goes wrong with the new one is in its own outcome.
  std::optional<CheckpointOutcome> begin(Control& world, std::int64_t iteration, ParameterStorage& storage,
                                         AdamW& optimizer, const std::vector<Range>& written,
                                         const CheckpointFacts& facts);
  /// Collective, to be called now and then (once per iteration): moves on the checkpoint that is under way. Costs
  /// nothing without one, and one sum over the ranks with one. Returns each checkpoint's outcome once.
  std::optional<CheckpointOutcome> progress(Control& world);
  /// Collective: waits for the checkpoint that is under way. Nothing when there is none.
  std::optional<CheckpointOutcome> finish(Control& world);
  /// Forgets what is under way, after waiting for this rank's part of it: for when the ranks cannot talk any more. When
  /// one of the calls above has thrown (TransportError), this must come next.
  void abandon() noexcept;

  [[nodiscard]] bool is_under_way() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A folder that has, or should have, a checkpoint.
struct CheckpointEntry {
  std::filesystem::path path;
  std::int64_t iteration = 0;  ///< to run next
  std::int64_t sequence = 0;   ///< the order of writing
  std::string model;
  std::string source;
  Bytes bytes{};
  std::string problem{};  ///< why it is none; empty: manifest and files' sizes are right
  bool has_manifest = false;
  [[nodiscard]] bool is_valid() const { return problem.empty(); }
  /// It was complete once. What is neither valid nor damaged is the rest of an interrupted one.
  [[nodiscard]] bool is_damaged() const { return has_manifest && !is_valid(); }
};

/// All checkpoints of a folder, the newest first, then what is none. Empty where the folder does not exist.
Result<std::vector<CheckpointEntry>> list_checkpoints(const std::filesystem::path& folder);
/// The newest valid one of what list_checkpoints() gives; null: there is none.
const CheckpointEntry* newest_valid(const std::vector<CheckpointEntry>& entries);
/// Warns of every damaged one: a reader goes on without it, and nobody knows how far it had got.
void warn_of_damaged(const std::vector<CheckpointEntry>& entries);
/// The newest valid checkpoint; nothing where there is none. On a shared file system one rank should look, and tell
/// the others.
Result<std::optional<CheckpointEntry>> find_latest(const std::filesystem::path& folder);
/// `path` itself when it is a checkpoint (it has a manifest), else the newest valid one in it, with a warning of every
/// damaged one. Errors: not_found.
Result<std::filesystem::path> resolve_checkpoint(const std::filesystem::path& path);

/// What was read.
struct LoadedCheckpoint {
  std::int64_t iteration = 0;  ///< to run next
  std::optional<TrainingFacts> training;
};

/// Reads what this rank needs of `checkpoint`: the values of all its parameters, and the moments of the optimizer's
/// parts. Everything that is read is checked against its checksum. Not collective. After an error the storage holds
/// some of it. Errors: not_found, io, invalid_input (damaged, of a newer Sailor, of another model), each with the file
/// and, where there is one, the next older checkpoint.
Result<LoadedCheckpoint> load(const std::filesystem::path& checkpoint, const Model& model, Device& device,
                              ParameterStorage& storage, AdamW& optimizer);

/// Reads a checkpoint wherever tensors are wanted whole or in part.
class CheckpointReader {
 public:
  /// Checks the manifest and the sizes of the files. Errors as load().
  static Result<CheckpointReader> open(const std::filesystem::path& checkpoint);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&& other) noexcept;
  CheckpointReader& operator=(CheckpointReader&& other) noexcept;

  [[nodiscard]] const Manifest& manifest() const;
  /// Errors (invalid_input): it is not the model's.
  [[nodiscard]] Result<void> check_model(const Model& model) const;
  /// Elements [wanted.first, wanted.last) of an array of a tensor. Pieces are read whole, and checked.
  Result<void> read(const StoredTensor& tensor, StoredArray array, const Range& wanted, float* values);
  /// Reads and checks every byte of every file.
  Result<void> verify();

 private:
  struct State;
  explicit CheckpointReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// One tensor of a checkpoint that is written by one process.
struct WholeTensor {
  int layer = 0;
  std::string name;
  Shape shape;
};
/// Writes values from elsewhere as a checkpoint of iteration 0 with moments of zero; `folder` must not be there yet,
/// its parent is made where it is missing. `values` is called for each tensor in turn.
Result<void> write_imported_checkpoint(const std::filesystem::path& folder, const Model& model,
                                       const std::string& source, const std::vector<WholeTensor>& tensors,
                                       const std::function<Result<std::vector<float>>(const WholeTensor&)>& values);

}  // namespace sailor::runtime
