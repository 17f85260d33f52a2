// Continues a training after the ranks have changed: under a new plan, in the same processes, from the state that they
// still have.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "runtime/state_copies.hpp"
#include "runtime/training_state.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

/// Result of recover().
struct Recovery {
  std::unique_ptr<TrainingState> state;  ///< of this rank, under the new plan; null on a rank that the plan leaves out
  /// Some element of the state is held by no rank: `state` is as newly constructed and must be loaded from a
  /// checkpoint, on all ranks.
  bool needs_checkpoint = false;
  std::int64_t sent_bytes = 0;  ///< by this rank to others
};

/// Collective over a world whose ranks have dropped everything made with the previous world. `mine` is this process's
/// state of the training; null if it has none (it has just joined). `choose` is called on rank 0 with the plan that the
/// ranks were training (null: none) and returns the plan to continue with: for as many ranks as there are, or for the
/// first of them. Ranks beyond the plan are spare: they send what they have to the others, get no state, and must drop
/// `mine`, too, since the training continues without it.
///
/// Training continues from the newest version of the state that the ranks together hold completely. After a failure
/// ranks differ by at most one update, since no rank begins it before all have contributed to the all-reduces; ranks
/// that have the newest iteration's gradients, but did not receive its totals, make up for its update. Without copies,
/// elements that only a lost rank updated are gone. With `copies` (state_copies.hpp; null on all ranks: none) they come
/// from that rank's keeper: in the newest version, or in the previous one, to which all ranks then go back. Each rank
/// takes what it needs from its own memory if it can, otherwise from one of the ranks that have it; the first copies
/// under the new plan are made as well. The last_totals() of the new state are those of the update before it, if any
/// rank knows them: possibly run() has returned from that update on none of the remaining ranks.
///
/// Errors (the same on all ranks): those of `choose`, a plan that cannot be trained by these ranks. Throws
/// TransportError if a rank is lost meanwhile; `mine` and `copies` are still complete then, and this may be called
/// again.
Result<Recovery> recover(TrainingState* mine, const Model& model, const TrainerSettings& settings, Device& device,
                         const World& world, const std::function<Result<Plan>(const Plan* before)>& choose,
                         StateCopies* copies = nullptr);

}  // namespace sailor::runtime
