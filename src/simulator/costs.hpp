// Costs of a plan's stages, links and reductions: the input of both the closed form and the event-driven form. Nothing
// here knows the order in which things happen.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "simulator/event_driven.hpp"
#include "simulator/layer_table.hpp"
#include "simulator/link_notes.hpp"
#include "simulator/simulator.hpp"

namespace sailor::simulator {

/// One stage of an entry of Plan::pipelines.
struct StageCosts {
  int entry = 0;
  int stage = 0;
  const LayerTable* table = nullptr;
  /// Messages among ranks that divide sequences or experts, of the model's layers [0, i); null without them.
  const std::vector<PassTimes>* exchanges = nullptr;
  Seconds forward{};  ///< of all chunks
  Seconds backward{};
  Seconds update{};
  RankMemory memory;
  std::optional<Bytes> capacity;
};

/// One entry of Plan::pipelines. Virtual stage v = chunk x stages + stage, in the order in which a micro-batch passes
/// them.
struct PipelineCosts {
  int stages = 0;
  int chunks = 1;
  int micro_batches = 0;
  std::size_t first_stage = 0;     ///< index into PlanCosts::stages
  std::size_t first_pass = 0;      ///< index into PlanCosts::passes, chunks x stages of them
  std::size_t first_boundary = 0;  ///< index into PlanCosts::boundaries, chunks x stages - 1 of them
};

/// Gradient reduction among ranks that hold the same gradients: one for all gradients of a stage, or, where reduction
/// overlaps, one per chunk. Where the ranks differ in tensor parallelism, those with the smallest degree hold the most
/// and take part in the reductions of all their slices one after the other.
struct Reduction {
  std::size_t first_holder = 0;  ///< index into PlanCosts::holders
  std::size_t holders = 0;
  int replicas = 0;  ///< ranks that hold the same gradients, counting the copies of pipelines
  int first_layer = 0;
  int last_layer = 0;
  bool tied = false;     ///< reduces the tied embedding, which first and last stages hold
  bool experts = false;  ///< reduces experts, which only replicas / expert_parallel ranks hold
  Bytes amount{};        ///< bytes of a rank, of those that hold the most
  Seconds time{};
  /// Part of `time` in which weights are gathered after the optimizer's step (ZeRO-1 and ZeRO-2).
  Seconds gather{};
};

struct PlanCosts {
  Schedule schedule = Schedule::one_f_one_b;
  bool overlaps_transfers = false;
  bool overlaps_reduction = false;
  bool shards_optimizer = false;
  bool crosses_switches = false;  ///< at a speed of its own (Cluster::across_switches)
  Bytes reduction_bucket{};
  const std::vector<double>* layer_parameters = nullptr;  ///< of the whole model's layers [0, i)
  std::vector<PipelineCosts> pipelines;                   ///< by entry
  std::vector<StageCosts> stages;                         ///< by entry and stage
  std::vector<PassTimes> passes;                          ///< by entry and virtual stage
  std::vector<BoundaryTimes> boundaries;                  ///< by entry and boundary, the framework's overhead included
  std::vector<Reduction> reductions;                      ///< in the order in which they are made: last layers first
  std::vector<std::size_t> holders;                       ///< indices into `stages`
  std::vector<LayerRange> layers;                         ///< indexed as `passes`
  std::vector<DeviceCost> devices;                        ///< DeviceCost::cost is not set
  std::vector<EgressCost> egress;
  LinkNotes links;
  std::vector<EstimatedInput> processes;  ///< processes whose memory was not measured
  std::vector<EstimatedInput> assumptions;
  int nodes = 0;  ///< number of nodes that the plan takes; one per device if the cluster is not known

  [[nodiscard]] std::span<const std::size_t> holders_of(const Reduction& reduction) const {
    return std::span(holders).subspan(reduction.first_holder, reduction.holders);
  }
  /// `stage` is an index into `stages`.
  [[nodiscard]] bool takes_part(std::size_t stage, const Reduction& reduction) const {
    const auto all = holders_of(reduction);
    return std::find(all.begin(), all.end(), stage) != all.end();
  }
  /// Number of buckets in which a reduction overlaps the backward pass.
  [[nodiscard]] double buckets_of(const Reduction& reduction) const {
    if (!overlaps_reduction || reduction.tied || reduction_bucket <= Bytes(0)) return 1.0;
    return std::max(1.0, std::ceil(reduction.amount / reduction_bucket));
  }
  [[nodiscard]] PipelineTimes times_of(std::size_t entry) const {
    const PipelineCosts& pipeline = pipelines[entry];
    const auto passes_of = static_cast<std::size_t>(pipeline.stages) * static_cast<std::size_t>(pipeline.chunks);
    return {.schedule = schedule,
            .overlaps_transfers = overlaps_transfers,
            .stages = pipeline.stages,
            .chunks = pipeline.chunks,
            .micro_batches = pipeline.micro_batches,
            .passes = std::span(passes).subspan(pipeline.first_pass, passes_of),
            .boundaries = std::span(boundaries).subspan(pipeline.first_boundary, passes_of - 1)};
  }
};

struct PricingState;

/// Prices plans against one environment, which must outlive it; remembers what it looked up. One thread at a time.
class CostModel {
 public:
  explicit CostModel(const Environment& environment);
  ~CostModel();
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  /// Fills `costs`, whose storage is reused. Errors as simulate().
  Result<void> price(const Plan& plan, PlanCosts& costs);
  /// What the estimates of unmeasured links in `costs` are based on, in words.
  [[nodiscard]] std::vector<EstimatedInput> link_inputs(const PlanCosts& costs) const;

 private:
  std::unique_ptr<PricingState> state_;
};

}  // namespace sailor::simulator
