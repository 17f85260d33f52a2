// Varuna (Athlur et al., EuroSys 2022) as the Sailor artifact adapts it (baselines/Varuna): a
// node is one worker of a pipeline, the layers are divided evenly, the micro-batch is the largest that fits, and an
// event-driven simulator ranks the numbers of stages.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "planner/baselines/homogeneous.hpp"
#include "planner/baselines/varuna_costs.hpp"
#include "planner/baselines/varuna_simulator.hpp"

namespace sailor::planner::baselines {
namespace varuna_detail {

constexpr double us_per_second = 1e6;
constexpr int stages_per_node = 4;  // GPUS_PER_VM of the published simulator, although each worker is a node

/// Micro-batches that Varuna tries, the largest first.
std::vector<int> micro_batches_of(const Costs& costs) {
  std::vector<int> sizes;
  for (int size : costs.inputs.micro_batches(costs.gpu)) {
    const std::vector<int> degrees = costs.inputs.degrees(costs.gpu, size);
    const bool is_power = (size & (size - 1)) == 0;
    if (is_power && (!costs.is_measured || size <= costs.most_measured()) &&
        std::find(degrees.begin(), degrees.end(), costs.tensor_parallel) != degrees.end())
      sizes.push_back(size);
  }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

struct Candidate {
  int stages = 1;
  int replicas = 1;
  int micro_batch = 1;
  int micro_batches = 1;
};

/// Seconds of an iteration; 0 if the published simulator stalls.
double iteration_time(const Costs& costs, const Candidate& candidate, const std::vector<LayerRange>& stages,
                      int workers_per_node, Faults faults) {
  const LayerTimes& times = *costs.times(candidate.micro_batch);
  PipelineTimes pipeline;
  pipeline.micro_batches = candidate.micro_batches;
  pipeline.workers_per_node = faults == Faults::kept ? stages_per_node : workers_per_node;
  const auto microseconds = [](double seconds) { return static_cast<int>(seconds * us_per_second); };
  double summed = 0.0;  // bytes of gradients, of the stage with the most
  for (const auto& [first, last] : stages) {
    double forward = 0.0;
    double backward = 0.0;
    for (int layer = first; layer < last; ++layer) {
      forward += times.forward[layer];
      backward += times.backward[layer];
    }
    pipeline.forward.push_back(microseconds(forward));
    pipeline.backward.push_back(microseconds(backward));
    summed = std::max(summed, costs.gradient_bytes(first, last));
  }
  if (faults == Faults::kept) {
    // Slices of as many layers as there are stages (auto_config.py:93).
    summed = 0.0;
    for (int stage = 0; stage < candidate.stages; ++stage) {
      const int first = std::min(stage * candidate.stages, costs.layers());
      const int last = std::min(first + candidate.stages, costs.layers());
      summed = std::max(summed, costs.gradient_bytes(first, last));
    }
  }
  if (candidate.stages > 1) {
    const int sent = faults == Faults::kept ? costs.layers() / candidate.stages : stages.front().last - 1;
    pipeline.send = microseconds(costs.link->send(costs.output(std::max(sent, 0), candidate.micro_batch)));
  }
  const double simulated = simulate_varuna(pipeline, faults);
  if (simulated == 0.0) return 0.0;
  const int all_reduce = microseconds(costs.link->all_reduce(summed, candidate.replicas));
  if (faults == Faults::fixed) return (simulated + all_reduce) / us_per_second;
  return static_cast<double>(static_cast<float>(simulated) + static_cast<float>(all_reduce)) / us_per_second;
}

/// Layers [i q, (i + 1) q) with q = floor(layers / stages).
std::vector<LayerRange> equal_stages(int layers, int stages) {
  std::vector<LayerRange> ranges;
  for (int stage = 0; stage < stages; ++stage)
    ranges.push_back({stage * (layers / stages), (stage + 1) * (layers / stages)});
  return ranges;
}

class Varuna final : public HomogeneousBaseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "varuna"; }
  [[nodiscard]] std::string_view title() const override { return "Varuna"; }
  [[nodiscard]] std::string_view citation() const override { return "Athlur et al., EuroSys 2022"; }
  [[nodiscard]] std::string_view summary() const override {
    return "numbers of stages that divide the layers, each with the largest micro-batch that fits, ranked by an "
           "event-driven simulator; a node is one worker; ignores zones, several GPU types and prices";
  }

  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    const auto uniform = uniform_plan(plan, problem.inputs, title());
    SAILOR_CHECK(uniform);
    const Offer offer{uniform->gpu, uniform->zone, uniform->gpus_per_node, uniform->gpus_per_node};
    const auto costs = varuna_costs(problem, offer, uniform->tensor_parallel);
    SAILOR_CHECK(costs);
    const std::vector<int> known = micro_batches_of(*costs);
    if (std::find(known.begin(), known.end(), uniform->micro_batch) == known.end())
      return fail(
          ErrorCode::not_found,
          fmt::format("the profile has no layer times of {} on {} with micro-batch {} and tensor parallel {}",
                      problem.inputs.model().name, uniform->gpu, uniform->micro_batch, uniform->tensor_parallel),
          "Varuna needs them; profile the model there");
    const Candidate candidate =
        candidate_of(problem, uniform->pipeline_parallel(), uniform->replicas, uniform->micro_batch);
    Estimate estimate;
    const int workers_per_node = std::max(1, uniform->gpus_per_node / uniform->tensor_parallel);
    const double seconds = iteration_time(*costs, candidate, uniform->stages, workers_per_node, problem.faults);
    if (seconds > 0.0) estimate.iteration_time = Seconds(seconds);
    double memory = 0.0;
    for (int stage = 0; stage < candidate.stages; ++stage)
      memory =
          std::max(memory, problem.faults == Faults::kept
                               ? std::floor(costs->published_memory(uniform->stages[stage], candidate.micro_batch) /
                                            uniform->tensor_parallel)
                               : costs->true_memory(uniform->stages[stage], candidate.micro_batch,
                                                    std::min(candidate.micro_batches, candidate.stages - stage)));
    estimate.peak_memory = Bytes(memory);
    return estimate;
  }

 private:
  static Candidate candidate_of(const Problem& problem, int stages, int replicas, int micro_batch) {
    const int batch = problem.job.global_batch;
    const int of_replica = problem.faults == Faults::kept ? batch / replicas : (batch + replicas - 1) / replicas;
    return {stages, replicas, micro_batch, (of_replica + micro_batch - 1) / micro_batch};
  }

  /// The largest micro-batch that fits; std::nullopt if none does, where the artifact ends with a key error.
  static std::optional<Candidate> fitting(const Problem& problem, const Costs& costs, int stages, int replicas) {
    for (const int micro_batch : micro_batches_of(costs)) {
      const Candidate candidate = candidate_of(problem, stages, replicas, micro_batch);
      bool fits = true;
      if (problem.faults == Faults::kept) {
        // The artifact takes the number of stages for the tensor-parallel degree of the whole model
        // (auto_config.py:65).
        const double bytes = std::floor(std::floor(costs.published_memory({0, costs.layers()}, micro_batch)) / stages);
        fits = bytes <= problem.inputs.configured_memory(costs.gpu);
      } else {
        const auto ranges = equal_stages(costs.layers(), stages);
        for (int stage = 0; stage < stages; ++stage)
          fits = fits &&
                 costs.true_memory(ranges[stage], micro_batch, std::min(candidate.micro_batches, stages - stage)) <=
                     problem.inputs.memory(costs.gpu);
      }
      if (fits) return candidate;
    }
    return std::nullopt;
  }

  /// A node is a worker: all its GPUs are a tensor-parallel group, or as many as were measured.
  static int degree_of(const Problem& problem, const Offer& offer) {
    if (problem.faults == Faults::kept) return offer.gpus_per_node;
    int most = 0;
    for (const int degree : problem.inputs.degrees(offer.gpu, 1))
      if (degree <= offer.gpus_per_node && offer.gpus_per_node % degree == 0 && problem.inputs.sizes(degree) != nullptr)
        most = degree;
    return most == 0 ? offer.gpus_per_node : most;
  }

  Result<void> plan_offer(const Problem& problem, const Offer& offer, Proposals& proposals) const override {
    const int degree = degree_of(problem, offer);
    const auto costs = varuna_costs(problem, offer, degree);
    SAILOR_CHECK(costs);
    if (micro_batches_of(*costs).empty())
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no layer times of {} on {} with tensor parallel {}",
                              problem.inputs.model().name, offer.gpu, degree),
                  "Varuna takes a node for one worker and needs them; profile the model at this degree");
    if (!costs->is_measured)
      note(proposals, fmt::format("Varuna's memory of {} is a substitute for the peaks of layers that it measures: 24 "
                                  "bytes per parameter, activations, workspace of the backward pass",
                                  offer.gpu));
    const int nodes = offer.gpus / offer.gpus_per_node;
    const int workers_per_node = offer.gpus_per_node / degree;
    const int workers = nodes * workers_per_node;
    for (const int stages : divisors_of(costs->layers())) {
      if (problem.is_over()) {
        proposals.out_of_time = true;
        break;
      }
      const int replicas = stages <= workers ? std::min(workers / stages, problem.job.global_batch) : 0;
      if (replicas == 0) continue;
      const auto candidate = fitting(problem, *costs, stages, replicas);
      if (!candidate) {
        note(proposals, fmt::format("Varuna with {} stages on {}: no micro-batch fits", stages, offer.gpu));
        continue;
      }
      const double seconds =
          iteration_time(*costs, *candidate, equal_stages(costs->layers(), stages), workers_per_node, problem.faults);
      if (seconds == 0.0) {
        note(proposals,
             fmt::format("Varuna with {} stages on {}: its simulator stalls, and the artifact drops the plan", stages,
                         offer.gpu));
        continue;
      }
      proposals.plans.push_back(proposal_of(problem, offer, *candidate, degree, nodes, seconds));
    }
    return {};
  }

  /// As published, all GPUs of the nodes are replicas without tensor parallelism, although the times are with it.
  static Proposal proposal_of(const Problem& problem, const Offer& offer, const Candidate& candidate, int degree,
                              int nodes, double seconds) {
    const int emitted = problem.faults == Faults::kept ? 1 : degree;
    const int replicas =
        problem.faults == Faults::kept ? nodes * offer.gpus_per_node / candidate.stages : candidate.replicas;
    Proposal proposal;
    proposal.plan = grid_plan(problem.inputs.layers(), candidate.stages, replicas, emitted, candidate.micro_batch,
                              {offer.gpu, offer.gpus_per_node, offer.zone});
    proposal.throughput = 1.0 / seconds;
    proposal.cost = devices_cost(problem.inputs, offer.gpu, replicas * candidate.stages * emitted, seconds);
    return proposal;
  }
};

}  // namespace varuna_detail

const Baseline& varuna() {
  static const varuna_detail::Varuna planner;
  return planner;
}

}  // namespace sailor::planner::baselines
