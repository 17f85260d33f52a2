// Keeps the checkpoints of `sailor-train --checkpoints` and resumes from them. All ranks hold one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/train_options.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/owner.hpp"
#include "runtime/control.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

/// --checkpoints, --checkpoint-every, --keep-checkpoints, --start-from.
std::vector<Option> checkpoint_options(TrainOptions& options);

/// Whether two prefixes of --data name the same files, as far as can be determined: `then` may be relative to another
/// folder.
bool is_same_data(const std::string& then, const std::string& now);

class Checkpoints {
 public:
  Checkpoints(const TrainOptions& options, const Environment& environment, runtime::Control& world,
              runtime::Trainer& trainer);

  [[nodiscard]] bool are_kept() const { return !folder_.empty(); }

  /// Collective: claims --checkpoints for this training, and reads the newest checkpoint in it, else that of
  /// --start-from, else nothing. Errors are agreed on.
  Result<void> resume();
  /// Collective: only claims the folder for this training; the state exists already. Errors are agreed on.
  Result<void> keep();
  /// Must be called before either: this training is start number `start` of `job`, whose earlier starts are over and no
  /// longer own the folder.
  void claim_as(std::string job, std::int64_t start);
  /// Abandons the checkpoint under way: other ranks have gone.
  void abandon();
  /// Collective, after each iteration: begins a checkpoint when one is due, and advances the one under way. A failed
  /// checkpoint is reported and training goes on, unless an error is returned, which is agreed on: another training has
  /// taken over the folder, or values are not finite.
  Result<void> after(std::int64_t iteration);
  /// Whether another training has taken over the folder, as far as this rank knows: the ranks should end together.
  [[nodiscard]] bool are_taken_over() const { return owner_ != nullptr && owner_->is_lost(); }
  /// Collective: waits for the checkpoint that is under way.
  void complete();
  /// Collective, after the last iteration: success means that a checkpoint of it exists. Errors are agreed on.
  Result<void> finish(std::int64_t next_iteration);

 private:
  Result<void> claim();
  Result<std::string> find();
  Result<void> load(const std::string& path);
  void begin(std::int64_t next_iteration);
  void report(const std::optional<runtime::CheckpointOutcome>& outcome);
  void warn_of_changes(const std::optional<runtime::TrainingFacts>& before, const std::string& path) const;

  runtime::TrainingState& state_;
  runtime::Control& world_;
  runtime::Trainer& trainer_;
  std::string start_from_;
  std::string folder_;
  std::int64_t every_;
  int keep_;
  runtime::OwnerFacts claimant_;
  runtime::CheckpointFacts facts_;
  std::unique_ptr<runtime::FolderOwner> owner_;  // on rank 0
  std::unique_ptr<runtime::CheckpointWriter> writer_;
  std::int64_t newest_ = -1;  // next iteration to run of the newest written checkpoint
  Result<void> last_outcome_{};
  std::optional<Error> must_end_{};  // why training must not go on; the same on all ranks
};

}  // namespace sailor::apps
