// The closed form of a whole plan, for planners: what simulate() says, hundreds of thousands of times per second and
// without its details; and, where asked for, its very time.
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

/// The iteration time as a function of how many micro-batches n_e each entry of Plan::pipelines has:
///   max over entries of fixed + per_micro_batch x n_e + tail
/// - that of QuickPrediction, for these numbers of micro-batches and all others, where reductions come after the
/// backward pass. Where they overlap it (Framework::overlaps_reduction), `tail` is what it would be without.
struct EntryTimes {
  Seconds fixed{};
  Seconds per_micro_batch{};
  /// From the end of the pipeline's passes to the end of the iteration, should nobody wait for another entry: the
  /// reductions and updates behind its passes, those of others with which it shares a reduction included.
  Seconds tail{};
};

/// Remembers what it looked up, so one for many plans, and one thread at a time. The environment must outlive it.
class QuickSimulator {
 public:
  explicit QuickSimulator(const Environment& environment) : model_(environment) {}

  /// Errors as simulate().
  Result<QuickPrediction> predict(const Plan& plan);
  // All of these of the plan that was predicted last and without error.

  /// By entry of Plan::pipelines; valid until the next prediction.
  [[nodiscard]] const std::vector<EntryTimes>& entries() const;
  /// What event_driven_time() is not below, quickly: least_iteration().
  [[nodiscard]] Seconds least_time();
  /// The iteration time of simulate(), event by event.
  [[nodiscard]] Seconds event_driven_time();
  /// What an iteration costs that takes so long.
  [[nodiscard]] Usd cost_of(Seconds time) const;

 private:
  /// All that run_pipeline() looks at.
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
  // Plans that differ in one pipeline have the others in common.
  std::unordered_map<PipelineKey, std::vector<StageEnd>, PipelineKeyHash> ends_;
  std::size_t remembered_ = 0;  // stages in ends_
  PipelineKey key_;
  // Made when asked for.
  mutable bool has_entries_ = false;
  mutable std::vector<EntryTimes> entries_;
  mutable std::vector<Seconds> tails_;  // by stage
};

}  // namespace sailor::simulator
