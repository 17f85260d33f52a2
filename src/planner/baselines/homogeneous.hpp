// What planners of clusters of one GPU type share: node links, and plans whose stages are alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines {

/// All positive divisors, ascending.
std::vector<int> divisors_of(int number);

/// Between two nodes of this type in one zone, all GPUs of a node sending. With Faults::fixed the greatest measured
/// number of senders that a node has, where the whole node was not measured. Errors: not_found.
Result<const LinkCoefficients*> node_link(const Inputs& inputs, std::string_view gpu, std::string_view zone,
                                          int gpus_per_node, Faults faults);

/// The only or first pipeline of a plan, as planners read it that know neither unequal replicas nor several types.
struct UniformPlan {
  std::string gpu;
  std::string zone;
  int gpus_per_node = 1;
  int machines = 0;  ///< entries of virtual machines in the plan
  int replicas = 1;  ///< of the first stage
  int tensor_parallel = 1;
  int micro_batch = 1;
  std::vector<LayerRange> stages;

  [[nodiscard]] int pipeline_parallel() const { return static_cast<int>(stages.size()); }
};
/// Errors: invalid_input (no pipeline, no stage, no replica, layers that the model does not have).
Result<UniformPlan> uniform_plan(const PlanList& plan, const Inputs& inputs);

/// Errors: invalid_input (no batch, no offer, an offer without GPUs).
Result<void> check_problem(const Problem& problem);

/// What a planner of one GPU type in one zone looks at: as published the first offer, with Faults::fixed each by
/// itself.
std::vector<Offer> offers_in_turn(const Problem& problem);
/// "only A100-40 in us-central1-a of 4 offers is used, ...": for Proposals::notes. Empty for one offer.
std::string note_of_offers(const Problem& problem, std::string_view title);

/// USD of one iteration on `gpus` devices.
Usd devices_cost(const Inputs& inputs, std::string_view gpu, int gpus, double iteration_seconds);

/// Best first, by the planner's own estimates: highest throughput, or lowest cost. Equal ones keep their order.
void sort_proposals(std::vector<Proposal>& plans, Objective objective);

}  // namespace sailor::planner::baselines
