// From a plan and measurements: the time of an iteration, the memory of every rank, money.
//
// Two forms of the time, from the same costs (costs.hpp):
// - event-driven (event_driven.hpp) follows every micro-batch through every stage and link; the reference;
// - closed (closed_form.hpp), a formula for the planner, which asks hundreds of thousands of times.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "plan/timeline.hpp"
#include "profile/layer_costs.hpp"
#include "profile/profile.hpp"
#include "simulator/framework.hpp"

namespace sailor::simulator {

/// What a prediction stands on. The references must outlive the call.
struct Environment {
  const Model& model;
  const Profile& profile;
  const GpuCatalogue& gpus;
  const Framework& framework;
  const Cluster* cluster = nullptr;   ///< node sizes, prices and zones; without it one device per node
  bool measured_only = false;         ///< refuse what would have to be interpolated or estimated
  const LayerCosts* costs = nullptr;  ///< answers that several predictions share; as layer_costs_for() makes them
};

/// Layer costs as Environment::costs wants them.
inline LayerCosts layer_costs_for(const Environment& environment) {
  return {environment.model, environment.profile, environment.gpus, environment.measured_only,
          environment.framework.kernels};
}

/// Memory of one rank, itemised.
struct RankMemory {
  Bytes weights{};  ///< a tied embedding on the last stage is a second copy and counts in full
  Bytes gradients{};
  Bytes optimizer{};      ///< moments and master weights
  Bytes copies{};         ///< of gradients, flattened or accumulated; what a reduction copies
  Bytes activations{};    ///< of all micro-batches in flight, without the head's
  Bytes logits{};         ///< what the head keeps of the micro-batches in flight at it: the logits, mostly
  Bytes workspace{};      ///< while a layer computes, the largest of the stage
  Bytes communication{};  ///< buffers for messages to and from the neighbouring stages
  Bytes base{};           ///< the process before its first tensor
  [[nodiscard]] Bytes states() const { return weights + gradients + optimizer + copies; }
  [[nodiscard]] Bytes total() const { return states() + activations + logits + workspace + communication + base; }
};

/// One stage of one entry of Plan::pipelines; its `count` copies are alike.
struct StagePrediction {
  int pipeline_entry = 0;
  int stage = 0;
  Seconds forward{};  ///< of one micro-batch through all chunks of the stage
  Seconds backward{};
  Seconds link{};             ///< activation to the next stage and gradient back, one micro-batch
  Seconds synchronization{};  ///< gradient reductions with the other holders of its layers, hidden or not
  Seconds update{};
  double busy = 0.0;  ///< share of the iteration in which it computes
  RankMemory memory;
  std::optional<Bytes> capacity;  ///< of the device; none when the cluster is not known
  [[nodiscard]] bool fits() const { return !capacity || memory.total() <= *capacity; }
};

/// A number behind a prediction that is not a measurement.
struct EstimatedInput {
  Origin origin = Origin::estimated;  ///< interpolated or estimated
  std::string what;                   ///< "layer times of opt-350m on H200-141 (no profile; ...)"
  auto operator<=>(const EstimatedInput&) const = default;
};

/// What would make an iteration shorter first.
enum class Bound {
  compute,    ///< the slowest stage computes most of the time
  transfers,  ///< messages between stages
  reduction,  ///< gradients between replicas
  bubble,     ///< too few micro-batches for the number of stages
};
std::string_view to_string(Bound bound);

/// Device time of one GPU type in one zone.
struct DeviceCost {
  std::string gpu;
  std::string zone;
  int devices = 0;
  UsdPerHour price{};             ///< of one
  bool price_is_assumed = false;  ///< the catalogue's, not the cluster's or the site's
  Usd cost{};                     ///< per iteration
};

/// Bytes that leave a zone.
struct EgressCost {
  std::string from;
  std::string to;
  Bytes amount{};  ///< per iteration
  Usd cost{};
};

struct Prediction {
  Seconds iteration_time{};
  /// 5th and 95th percentile: the spread of the measurements, and what the framework description leaves unexplained.
  Seconds iteration_time_p5{};
  Seconds iteration_time_p95{};
  Seconds closed_form_time{};      ///< the same iteration by the closed form
  Seconds pipeline_time{};         ///< until the last backward pass of the slowest pipeline
  Seconds synchronization_time{};  ///< after it, until the last reduction is done
  Seconds update_time{};           ///< after that, until the last optimizer step is done
  double bubble_fraction = 0.0;    ///< share of the pipeline time in which the slowest pipeline's stages do not compute
  std::optional<double> utilization;  ///< model FLOP utilization: model FLOP / (time x peak of all devices)
  Bound bound = Bound::compute;
  int straggler_entry = 0;  ///< the pipeline and stage that ends last
  int straggler_stage = 0;
  int slowest_entry = 0;    ///< the pipeline whose passes end last
  Seconds transfer_time{};  ///< part of the pipeline time: messages that keep its busiest stage from computing
  Usd cost_per_iteration{};
  Usd gpu_cost_per_iteration{};     ///< part of the cost: device-hours
  Usd egress_cost_per_iteration{};  ///< part of the cost: bytes that leave a zone
  std::optional<int> nodes;         ///< that the plan takes; nothing where the cluster is not known
  std::vector<DeviceCost> device_costs;
  std::vector<EgressCost> egress_costs;
  Bytes peak_memory{};  ///< largest over ranks
  bool fits = true;
  bool crosses_switches = false;     ///< messages or reductions do, at a speed of their own (Cluster::across_switches)
  Origin origin = Origin::measured;  ///< the worst of the times that the prediction stands on
  std::vector<EstimatedInput> estimated_inputs;  ///< what was neither measured nor published, each once
  std::vector<StagePrediction> stages;

  /// Nodes x time of an iteration; nothing where the cluster is not known.
  [[nodiscard]] std::optional<double> node_hours() const {
    return nodes ? std::optional(*nodes * iteration_time.value() / 3600.0) : std::nullopt;
  }
};

/// Predicts a plan, event-driven; `timeline`, where given, gets what every stage does. Errors: invalid_input (the plan
/// does not suit the model), not_found (no measurement, with what to profile), unavailable (the framework does not know
/// the precision).
Result<Prediction> simulate(const Plan& plan, const Environment& environment, Timeline* timeline = nullptr);

/// The part that goes into plan.toml.
PlanPrediction summary(const Prediction& prediction);

/// The stage that misses its device's memory by most, by how much, and the first change that would make the plan fit:
/// "stage 0 of pipeline 0 needs 3.10 GiB of 1.00 GiB on cpu ..."; nothing when all fit.
std::optional<std::string> memory_problem(const Plan& plan, const Prediction& prediction,
                                          const Environment& environment);

}  // namespace sailor::simulator
