// Offers as the harness of the artifact hands them to planners that know nodes of GPU types in one zone (Metis and
// FlashFlex; sailor/Planner/simulations/simulator.py).
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

/// Whole nodes, in the order of the offers. Faults::kept: a later offer of a GPU type replaces an earlier one, whatever
/// its zone, and all nodes are taken to be in the zone of the last offer. Faults::fixed: every offer counts, in its own
/// zone. Errors: invalid_input for an offer that cannot be; infeasible when there is no whole node.
Result<std::vector<OfferedNodes>> offered_nodes(const Problem& problem);

/// The nodes that the artifact's validation thinks a plan has: as many as the plan has entries of virtual machines, by
/// GPU type in the order of the first pipeline. Errors: invalid_input for a plan without stages or replicas.
Result<std::vector<OfferedNodes>> nodes_of_plan(const PlanList& plan);

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
