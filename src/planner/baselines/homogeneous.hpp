// Common parts of planners for clusters of one GPU type: node links, and plans whose stages are alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines {

/// All positive divisors, ascending.
std::vector<int> divisors_of(int number);

/// The link between two nodes of this type in one zone, with all GPUs of a node sending. Faults::fixed: if the whole
/// node was not measured, the largest measured number of senders that a node has. Errors: not_found.
Result<const LinkCoefficients*> node_link(const Inputs& inputs, std::string_view gpu, std::string_view zone,
                                          int gpus_per_node, Faults faults);

/// A plan in the form of cost models that know one pipeline, with equal replicas in every stage.
struct UniformPlan {
  std::string gpu;
  std::string zone;
  int gpus_per_node = 1;
  int machines = 0;         ///< number of virtual machine entries in the plan
  int replicas = 1;         ///< of the first stage
  int tensor_parallel = 1;  ///< of the first stage
  int micro_batch = 1;
  std::vector<LayerRange> stages;
  std::vector<int> stage_replicas;
  std::vector<int> stage_degrees;  ///< tensor parallel

  [[nodiscard]] int pipeline_parallel() const { return static_cast<int>(stages.size()); }
};
/// How stages may differ besides in their layers. `replicas`: also in their tensor-parallel degree.
enum class Differences { none, gpus, replicas };
/// `title` is the planner's. Errors: invalid_input (several pipelines, no stage or replica, layers that the model does
/// not have, stages or replicas that differ in more than `allowed`).
Result<UniformPlan> uniform_plan(const PlanList& plan, const Inputs& inputs, std::string_view title,
                                 Differences allowed = Differences::none);

/// Errors: invalid_input (no batch), infeasible (an offer of less than a node, or none).
Result<void> check_offers(const Problem& problem);
/// The one offer of a planner for one GPU type in one zone. Errors: as check_offers(), and invalid_input (several
/// offers).
Result<Offer> only_offer(const Problem& problem, std::string_view title);
/// Sorts proposals by the planner's own estimates. Errors: infeasible if there is none and time was left.
Result<Proposals> sorted_proposals(Proposals proposals, const Problem& problem, std::string_view title);

/// A planner for one GPU type in one zone.
class HomogeneousBaseline : public Baseline {
 public:
  /// Errors: as only_offer(), plan_offer() and sorted_proposals().
  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const final;

 private:
  /// Adds the proposals for these devices.
  virtual Result<void> plan_offer(const Problem& problem, const Offer& offer, Proposals& proposals) const = 0;
};

/// Adds a note unless it is already there.
void note(Proposals& proposals, std::string text);

/// USD of one iteration on `gpus` devices.
Usd devices_cost(const Inputs& inputs, std::string_view gpu, int gpus, double iteration_seconds);

/// Best first, by the planner's own estimates: highest throughput, or lowest cost. Equal ones keep their order.
void sort_proposals(std::vector<Proposal>& plans, Objective objective);

}  // namespace sailor::planner::baselines
