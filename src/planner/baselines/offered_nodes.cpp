#include "planner/baselines/offered_nodes.hpp"

#include <fmt/format.h>

#include <array>

namespace sailor::planner::baselines {

Result<std::vector<OfferedNodes>> offered_nodes(const std::vector<Offer>& offers) {
  std::vector<OfferedNodes> nodes;
  for (const Offer& offer : offers) {
    if (offer.gpus < 0 || offer.gpus_per_node < 1)
      return fail(ErrorCode::invalid_input,
                  fmt::format("an offer of {} has {} GPUs in nodes of {}", offer.gpu, offer.gpus, offer.gpus_per_node));
    if (offer.gpus >= offer.gpus_per_node)
      nodes.push_back({offer.gpu, offer.zone, offer.gpus / offer.gpus_per_node, offer.gpus_per_node});
  }
  if (nodes.empty()) return fail(ErrorCode::infeasible, "the offers have no whole node");
  return nodes;
}

double vocabulary(const Inputs& inputs, Faults faults) {
  struct Configured {
    const char* model;
    double vocabulary;
  };
  constexpr std::array<Configured, 2> configured{{{"opt-350m-sailor", 50272.0}, {"gpt-neo-2.7b-sailor", 128256.0}}};
  if (faults == Faults::kept)
    for (const Configured& entry : configured)
      if (inputs.model().name == entry.model) return entry.vocabulary;
  return inputs.model().vocabulary;
}

Result<ValidatedPlan> validated_plan(const PlanList& plan) {
  if (plan.pipelines.size() != 1 || plan.pipelines.front().stages.empty())
    return fail(ErrorCode::invalid_input,
                fmt::format("the plan has {} pipelines; this planner's cost model takes one, with replicas",
                            plan.pipelines.size()));
  ValidatedPlan result;
  for (const ListStage& stage : plan.pipelines.front().stages) {
    if (stage.replicas.empty()) return fail(ErrorCode::invalid_input, "a stage of the plan has no replica");
    const int replicas = static_cast<int>(stage.replicas.size());
    if (result.layers.empty()) {
      result.data_parallel = replicas;
      result.tensor_parallel = stage.replicas.front().tensor_parallel;
    }
    if (replicas != result.data_parallel)
      return fail(
          ErrorCode::invalid_input,
          fmt::format("stage {} has {} replicas and the first {}; this planner's cost model takes equal numbers",
                      result.layers.size(), replicas, result.data_parallel));
    result.layers.push_back(stage.layers);
    std::vector<std::string>& gpus = result.gpus.emplace_back();
    for (const Replica& replica : stage.replicas) {
      if (replica.machines.empty()) return fail(ErrorCode::invalid_input, "a replica of the plan has no machine");
      gpus.push_back(replica.machines.front().gpu);
    }
  }
  return result;
}

}  // namespace sailor::planner::baselines
