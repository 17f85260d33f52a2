// State that ranks keep in memory for the case that others are lost: of themselves, and of peers (copy_layout.hpp says
// who keeps what). One StateCopies per process, through all of its epochs; one CopyExchange beside each Trainer.
//
// Iteration k leads from version k of the state to version k + 1. While its passes run, each rank saves its version k
// and sends the copied parts of it to its keeper, on streams and channels of their own. Before a rank gives its part of
// the iteration's totals, all of that is done on its main stream: so the update never changes memory that is still
// read, and the passes wait for nothing.
//
// Why there is always a version that all have, whoever is lost, as long as no element's holders are all lost:
// - No rank makes the update to k + 1 before all ranks have given their part of the totals of iteration k, hence have
//   version k saved and received whole. Ranks differ by one update at most. Let m be the newest version of a survivor.
// - Version m - 1 is whole, then: iteration m - 1 saved and copied it everywhere, and until some rank knows the totals
//   of iteration m no buffer of it is written again, since versions take turns in two buffers. So survivors take their
//   own m - 1 from what they saved (or still have it), and that of the lost ranks from the copies.
// - Version m is whole where all that the lost ranks alone stepped had come to the keepers: then, and where replicas on
//   other hosts have it, nothing is done again. Survivors that have not heard of the totals make up for the update;
//   version m - 1 stays saved meanwhile.
// - During a recovery all of that stays as it is. The new states, and the first copies of them, are made beside it;
// only
//   when all ranks have all of theirs the old ones go. A rank that hears of another failure instead of the end of that
//   barrier keeps both, since others may have got past it, and have nothing but the new ones.
// - After a recovery the new version c is in every new state and already copied. Iteration c writes the other buffer.
// - At the start of a training, or behind a checkpoint, there are no copies before the first update: a loss then leads
//   back to where the training came from, and costs no iteration.
// - A buffer is complete when its mark has come, which is sent last; so one in which a transfer was broken off is never
//   taken for a version. Versions are told apart by the epoch of their update, too (StateVersion): an iteration that is
//   done again has other bits in its last places, which are not mixed with those of the first time.
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

/// What is kept for one plan.
struct KeptGeneration {
  /// As rank `rank` of the plan; -1, beyond its ranks: nothing. Memory is taken when something comes.
  KeptGeneration(Device& device, const Plan& plan, const Model& model, const std::vector<std::string>& hosts, int rank,
                 std::uint64_t epoch);
  std::string plan;                ///< plan.toml's text
  std::vector<std::string> hosts;  ///< of its ranks
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
  /// The last one that began; null: none.
  [[nodiscard]] KeptGeneration* current() { return generations_.empty() ? nullptr : generations_.back().get(); }

  // ---- For recover() and CopyExchange
  /// Besides what was kept before.
  void begin(std::unique_ptr<KeptGeneration> generation, std::unique_ptr<TrainingState> state);
  /// All ranks have begun: what was kept before goes. Returns the state that began last.
  std::unique_ptr<TrainingState> confirm();
  [[nodiscard]] const std::vector<std::unique_ptr<KeptGeneration>>& generations() const { return generations_; }
  /// That began and were not confirmed.
  [[nodiscard]] const std::vector<std::unique_ptr<TrainingState>>& states() const { return states_; }

 private:
  Device& device_;
  std::vector<std::unique_ptr<KeptGeneration>> generations_;
  std::vector<std::unique_ptr<TrainingState>> states_;
};

class CopyExchange {
 public:
  /// Collective: of all ranks of the state's plan; before the Trainer that it is given to is made. All must outlive it.
  /// Where nothing is copied it makes no channel, and takes no memory.
  CopyExchange(TrainingState& state, StateCopies& copies, const World& world);
  ~CopyExchange();
  CopyExchange(const CopyExchange&) = delete;
  CopyExchange& operator=(const CopyExchange&) = delete;

  /// Before the passes of an iteration: the state's version is saved and sent from here on.
  void begin();
  /// The main stream waits until that is done, and what comes from others is here: before the iteration's totals.
  void finish();
  [[nodiscard]] CopyCost cost() const;

 private:
  enum class Direction { save, send, receive };
  /// One rank's state on its way to where it is kept.
  struct Way {
    Direction direction;
    KeptState* kept;                          // null: with the keeper
    const std::vector<KeptState::Run>* runs;  // of the owner
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Channel> channel;  // null: of one's own state
    std::unique_ptr<Event> done;
    Tensor staging;  // of what is received, where transfers need device memory
  };
  void add(Direction direction, int peer, KeptState* kept, const std::vector<KeptState::Run>& runs);
  void receive(Way& way, float* host, std::int64_t count);
  /// Of this rank's live state.
  [[nodiscard]] const float* memory_of(StoredArray array, const KeptState::Run& run);

  TrainingState& state_;
  Device& device_;
  World world_;
  KeptGeneration* kept_;
  std::unique_ptr<KeptState> sent_;  // describes what goes to the keeper; has no memory
  std::vector<Way> ways_;
  std::unique_ptr<Event> ready_;
  Tensor mark_;  // of the version under way
  std::int64_t* host_mark_ = nullptr;
};

}  // namespace sailor::runtime
