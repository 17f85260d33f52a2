// From a plan and measurements: the time of an iteration, the memory of every rank, money.
//
// This is the closed form. A pipeline with stage times t_i (forward and backward of one micro-batch) and link times
// c_i (activation out, gradient back, over the link behind stage i) runs n micro-batches under 1F1B in
//   Σt_i + Σc_i + (n - 1)·max(t_i + c_i)                              (Sailor, SOSP'25, section 4.3; DESIGN)
// then the pipelines sum their gradients, then every rank steps its optimizer.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"
#include "profile/layer_costs.hpp"
#include "profile/profile.hpp"

namespace sailor::simulator {

/// What the training framework keeps per parameter, and what it does not overlap.
struct Framework {
  std::string name;
  Bytes weight{};                         ///< per parameter
  Bytes gradient{};                       ///< per parameter
  Bytes optimizer{};                      ///< per parameter: moments, master copies
  bool copies_reduced_gradients = false;  ///< a reduction needs a second buffer as large as what it reduces
};
/// Sailor's own runtime in fp32: weights, gradients and two AdamW moments of 4 bytes each. Open MPI's all-reduce
/// copies what it reduces.
Framework sailor_framework();

/// What a prediction stands on. The references must outlive the call.
struct Environment {
  const Model& model;
  const Profile& profile;
  const GpuCatalogue& gpus;
  const Cluster* cluster = nullptr;  ///< node sizes, prices and zones; without it one device per node
  Framework framework = sailor_framework();
  bool measured_only = false;         ///< refuse what would have to be interpolated or estimated
  const LayerCosts* costs = nullptr;  ///< answers that several predictions share; of the same model, profile and GPUs
};

/// Memory of one rank, itemised.
struct RankMemory {
  Bytes weights{};
  Bytes gradients{};
  Bytes optimizer{};
  Bytes activations{};    ///< of all micro-batches in flight
  Bytes workspace{};      ///< while a layer computes, the largest of the stage
  Bytes communication{};  ///< buffers for messages to and from the neighbouring stages, and of reductions
  Bytes base{};           ///< the process before its first tensor
  [[nodiscard]] Bytes total() const {
    return weights + gradients + optimizer + activations + workspace + communication + base;
  }
};

/// One stage of one entry of Plan::pipelines; its `count` copies are alike.
struct StagePrediction {
  int pipeline_entry = 0;
  int stage = 0;
  Seconds forward{};  ///< of one micro-batch
  Seconds backward{};
  Seconds link{};             ///< activation to the next stage and gradient back, one micro-batch
  Seconds synchronization{};  ///< gradient reduction with the other holders of its layers
  Seconds update{};
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

struct Prediction {
  Seconds iteration_time{};
  Seconds pipeline_time{};  ///< of the slowest pipeline
  Seconds synchronization_time{};
  Seconds update_time{};
  double bubble_fraction = 0.0;  ///< share of the slowest pipeline's time in which its busiest stage waits
  Usd cost_per_iteration{};
  Usd gpu_cost_per_iteration{};     ///< part of the cost: device-hours
  Usd egress_cost_per_iteration{};  ///< part of the cost: bytes that leave a zone
  Bytes peak_memory{};              ///< largest over ranks
  bool fits = true;
  Origin origin = Origin::measured;              ///< the worst of the numbers that the prediction stands on
  std::vector<EstimatedInput> estimated_inputs;  ///< what makes `origin` worse than published, each once
  std::vector<StagePrediction> stages;
};

/// Predicts a plan. Errors: invalid_input (the plan does not suit the model), not_found (no measurement),
/// unavailable (a schedule or option that this form does not know yet).
Result<Prediction> simulate(const Plan& plan, const Environment& environment);

/// The part that goes into plan.toml.
PlanPrediction summary(const Prediction& prediction);

/// The stage that misses its device's memory by most: "stage 0 of pipeline 0 needs 3.10 GiB of 1.00 GiB on cpu ...";
/// nothing when all fit.
std::optional<std::string> memory_problem(const Plan& plan, const Prediction& prediction);

}  // namespace sailor::simulator
