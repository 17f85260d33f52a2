// Event-driven simulation of one pipeline: follows every micro-batch, and when each stage computes, sends and waits.
//
// A stage does its passes in the order of its schedule. Everything it waits for arrives in an order that does not
// depend on times, so every start is the maximum of a few ends: making one part faster never delays another.
//
// Blocking transfers (Framework::overlaps_transfers is false; 1F1B and GPipe): a message starts when both stages have
// reached it, and occupies both until it is done. Under 1F1B a stage sends its activation to a neighbour and receives a
// gradient from it in one exchange, one after the other, as Megatron-LM's and DeepSpeed's pipelines do.
// Overlapped transfers (always under interleaved 1F1B): a message starts when it is ready and the link is free
// (messages in one direction of a link follow each other), and only the pass that needs it waits for it.
#pragma once

#include <span>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "plan/timeline.hpp"
#include "simulator/layer_table.hpp"

namespace sailor::simulator {

/// Times of the activation to the next virtual stage and of the gradient back.
struct BoundaryTimes {
  Seconds forward{};
  Seconds backward{};
};

/// One pipeline. Virtual stage v = chunk x stages + stage, in the order in which a micro-batch passes them.
struct PipelineTimes {
  Schedule schedule = Schedule::one_f_one_b;
  bool overlaps_transfers = false;
  int stages = 0;
  int chunks = 1;
  int micro_batches = 0;
  std::span<const PassTimes> passes;          ///< by virtual stage
  std::span<const BoundaryTimes> boundaries;  ///< by virtual stage, none after the last
};

/// End of a stage's passes.
struct StageEnd {
  Seconds end{};  ///< end of its last pass and of blocking transfers
  /// Start of the backward pass of the last micro-batch, by chunk.
  std::vector<Seconds> last_backward;
};

/// Lower bounds of StageEnd::end and of the end of a stage's last backward pass, without following the micro-batches.
/// O(stages).
///
/// Under 1F1B and GPipe stage i starts when the first micro-batch has reached it, and does n forward and n backward
/// passes. After its first w forward passes, which are all it can do before the first gradient, it waits until that
/// gradient is back from the last stage. No stage is done before the last gradient of the next stage has arrived.
struct LeastEnd {
  Seconds passed{};  ///< end of its last backward pass
  Seconds end{};     ///< the same, with blocking transfers
};
void least_ends(const PipelineTimes& pipeline, std::vector<LeastEnd>& ends);

/// Returns the ends by stage. `events`, if given, receives what the stages do, as pipeline entry 0, in no particular
/// order.
std::vector<StageEnd> run_pipeline(const PipelineTimes& pipeline, std::vector<TimelineEvent>* events = nullptr);

}  // namespace sailor::simulator
