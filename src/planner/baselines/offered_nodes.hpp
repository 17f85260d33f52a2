// What Metis and FlashFlex, which know nodes of GPU types, make of offers and of given plans.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines {

struct OfferedNodes {
  std::string gpu;
  std::string zone;
  int nodes = 0;
  int gpus_per_node = 1;
};

/// Whole nodes, in the order of the offers. Errors: invalid_input for an offer that cannot be; infeasible when there is
/// no whole node.
Result<std::vector<OfferedNodes>> offered_nodes(const std::vector<Offer>& offers);

/// The vocabulary that a planner without profiles multiplies with. Faults::kept: what the artifact's training
/// configurations say (the measured models have 50304 in place of these); Faults::fixed: the model's.
double vocabulary(const Inputs& inputs, Faults faults);

/// What the validation of the artifact asks of a planner's cost model (simulations/validation/validate.py): the first
/// pipeline, with the tensor and data parallelism of its first stage everywhere.
struct ValidatedPlan {
  int tensor_parallel = 1;
  int data_parallel = 1;
  std::vector<LayerRange> layers;              ///< by stage
  std::vector<std::vector<std::string>> gpus;  ///< by stage and replica
};
/// Errors: invalid_input for several pipelines, no stage, or numbers of replicas that differ.
Result<ValidatedPlan> validated_plan(const PlanList& plan);

}  // namespace sailor::planner::baselines
