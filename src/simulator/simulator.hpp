// Predicts from a plan and measurements: iteration time, memory of every rank, cost.
//
// The time has two forms, from the same costs (costs.hpp):
// - event-driven (event_driven.hpp) follows every micro-batch through every stage and link; the reference;
// - closed (closed_form.hpp), a formula for the planner, which evaluates it hundreds of thousands of times.
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

/// Inputs of a prediction. The references must outlive the call.
struct Environment {
  const Model& model;
  const Profile& profile;
  const GpuCatalogue& gpus;
  const Framework& framework;
  const Cluster* cluster = nullptr;   ///< node sizes, prices and zones; without it one device per node
  bool measured_only = false;         ///< refuse what would have to be interpolated or estimated
  const LayerCosts* costs = nullptr;  ///< layer costs that several predictions share, from layer_costs_for()
};

/// Layer costs for Environment::costs.
inline LayerCosts layer_costs_for(const Environment& environment) {
  return {environment.model, environment.profile, environment.gpus, environment.measured_only,
          environment.framework.kernels};
}

/// Memory of one rank, itemised.
struct RankMemory {
  Bytes weights{};  ///< a tied embedding on the last stage is a second copy and counts in full
  Bytes gradients{};
  Bytes optimizer{};      ///< moments and master weights
  Bytes copies{};         ///< copies of gradients: flattened, accumulated, or made by a reduction
  Bytes activations{};    ///< of all micro-batches in flight, without the head's
  Bytes logits{};         ///< activations that the head keeps of its micro-batches in flight, mostly logits
  Bytes workspace{};      ///< temporary tensors while a layer computes, the maximum over the stage's layers
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
  Seconds synchronization{};  ///< gradient reductions with the other holders of its layers, overlapped or not
  Seconds update{};
  double busy = 0.0;  ///< share of the iteration in which it computes
  RankMemory memory;
  std::optional<Bytes> capacity;  ///< of the device; of a CPU, std::nullopt if the cluster is not known
  [[nodiscard]] bool fits() const { return !capacity || memory.total() <= *capacity; }
};

/// A number behind a prediction that is not a measurement.
struct EstimatedInput {
  Origin origin = Origin::estimated;  ///< interpolated or estimated
  std::string what;                   ///< "layer times of opt-350m on H200-141 (no profile; ...)"
  auto operator<=>(const EstimatedInput&) const = default;
};

/// What limits the iteration time most.
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
  UsdPerHour price{};             ///< of one device
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
  /// 5th and 95th percentile: the spread of the measurements, and the error of the framework description.
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
  std::optional<int> nodes;         ///< number of nodes that the plan takes; std::nullopt if the cluster is not known
  std::vector<DeviceCost> device_costs;
  std::vector<EgressCost> egress_costs;
  Bytes peak_memory{};  ///< largest over ranks
  bool fits = true;
  bool crosses_switches = false;     ///< messages or reductions do, at a speed of their own (Cluster::across_switches)
  Origin origin = Origin::measured;  ///< the worst of the times that the prediction is based on
  std::vector<EstimatedInput> estimated_inputs;  ///< inputs that were neither measured nor published, each once
  std::vector<StagePrediction> stages;

  /// Node-hours of an iteration; std::nullopt if the cluster is not known.
  [[nodiscard]] std::optional<double> node_hours() const {
    return nodes ? std::optional(*nodes * iteration_time.value() / 3600.0) : std::nullopt;
  }
};

/// Predicts a plan, event-driven; `timeline`, if given, receives what every stage does. Errors: invalid_input (the plan
/// does not suit the model), not_found (no measurement, with what to profile), unavailable (the framework does not know
/// the precision).
Result<Prediction> simulate(const Plan& plan, const Environment& environment, Timeline* timeline = nullptr);

/// The part of a prediction that goes into plan.toml.
PlanPrediction summary(const Prediction& prediction);

/// The stage that exceeds its device's memory by most, by how much, and the first change that would make the plan fit:
/// "stage 0 of pipeline 0 needs 3.10 GiB of 1.00 GiB on cpu ..."; std::nullopt if all fit.
std::optional<std::string> memory_problem(const Plan& plan, const Prediction& prediction,
                                          const Environment& environment);

}  // namespace sailor::simulator
