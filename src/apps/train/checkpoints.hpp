// What `sailor-train --checkpoints` keeps and goes on from. All ranks hold one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/owner.hpp"
#include "runtime/control.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

/// --checkpoints, --checkpoint-every, --keep-checkpoints, --start-from.
std::vector<Option> checkpoint_options();

/// Whether two prefixes of --data name the same files, as far as one can tell: `then` may be relative to another
/// folder.
bool is_same_data(const std::string& then, const std::string& now);

class Checkpoints {
 public:
  Checkpoints(const Options& options, const Environment& environment, runtime::Control& world,
              runtime::Trainer& trainer);

  [[nodiscard]] bool are_kept() const { return !folder_.empty(); }

  /// Collective: makes --checkpoints this training's own, and reads the newest checkpoint in it, else that of
  /// --start-from, else nothing. Errors are agreed on.
  Result<void> resume();
  /// Collective: only makes the folder this training's own; the state is there already. Errors are agreed on.
  Result<void> keep();
  /// Before either: this training is `start`-th of `job`, whose earlier starts are over: they own the folder no more.
  void claim_as(std::string job, std::int64_t start);
  /// Gives up a checkpoint that is under way: other ranks have gone.
  void abandon();
  /// Collective, after each iteration: begins a checkpoint when one is due, moves on the one under way. A checkpoint
  /// that fails is reported, and training goes on, unless an error is returned, which is agreed on: another training
  /// has taken the folder over, or values are not finite.
  Result<void> after(std::int64_t iteration);
  /// Whether another training has taken the folder over, as far as this rank knows: the ranks should end together.
  [[nodiscard]] bool are_taken_over() const { return owner_ != nullptr && owner_->is_lost(); }
  /// Collective: waits for the checkpoint that is under way.
  void complete();
  /// Collective, after the last iteration: there is a checkpoint of it when this succeeds. Errors are agreed on.
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
  std::int64_t newest_ = -1;  // iteration to run next, of the newest checkpoint that is written
  Result<void> last_outcome_{};
  std::optional<Error> must_end_{};  // why training must not go on; the same on all ranks
};

}  // namespace sailor::apps
