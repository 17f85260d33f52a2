// Follows every micro-batch through one pipeline: when each stage computes, sends, waits.
//
// A stage does its passes in the order of its schedule. All it waits for comes in an order that does not depend on
// times, so every start is the largest of a few ends: nothing that gets faster can make anything later.
//
// Transfers that block (Framework::overlaps_transfers is false; 1F1B and GPipe): a message starts when both stages have
// come to it and holds both until it is done. Under 1F1B a stage hands on its activation and takes a gradient from the
// same neighbour in one exchange, one after the other, as Megatron-LM's and DeepSpeed's pipelines do.
// Transfers that overlap, and always under interleaved 1F1B: a message starts when it is made and the link is free
// (messages of one direction of one link follow each other), and nobody waits for it but who needs it.
#pragma once

#include <span>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "plan/timeline.hpp"
#include "simulator/layer_table.hpp"

namespace sailor::simulator {

/// Activation out and gradient back over the boundary behind a virtual stage.
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
  std::span<const BoundaryTimes> boundaries;  ///< by virtual stage, none behind the last
};

/// When a stage is done with its passes.
struct StageEnd {
  Seconds end{};  ///< of its last pass and of transfers that block
  /// By chunk: when the backward pass of the last micro-batch starts.
  std::vector<Seconds> last_backward;
};

/// What no stage can be done before: `end`, and when its last backward pass is done, without following the
/// micro-batches. O(stages).
///
/// Under 1F1B and GPipe stage i starts when the first micro-batch has come to it, passes n of them forward and
/// backward, and after the first w forward passes, all it has to do before the first gradient, waits until that
/// gradient is back from the last stage. No stage is done before the next one's last gradient has come.
struct LeastEnd {
  Seconds passed{};  ///< of its last backward pass
  Seconds end{};     ///< of that and of transfers that block
};
void least_ends(const PipelineTimes& pipeline, std::vector<LeastEnd>& ends);

/// By stage. `events`, where given, gets what the stages do, of pipeline entry 0, in no order.
std::vector<StageEnd> run_pipeline(const PipelineTimes& pipeline, std::vector<TimelineEvent>* events = nullptr);

}  // namespace sailor::simulator
