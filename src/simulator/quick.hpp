// The closed form of a whole plan, for planners: simulate() without its details, hundreds of thousands of times per
// second; on request also the event-driven time of simulate().
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "simulator/costs.hpp"
#include "simulator/iteration.hpp"

namespace sailor::simulator {

struct QuickPrediction {
  Seconds iteration_time{};
  Seconds pipeline_time{};  ///< until the last backward pass of the slowest pipeline
  Usd cost_per_iteration{};
  Bytes peak_memory{};            ///< largest over ranks
  double memory_headroom = 1.0;   ///< smallest share of a device's memory that stays free, negative when it does not
                                  ///< fit; 1 when no device's memory is known
  bool crosses_switches = false;  ///< messages or reductions do, at a speed of their own (Cluster::across_switches)
};

/// The iteration time as a function of the number of micro-batches n_e of each entry of Plan::pipelines:
///   max over entries of fixed + per_micro_batch x n_e + tail
/// It is that of QuickPrediction, for these numbers of micro-batches and all others, if reductions come after the
/// backward pass. If they overlap it (Framework::overlaps_reduction), `tail` is computed as if they did not.
struct EntryTimes {
  Seconds fixed{};
  Seconds per_micro_batch{};
  /// From the end of the pipeline's passes to the end of the iteration, if no entry waited for another: the reductions
  /// and updates after its passes, including those of other entries with which it shares a reduction.
  Seconds tail{};
};

/// Caches its look-ups: use one instance for many plans, in one thread at a time. The environment must outlive it.
class QuickSimulator {
 public:
  explicit QuickSimulator(const Environment& environment) : model_(environment) {}

  /// Errors as simulate().
  Result<QuickPrediction> predict(const Plan& plan);
  // All of the following are of the plan that was predicted last, which must have been without error.

  /// By entry of Plan::pipelines; valid until the next prediction.
  [[nodiscard]] const std::vector<EntryTimes>& entries() const;
  /// Fast lower bound of event_driven_time(): least_iteration().
  [[nodiscard]] Seconds least_time();
  /// The iteration time of simulate(), event by event.
  [[nodiscard]] Seconds event_driven_time();
  /// Cost of an iteration that takes `time`.
  [[nodiscard]] Usd cost_of(Seconds time) const;

 private:
  /// Everything that run_pipeline() depends on.
  struct PipelineKey {
    std::vector<double> values;
    bool operator==(const PipelineKey&) const = default;
  };
  struct PipelineKeyHash {
    std::size_t operator()(const PipelineKey& key) const;
  };
  std::span<const StageEnd> ends_of(const PipelineTimes& pipeline);

  CostModel model_;
  PlanCosts costs_;
  IterationScratch scratch_;
  // Results of run_pipeline(): plans that differ in one pipeline share the others.
  std::unordered_map<PipelineKey, std::vector<StageEnd>, PipelineKeyHash> ends_;
  std::size_t remembered_ = 0;  // stages in ends_
  PipelineKey key_;
  // Computed on demand.
  mutable bool has_entries_ = false;
  mutable std::vector<EntryTimes> entries_;
  mutable std::vector<Seconds> tails_;  // by stage
};

}  // namespace sailor::simulator
