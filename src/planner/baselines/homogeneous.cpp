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

Result<UniformPlan> uniform_plan(const PlanList& plan, const Inputs& inputs) {
  if (plan.pipelines.empty() || plan.pipelines.front().stages.empty())
    return fail(ErrorCode::invalid_input, "the plan has no stage", "give a plan with at least one stage");
  UniformPlan uniform;
  uniform.micro_batch = plan.micro_batch;
  for (const ListStage& stage : plan.pipelines.front().stages) {
    if (stage.replicas.empty() || stage.replicas.front().machines.empty())
      return fail(ErrorCode::invalid_input, "a stage of the plan has no replica", "give every stage a replica");
    if (stage.layers.first < 0 || stage.layers.first > stage.layers.last || stage.layers.last > inputs.layers())
      return fail(ErrorCode::invalid_input,
                  fmt::format("layers [{}, {}) are not layers of {}", stage.layers.first, stage.layers.last,
                              inputs.model().name),
                  fmt::format("the model has layers [0, {})", inputs.layers()));
    uniform.stages.push_back(stage.layers);
    for (const Replica& replica : stage.replicas) uniform.machines += static_cast<int>(replica.machines.size());
  }
  const ListStage& first = plan.pipelines.front().stages.front();
  const Machine& machine = first.replicas.front().machines.front();
  uniform.gpu = machine.gpu;
  uniform.zone = machine.zone;
  uniform.gpus_per_node = machine.gpus_per_node;
  uniform.replicas = static_cast<int>(first.replicas.size());
  uniform.tensor_parallel = first.replicas.front().tensor_parallel;
  if (uniform.micro_batch < 1 || uniform.gpus_per_node < 1 || uniform.tensor_parallel < 1)
    return fail(ErrorCode::invalid_input,
                fmt::format("micro-batch {}, tensor parallel {} and {} GPUs per node must be at least 1",
                            uniform.micro_batch, uniform.tensor_parallel, uniform.gpus_per_node));
  return uniform;
}

Result<void> check_problem(const Problem& problem) {
  if (problem.job.global_batch < 1)
    return fail(ErrorCode::invalid_input, fmt::format("global batch {}", problem.job.global_batch),
                "it must be at least 1 sequence");
  if (problem.offers.empty())
    return fail(ErrorCode::invalid_input, "no devices are offered", "offer at least one node");
  for (const Offer& offer : problem.offers)
    if (offer.gpus_per_node < 1 || offer.gpus < offer.gpus_per_node)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{} GPUs of type {} in {} are no node of {}", offer.gpus, offer.gpu, offer.zone,
                              offer.gpus_per_node),
                  "offer whole nodes");
  return {};
}

std::vector<Offer> offers_in_turn(const Problem& problem) {
  return problem.faults == Faults::kept ? std::vector<Offer>{problem.offers.front()} : problem.offers;
}

std::string note_of_offers(const Problem& problem, std::string_view title) {
  if (problem.offers.size() < 2) return {};
  if (problem.faults == Faults::kept)
    return fmt::format("{} is given the first of {} offers only ({} in {}), as in the artifact", title,
                       problem.offers.size(), problem.offers.front().gpu, problem.offers.front().zone);
  return fmt::format("{} plans one GPU type in one zone: each of the {} offers was planned by itself", title,
                     problem.offers.size());
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
