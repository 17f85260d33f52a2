// Finds the cheapest pipelines by label setting. Labels track when the reductions of each stage are done, not only when
// the pipeline's passes end. This is tighter than StageProgram::solve(), which prices stages one by one, and takes more
// work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/bound/stages.hpp"

namespace sailor::planner {

/// Lower bound of the seconds from the last micro-batch's entry into a pipeline to the deadline, as a function of the
/// time of one micro-batch from end to end and back (`through`), in a branch whose longest reduction of a first stage
/// is bounded from below.
struct PassDelay {
  double behind = 1.0;  ///< factor of the time from end to end in the sum with `over`
  double over = 0.0;    ///< seconds in that sum
  double fixed = 0.0;   ///< seconds that it is at least
  double after = 0.0;   ///< seconds of reductions that follow the passes of all pipelines
  [[nodiscard]] double operator()(double through) const {
    return std::max({through + after, through * behind + over, fixed});
  }
};

/// Min times of a message from a stage to the next one and its gradient back.
struct ReadyMessages {
  BoundaryCost near{infinity, infinity};  ///< inside a node; infinite where the two stages do not fit in one
  BoundaryCost far;                       ///< between nodes
};

/// The pipelines that are asked for. Times in seconds.
struct ReadyQuestion {
  const StageProgram& program;
  const StageLimits& furthest;
  double slowest = infinity;  ///< max time of a stage
  double round = 0.0;         ///< min time of the slowest stage
  int min_micro_batches = 1;
  int max_micro_batches = 1;
  int in_flight = 1;  ///< micro-batches, of which a stage's memory holds as many as there are stages from it on
  double deadline = 0.0;
  double step = 0.0;        ///< times of labels are rounded down to multiples; 0: not
  double max_price = 1.0;   ///< of the devices of a pipeline, by StageProgram::device_price()
  double price_step = 0.0;  ///< prices of labels are rounded down to multiples; 0: not
  double max_first_reduction = infinity;
  bool crosses = false;  ///< only pipelines with devices of two pools or more
  PassDelay delay;
  ReductionOrder order;
  /// Min time of the reductions of a stage on a node of which it and the next stages take so many devices. Called by
  /// several threads at once if several questions are answered at once.
  std::function<double(std::size_t candidate, int first, int last, int devices)> reduction;
  const std::vector<ReadyMessages>& messages;  ///< at candidate x candidates + candidate of the next stage
};

struct ReadyPipeline {
  int count = 1;  ///< micro-batches
  double price = 1.0;
  std::vector<TemplateStage> stages{};
};

struct ReadyAnswer {
  bool complete = false;  ///< false: too many labels, and nothing is known
  /// The pipelines of the least price for so many micro-batches or more.
  std::vector<ReadyPipeline> pipelines{};
  std::uint64_t work = 0;
};

/// A pipeline grows from its last stage to its first. A label is the stages from a layer on: seconds from end to end
/// and back; seconds until all reductions of these stages are done, if no micro-batch went before; the price of its
/// devices, and how many of them are on the node of its first stage. Dominated ones go, and those that break the
/// deadline or the max price, whatever comes before them.
ReadyAnswer price_ready_pipelines(const ReadyQuestion& question);

}  // namespace sailor::planner
