// Conversion of offers and given plans for Metis and FlashFlex, which know nodes of GPU types.
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

/// Whole nodes, in the order of the offers. Errors: invalid_input for an invalid offer; infeasible if there is no whole
/// node.
Result<std::vector<OfferedNodes>> offered_nodes(const std::vector<Offer>& offers);

/// Vocabulary size of a planner without profiles. Faults::kept: that of the artifact's training configurations (the
/// measured models have 50304 instead); Faults::fixed: the model's.
double vocabulary(const Inputs& inputs, Faults faults);

/// Input of a planner's cost model in the artifact's validation (simulations/validation/validate.py): the first
/// pipeline, with the tensor and data parallelism of its first stage everywhere.
struct ValidatedPlan {
  int tensor_parallel = 1;
  int data_parallel = 1;
  std::vector<LayerRange> layers;              ///< by stage
  std::vector<std::vector<std::string>> gpus;  ///< by stage and replica
};
/// Errors: invalid_input for several pipelines, no stage, or different numbers of replicas.
Result<ValidatedPlan> validated_plan(const PlanList& plan);

}  // namespace sailor::planner::baselines
