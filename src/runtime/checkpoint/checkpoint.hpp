// Checkpoints: weights and optimizer state of a training, from which any plan can resume bit for bit.
//
// Values are float32 in any precision of the training. For bfloat16 they are the master values, so that the training
// resumes bit for bit, and can also resume in another precision.
//
//   FOLDER/iteration-00000100/rank-00003.bin   values and moments that rank 3 wrote
//                             plan.toml        the plan that was running
//                             manifest.json    what is where, with checksums; written last (manifest.hpp)
//
// A folder without a manifest is not a checkpoint but the remainder of an interrupted one. It is removed when its
// training, or a training that has taken over from it, writes again. Killing ranks, or a power failure, at any moment
// leaves the earlier checkpoints untouched. If the folder of an iteration exists already, the name of the new
// checkpoint's folder ends with ".2", ".3" and so on.
//
// Before a manifest is written, every rank has read its file again and compared it with what it wrote. Only then are
// older checkpoints removed, and only while FOLDER/owner.json says that the folder belongs to this training
// (owner.hpp).
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

/// Facts about the training that a checkpoint stores besides the tensors. Only those of rank 0 are used.
struct CheckpointFacts {
  Model model;
  TrainingFacts training;
  std::string plan;  ///< plan.toml's text
};

/// Outcome of one checkpoint: the same on all ranks.
struct CheckpointOutcome {
  std::int64_t iteration = 0;
  std::filesystem::path folder;
  Bytes bytes{};            ///< total of all ranks
  Result<void> written;     ///< an error says who could not write what, and why; older checkpoints are untouched
  std::string warning{};    ///< written, but an old checkpoint could not be removed; empty if all is well
  bool not_finite = false;  ///< not written because values are not finite: the training has diverged
  bool taken_over = false;  ///< another training owns the folder now (owner.hpp): this one must stop
};

/// Writes the checkpoints of a training; one per rank. The calling thread only copies; a background thread writes.
class CheckpointWriter {
 public:
  /// The newest `keep` checkpoints stay in `folder`, which is created if missing; 0: all. `owner`, on rank 0, must
  /// outlive the writer; null: nobody else writes to the folder.
  CheckpointWriter(Device& device, std::filesystem::path folder, int keep, FolderOwner* owner = nullptr);
  /// Completes the work under way on this rank only: it becomes a checkpoint only if finish() was called before.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective. Copies the values and moments of the elements `written` of the storage (ascending, not overlapping,
  /// padding allowed; the optimizer must have their moments) to host memory, and returns; the rest happens in the
  /// background. The ranges of all ranks must cover each element of the model exactly once, else the checkpoint fails.
  /// `iteration` is the next one to run. Waits for a checkpoint that is still under way, and returns its outcome.
  /// Errors of the new checkpoint are in its own outcome.
  std::optional<CheckpointOutcome> begin(Control& world, std::int64_t iteration, ParameterStorage& storage,
                                         AdamW& optimizer, const std::vector<Range>& written,
                                         const CheckpointFacts& facts);
  /// Collective, to be called regularly (once per iteration): advances the checkpoint that is under way. Costs nothing
  /// without one, and one all-reduce with one. Returns each checkpoint's outcome once.
  std::optional<CheckpointOutcome> progress(Control& world);
  /// Collective: waits for the checkpoint that is under way. std::nullopt if there is none.
  std::optional<CheckpointOutcome> finish(Control& world);
  /// Drops the checkpoint under way, after waiting for this rank's part of it: for use when the ranks can no longer
  /// communicate. After one of the calls above has thrown (TransportError), this must be called next.
  void abandon() noexcept;

  [[nodiscard]] bool is_under_way() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A folder that contains, or should contain, a checkpoint.
struct CheckpointEntry {
  std::filesystem::path path;
  std::int64_t iteration = 0;  ///< to run next
  std::int64_t sequence = 0;   ///< the order of writing
  std::string model;
  std::string source;
  Bytes bytes{};
  std::string problem{};  ///< why it is not a valid checkpoint; empty if manifest and file sizes are right
  bool has_manifest = false;
  [[nodiscard]] bool is_valid() const { return problem.empty(); }
  /// Whether it was complete once. An entry neither valid nor damaged is the remainder of an interrupted checkpoint.
  [[nodiscard]] bool is_damaged() const { return has_manifest && !is_valid(); }
};

/// All checkpoints of a folder, newest first, then the entries that are not valid. Empty if the folder does not exist.
Result<std::vector<CheckpointEntry>> list_checkpoints(const std::filesystem::path& folder);
/// The newest valid entry of those from list_checkpoints(); nullptr if there is none.
const CheckpointEntry* newest_valid(const std::vector<CheckpointEntry>& entries);
/// Warns of every damaged checkpoint: a reader skips it, and the iteration that it had reached is unknown.
void warn_of_damaged(const std::vector<CheckpointEntry>& entries);
/// The newest valid checkpoint; std::nullopt if there is none. On a shared file system one rank should look, and tell
/// the others.
Result<std::optional<CheckpointEntry>> find_latest(const std::filesystem::path& folder);
/// `path` itself if it is a checkpoint (it has a manifest), else the newest valid checkpoint in it, with a warning for
/// every damaged one. Errors: not_found.
Result<std::filesystem::path> resolve_checkpoint(const std::filesystem::path& path);

/// Facts that load() has read from a checkpoint.
struct LoadedCheckpoint {
  std::int64_t iteration = 0;  ///< to run next
  std::optional<TrainingFacts> training;
};

/// Reads this rank's part of `checkpoint`: the values of all its parameters, and the moments of the optimizer's parts.
/// Everything that is read is verified against its checksum. Not collective. After an error the storage holds some of
/// it. Errors: not_found, io, invalid_input (damaged, of a newer Sailor, of another model), each with the file and, if
/// there is one, the next older checkpoint.
Result<LoadedCheckpoint> load(const std::filesystem::path& checkpoint, const Model& model, Device& device,
                              ParameterStorage& storage, AdamW& optimizer);

/// Reads tensors of a checkpoint, whole or in part.
class CheckpointReader {
 public:
  /// Checks the manifest and the sizes of the files. Errors: those of load().
  static Result<CheckpointReader> open(const std::filesystem::path& checkpoint);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&& other) noexcept;
  CheckpointReader& operator=(CheckpointReader&& other) noexcept;

  [[nodiscard]] const Manifest& manifest() const;
  /// Errors (invalid_input): the checkpoint is of another model.
  [[nodiscard]] Result<void> check_model(const Model& model) const;
  /// Reads elements [wanted.first, wanted.last) of an array of a tensor. Pieces are read whole, and verified.
  Result<void> read(const StoredTensor& tensor, StoredArray array, const Range& wanted, float* values);
  /// Reads and verifies every byte of every file.
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
/// Writes imported values as a checkpoint of iteration 0 with zero moments. `folder` must not exist yet; its parent is
/// created if missing. `values` is called for each tensor in turn.
Result<void> write_imported_checkpoint(const std::filesystem::path& folder, const Model& model,
                                       const std::string& source, const std::vector<WholeTensor>& tensors,
                                       const std::function<Result<std::vector<float>>(const WholeTensor&)>& values);

}  // namespace sailor::runtime
