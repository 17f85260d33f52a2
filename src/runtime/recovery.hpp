// Goes on with a training when the ranks have changed: under a new plan, in the same processes, from what they still
// know.
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

/// How a training goes on.
struct Recovery {
  std::unique_ptr<TrainingState> state;  ///< of this rank, under the new plan; null on a rank that it leaves out
  /// Some element of the state is known to no rank: the state is as it was made, and has to come from a checkpoint, on
  /// all ranks.
  bool needs_checkpoint = false;
  std::int64_t sent_bytes = 0;  ///< by this rank to others
};

/// Collective over a world whose ranks have given up everything of the world before. `mine` is what this process has
/// of the training; null: nothing (it has just joined). `choose` is called on rank 0 with what the ranks were training
/// (none: nothing) and says how they go on: a plan for as many ranks as there are, or for the first of them. Ranks
/// beyond the plan are spare: they give what they have to the others, get no state, and must give up `mine` too, which
/// the training leaves behind.
///
/// Training goes on from the newest version of the state that the ranks have whole together. After a failure ranks
/// differ by one update at most, since none is asked for before all ranks have summed; those that have the newest
/// iteration's gradients, but have not heard of its totals, make up for its update. Without copies what only a lost
/// rank stepped is gone. With `copies` (state_copies.hpp; null on all ranks: none) it comes from its keeper: of the
/// newest version, or of the one before, to which all go back then. Each rank takes what it needs from its own memory
/// where it can, else from one of the ranks that have it; the first copies under the new plan are made as well. The
/// last_totals() of the new state are those of the update before it where any rank knows them: run() may have returned
/// from it on none that is left.
///
/// Errors (the same on all ranks): those of `choose`, a plan that cannot be trained by these ranks. Throws
/// TransportError when a rank goes away meanwhile; `mine` and `copies` are whole then, and this may be called again.
Result<Recovery> recover(TrainingState* mine, const Model& model, const TrainerSettings& settings, Device& device,
                         const World& world, const std::function<Result<Plan>(const Plan* before)>& choose,
                         StateCopies* copies = nullptr);

}  // namespace sailor::runtime
