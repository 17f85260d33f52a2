// Copies of the training state in host memory, for the case that ranks are lost: of a rank itself, and of its peers
// (copy_layout.hpp: which rank keeps what). There is one StateCopies per process, through all of its epochs, and one
// CopyExchange for each Trainer.
//
// Iteration k leads from version k of the state to version k + 1. While its passes run, each rank saves its version k
// and sends the copied parts of it to its keeper, on streams and channels of their own. Before a rank contributes to
// the iteration's totals, its main stream waits for all of that: so the update never changes memory that is still being
// read, and the passes wait for nothing.
//
// Why there is always a version that all ranks have, whichever are lost, unless all holders of some element are lost:
// - No rank makes the update to k + 1 before all ranks have contributed to the totals of iteration k, and hence have
//   completely saved and received version k. Ranks differ by at most one update. Let m be the newest version of a
//   survivor.
// - Version m - 1 is complete then: iteration m - 1 saved and copied it everywhere, and none of its buffers is written
//   again until some rank knows the totals of iteration m, since versions alternate between two buffers. So survivors
//   take their own m - 1 from what they saved (or still have it), and that of the lost ranks from the copies.
// - Version m is complete if everything that only the lost ranks updated had reached the keepers: then, and where
//   replicas on other hosts have it, no iteration is repeated. Survivors that have not received the totals make up for
//   the update; version m - 1 stays saved meanwhile.
// - During a recovery all of that stays as it is. The new states, and their first copies, are made beside it; the old
//   ones are dropped only when all ranks have all of theirs. A rank that learns of another failure instead of the end
//   of that barrier keeps both, since other ranks may have passed it and have nothing but the new ones.
// - After a recovery the new version c is in every new state and already copied. Iteration c writes the other buffer.
// - At the start of a training, or after a checkpoint was loaded, there are no copies before the first update: a loss
//   then leads back to where the training came from, and costs no iteration.
// - A buffer is complete when its mark has arrived, which is sent last; so a buffer whose transfer was broken off is
//   never taken for a version. Versions also differ by the epoch of their update (StateVersion): an iteration that is
//   run again gives other bits in the last places, which are not mixed with those of the first time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "runtime/copy_layout.hpp"
#include "runtime/device.hpp"
#include "runtime/kept_state.hpp"
#include "runtime/tensor.hpp"
#include "runtime/training_state.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

/// State that this process keeps for one plan.
struct KeptGeneration {
  /// For rank `rank` of the plan; -1 for a rank beyond the plan, which keeps nothing. Memory is allocated when a
  /// version arrives.
  KeptGeneration(Device& device, const Plan& plan, const Model& model, const std::vector<std::string>& hosts, int rank,
                 std::uint64_t epoch);
  std::string plan;                ///< plan.toml's text
  std::vector<std::string> hosts;  ///< of the plan's ranks
  int rank = 0;
  std::uint64_t epoch = 0;
  CopyLayout layout;
  std::unique_ptr<KeptState> own;  ///< null: nothing is copied
  std::vector<std::unique_ptr<KeptState>> of_others;
};

class StateCopies {
 public:
  /// The device must outlive it.
  explicit StateCopies(Device& device);
  [[nodiscard]] Device& device() { return device_; }
  /// The generation that began last; null if there is none.
  [[nodiscard]] KeptGeneration* current() { return generations_.empty() ? nullptr : generations_.back().get(); }

  // ---- For recover() and CopyExchange
  /// Adds to what was kept before.
  void begin(std::unique_ptr<KeptGeneration> generation, std::unique_ptr<TrainingState> state);
  /// To be called when all ranks have begun: drops what was kept before. Returns the state that began last.
  std::unique_ptr<TrainingState> confirm();
  [[nodiscard]] const std::vector<std::unique_ptr<KeptGeneration>>& generations() const { return generations_; }
  /// States that began and are not confirmed yet.
  [[nodiscard]] const std::vector<std::unique_ptr<TrainingState>>& states() const { return states_; }

 private:
  Device& device_;
  std::vector<std::unique_ptr<KeptGeneration>> generations_;
  std::vector<std::unique_ptr<TrainingState>> states_;
};

class CopyExchange {
 public:
  /// Collective over all ranks of the state's plan, before the Trainer that it is given to is made. All arguments must
  /// outlive it. If nothing is copied, it makes no channel and allocates no memory.
  CopyExchange(TrainingState& state, StateCopies& copies, const World& world);
  ~CopyExchange();
  CopyExchange(const CopyExchange&) = delete;
  CopyExchange& operator=(const CopyExchange&) = delete;

  /// To be called before the passes of an iteration: begins to save and send the state's version.
  void begin();
  /// To be called before the iteration's totals: the main stream waits until that is done and the copies from other
  /// ranks have arrived.
  void finish();
  [[nodiscard]] CopyCost cost() const;

 private:
  enum class Direction { save, send, receive };
  /// Transfer of one rank's state to where it is kept.
  struct Way {
    Direction direction;
    KeptState* kept;                          // null: the keeper has it
    const std::vector<KeptState::Run>* runs;  // of the owner
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Channel> channel;  // null: for the rank's own state
    std::unique_ptr<Event> done;
    Tensor staging;  // for received data, where transfers need device memory
  };
  void add(Direction direction, int peer, KeptState* kept, const std::vector<KeptState::Run>& runs);
  void receive(Way& way, float* host, std::int64_t count);
  /// Memory of a run in this rank's live state.
  [[nodiscard]] const float* memory_of(StoredArray array, const KeptState::Run& run);

  TrainingState& state_;
  Device& device_;
  World world_;
  KeptGeneration* kept_;
  std::unique_ptr<KeptState> sent_;  // describes what is sent to the keeper; has no memory
  std::vector<Way> ways_;
  std::unique_ptr<Event> ready_;
  Tensor mark_;  // of the version being copied
  std::int64_t* host_mark_ = nullptr;
};

}  // namespace sailor::runtime
