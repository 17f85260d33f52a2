#include "planner/baselines/homogeneous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sailor::planner::baselines {

std::vector<int> divisors_of(int number) {
  std::vector<int> divisors;
  for (int divisor = 1; divisor <= number; ++divisor)
    if (number % divisor == 0) divisors.push_back(divisor);
  return divisors;
}

Result<const LinkCoefficients*> node_link(const Inputs& inputs, std::string_view gpu, std::string_view zone,
                                          int gpus_per_node, Faults faults) {
  for (int senders = gpus_per_node; senders >= (faults == Faults::kept ? gpus_per_node : 1); --senders)
    if (const LinkCoefficients* link = inputs.inter(gpu, zone, senders, gpu, zone, senders)) return link;
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no link between nodes of {} {} in {}", gpus_per_node, gpu, zone),
              "measure it with sailor-profile, or import a network that has it");
}

Result<UniformPlan> uniform_plan(const PlanList& plan, const Inputs& inputs, std::string_view title,
                                 Differences allowed) {
  if (plan.pipelines.size() != 1 || plan.pipelines.front().stages.empty())
    return fail(ErrorCode::invalid_input,
                fmt::format("{}'s cost model knows one pipeline with at least one stage, the plan has {} pipelines",
                            title, plan.pipelines.size()),
                "write pipelines with the same layers as replicas of one");
  UniformPlan uniform;
  uniform.micro_batch = plan.micro_batch;
  const Replica* first = nullptr;
  for (const ListStage& stage : plan.pipelines.front().stages) {
    if (stage.layers.first < 0 || stage.layers.first > stage.layers.last || stage.layers.last > inputs.layers())
      return fail(ErrorCode::invalid_input,
                  fmt::format("layers [{}, {}) are not layers of {}", stage.layers.first, stage.layers.last,
                              inputs.model().name),
                  fmt::format("the model has layers [0, {})", inputs.layers()));
    uniform.stages.push_back(stage.layers);
    uniform.stage_replicas.push_back(static_cast<int>(stage.replicas.size()));
    for (const Replica& replica : stage.replicas) {
      if (replica.machines.empty() || replica.machines.front().gpus_per_node < 1 || replica.tensor_parallel < 1)
        return fail(ErrorCode::invalid_input, "a replica of the plan has no devices", "give each its machines");
      if (first == nullptr) first = &replica;
      if (&replica == &stage.replicas.front()) uniform.stage_degrees.push_back(replica.tensor_parallel);
      const int degree = allowed == Differences::replicas ? uniform.stage_degrees.back() : first->tensor_parallel;
      uniform.machines += static_cast<int>(replica.machines.size());
      const Machine& machine = replica.machines.front();
      if (replica.tensor_parallel != degree ||
          (allowed != Differences::gpus &&
           (machine.gpu != first->machines.front().gpu || machine.zone != first->machines.front().zone)))
        return fail(
            ErrorCode::invalid_input,
            fmt::format("{}'s cost model knows one tensor-parallel degree{}; the plan has {} {} in {} and {} {} in "
                        "{}",
                        title, allowed == Differences::gpus ? "" : ", one GPU type and one zone", degree,
                        first->machines.front().gpu, first->machines.front().zone, replica.tensor_parallel, machine.gpu,
                        machine.zone),
            "estimate it with another planner's model");
    }
    if (stage.replicas.empty() ||
        (allowed != Differences::replicas && uniform.stage_replicas.front() != uniform.stage_replicas.back()))
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}'s cost model knows as many replicas of each stage, the plan has stages of {} and {}",
                              title, uniform.stage_replicas.front(), uniform.stage_replicas.back()),
                  "estimate it with another planner's model");
  }
  if (uniform.micro_batch < 1)
    return fail(ErrorCode::invalid_input, fmt::format("micro-batch {} of the plan", uniform.micro_batch),
                "it must be at least 1 sequence");
  const Machine& machine = first->machines.front();
  uniform.gpu = machine.gpu;
  uniform.zone = machine.zone;
  uniform.gpus_per_node = machine.gpus_per_node;
  uniform.replicas = uniform.stage_replicas.front();
  uniform.tensor_parallel = first->tensor_parallel;
  return uniform;
}

Result<void> check_offers(const Problem& problem) {
  if (problem.job.global_batch < 1)
    return fail(ErrorCode::invalid_input, fmt::format("global batch {}", problem.job.global_batch),
                "it must be at least 1 sequence");
  if (problem.offers.empty()) return fail(ErrorCode::infeasible, "no devices are offered", "offer at least one node");
  for (const Offer& offer : problem.offers)
    if (offer.gpus_per_node < 1 || offer.gpus < offer.gpus_per_node)
      return fail(ErrorCode::infeasible,
                  fmt::format("{} {} in {} are no node of {}", offer.gpus, offer.gpu, offer.zone, offer.gpus_per_node),
                  "offer at least one node");
  return {};
}

Result<Offer> only_offer(const Problem& problem, std::string_view title) {
  SAILOR_CHECK(check_offers(problem));
  if (problem.offers.size() > 1)
    return fail(ErrorCode::invalid_input,
                fmt::format("{} plans one GPU type in one zone, {} offers are given", title, problem.offers.size()),
                "ask it about each by itself");
  return problem.offers.front();
}

Result<Proposals> sorted_proposals(Proposals proposals, const Problem& problem, std::string_view title) {
  if (proposals.plans.empty() && !proposals.out_of_time)
    return fail(ErrorCode::infeasible,
                fmt::format("{} has no plan of {} that fits into the memory of {}", title, problem.inputs.model().name,
                            problem.offers.front().gpu),
                "offer more devices, or devices with more memory");
  sort_proposals(proposals.plans, problem.objective);
  return proposals;
}

Result<Proposals> HomogeneousBaseline::plan(const Problem& problem) const {
  const auto offer = only_offer(problem, title());
  SAILOR_CHECK(offer);
  Proposals proposals;
  SAILOR_CHECK(plan_offer(problem, *offer, proposals));
  return sorted_proposals(std::move(proposals), problem, title());
}

void note(Proposals& proposals, std::string text) {
  if (std::find(proposals.notes.begin(), proposals.notes.end(), text) == proposals.notes.end())
    proposals.notes.push_back(std::move(text));
}

Usd devices_cost(const Inputs& inputs, std::string_view gpu, int gpus, double iteration_seconds) {
  return UsdPerHour(inputs.price(gpu) * gpus) * Seconds(iteration_seconds);
}

void sort_proposals(std::vector<Proposal>& plans, Objective objective) {
  const auto less = [&](const Proposal& a, const Proposal& b) {
    if (objective != Objective::cost) return a.throughput.value_or(0.0) > b.throughput.value_or(0.0);
    constexpr double unknown = std::numeric_limits<double>::infinity();
    return a.cost.value_or(Usd(unknown)) < b.cost.value_or(Usd(unknown));
  };
  std::stable_sort(plans.begin(), plans.end(), less);
}

}  // namespace sailor::planner::baselines
