#include "planner/baselines/offered_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace sailor::planner::baselines {

Result<std::vector<OfferedNodes>> offered_nodes(const Problem& problem) {
  std::vector<OfferedNodes> nodes;
  for (const Offer& offer : problem.offers) {
    if (offer.gpus < 0 || offer.gpus_per_node < 1)
      return fail(ErrorCode::invalid_input,
                  fmt::format("an offer of {} has {} GPUs in nodes of {}", offer.gpu, offer.gpus, offer.gpus_per_node));
    const OfferedNodes entry{offer.gpu, offer.zone, offer.gpus / offer.gpus_per_node, offer.gpus_per_node};
    const auto twin = std::find_if(nodes.begin(), nodes.end(), [&](const OfferedNodes& other) {
      return problem.faults == Faults::kept && other.gpu == offer.gpu;
    });
    if (twin == nodes.end())
      nodes.push_back(entry);
    else
      *twin = entry;
  }
  if (problem.faults == Faults::kept)
    for (OfferedNodes& entry : nodes) entry.zone = problem.offers.back().zone;
  std::erase_if(nodes, [](const OfferedNodes& entry) { return entry.nodes == 0; });
  if (nodes.empty()) return fail(ErrorCode::infeasible, "the offers have no whole node");
  return nodes;
}

Result<std::vector<OfferedNodes>> nodes_of_plan(const PlanList& plan) {
  std::vector<OfferedNodes> nodes;
  for (const ListPipeline& pipeline : plan.pipelines)
    for (const ListStage& stage : pipeline.stages)
      for (const Replica& replica : stage.replicas)
        for (const Machine& machine : replica.machines) {
          const auto twin = std::find_if(nodes.begin(), nodes.end(),
                                         [&](const OfferedNodes& other) { return other.gpu == machine.gpu; });
          if (twin == nodes.end())
            nodes.push_back({machine.gpu, machine.zone, 1, machine.gpus_per_node});
          else
            ++twin->nodes;
        }
  if (nodes.empty()) return fail(ErrorCode::invalid_input, "the plan has no stage with a replica");
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
