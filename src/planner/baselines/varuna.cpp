// Varuna (Athlur et al., EuroSys 2022) as the Sailor artifact adapts it (baselines/Varuna, BASELINES.md section 4): a
// node is one worker of a pipeline, the layers are divided evenly, the micro-batch is the largest that fits, and an
// event-driven simulator ranks the numbers of stages.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "planner/baselines/homogeneous.hpp"
#include "planner/baselines/varuna_simulator.hpp"

namespace sailor::planner::baselines {
namespace varuna_detail {

constexpr double bytes_per_float = 4.0;
constexpr double state_bytes = 24.0;  // per parameter: Adam 8, weight, gradient, communication and a copy 4 each
constexpr double us_per_second = 1e6;
constexpr int stages_per_node = 4;  // GPUS_PER_VM of the published simulator, although each worker is a node

/// `mem_required` of the artifact's profile_4.json for OPT-350 (baselines/Varuna/profiles): the peak of forward,
/// backward and optimizer step of one layer alone with tensor parallel 4, in bytes, by micro-batch 1, 2, 4, 8.
using PeakBytes = std::array<double, 4>;
constexpr const char* measured_model = "opt-350m-sailor";
constexpr int measured_degree = 4;
constexpr int most_measured = 8;
constexpr PeakBytes embedding_peak{292813004.8, 351132723.2, 450602752.0, 656296960.0};
constexpr PeakBytes block_peak{390031974.4, 708840038.4, 1346456166.4, 2622514176.0};
constexpr PeakBytes head_peak{610759270.4, 1030582886.4, 1890706841.6, 3610954752.0};

/// What Varuna reads of one GPU type, one tensor-parallel degree.
struct Tables {
  const Inputs& inputs;
  std::string gpu;
  int tensor_parallel = 1;
  const LayerSizes* sizes = nullptr;
  const LinkCoefficients* link = nullptr;
  int sequence_length = 0;
  bool is_measured = false;  ///< peaks are the artifact's; else a substitute

  [[nodiscard]] int layers() const { return inputs.layers(); }
  [[nodiscard]] const LayerTimes* times(int micro_batch) const {
    return inputs.times(gpu, micro_batch, tensor_parallel);
  }
  /// Bytes that one rank sends on.
  [[nodiscard]] double output(int layer, int micro_batch) const {
    return bytes_per_float * sizes->output[layer] * micro_batch / tensor_parallel;
  }
  /// Bytes besides states and kept activations while the backward pass of a layer runs. Substitute: the scores of
  /// attention, their gradient and that of the softmax, and the gradient of the output; other layers two outputs. It is
  /// within 3 % of what the artifact measured of OPT-350's blocks and head at micro-batch 8.
  [[nodiscard]] double workspace(int layer, int micro_batch) const {
    constexpr double score_matrices = 3.0;
    const double output_floats = sizes->output[layer];
    if (inputs.model().layer_kind(layer) != LayerKind::block)
      return bytes_per_float * micro_batch * 2.0 * output_floats;
    const double scores = static_cast<double>(inputs.model().attention_heads) * sequence_length * sequence_length;
    return bytes_per_float * micro_batch * (score_matrices * scores / tensor_parallel + output_floats);
  }
  /// `mem_required`: of a layer that trains alone.
  [[nodiscard]] double peak(int layer, int micro_batch) const {
    if (is_measured) {
      const auto index = static_cast<std::size_t>(std::log2(micro_batch));
      return (layer == 0 ? embedding_peak : layer + 1 == layers() ? head_peak : block_peak)[index];
    }
    return state_bytes * sizes->parameters[layer] + bytes_per_float * micro_batch * sizes->activation[layer] +
           workspace(layer, micro_batch);
  }
  /// As Varuna adds up a stage: peaks without outputs, but for the last one's.
  [[nodiscard]] double published_memory(const LayerRange& range, int micro_batch) const {
    double bytes = range.first < range.last ? output(range.last - 1, micro_batch) : 0.0;
    for (int layer = range.first; layer < range.last; ++layer)
      bytes += peak(layer, micro_batch) - output(layer, micro_batch);
    return bytes;
  }
  /// States, the activations of micro-batches in flight, and the largest workspace of a layer.
  [[nodiscard]] double true_memory(const LayerRange& range, int micro_batch, int in_flight) const {
    double bytes = 0.0;
    double largest = 0.0;
    for (int layer = range.first; layer < range.last; ++layer) {
      bytes +=
          state_bytes * sizes->parameters[layer] + bytes_per_float * micro_batch * in_flight * sizes->activation[layer];
      largest = std::max(largest, workspace(layer, micro_batch));
    }
    return bytes + largest;
  }
};

Result<Tables> tables_of(const Problem& problem, const Offer& offer, int tensor_parallel) {
  Tables tables{problem.inputs, offer.gpu, tensor_parallel};
  tables.sizes = problem.inputs.sizes(tensor_parallel);
  if (tables.sizes == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no layer sizes of {} with tensor parallel {}", problem.inputs.model().name,
                            tensor_parallel),
                "Varuna takes a node for one worker and needs them; profile the model at this degree");
  const auto link = node_link(problem.inputs, offer.gpu, offer.zone, offer.gpus_per_node, problem.faults);
  SAILOR_CHECK(link);
  tables.link = *link;
  tables.sequence_length = problem.job.sequence_length;
  tables.is_measured = problem.faults == Faults::kept && problem.inputs.model().name == measured_model &&
                       tensor_parallel == measured_degree;
  return tables;
}

/// Micro-batches that Varuna tries, the largest first.
std::vector<int> micro_batches_of(const Tables& tables) {
  std::vector<int> sizes;
  for (int size : tables.inputs.micro_batches(tables.gpu)) {
    const std::vector<int> degrees = tables.inputs.degrees(tables.gpu, size);
    const bool is_power = (size & (size - 1)) == 0;
    if (is_power && (!tables.is_measured || size <= most_measured) &&
        std::find(degrees.begin(), degrees.end(), tables.tensor_parallel) != degrees.end())
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

/// Seconds of an iteration, 0: the published simulator stalls.
double iteration_time(const Tables& tables, const Candidate& candidate, const std::vector<LayerRange>& stages,
                      int workers_per_node, Faults faults) {
  const LayerTimes& times = *tables.times(candidate.micro_batch);
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
    summed = std::max(summed, bytes_per_float * tables.sizes->parameters_of(first, last));
  }
  if (faults == Faults::kept) {
    // Slices of as many layers as there are stages (auto_config.py:93).
    summed = 0.0;
    for (int stage = 0; stage < candidate.stages; ++stage) {
      const int first = std::min(stage * candidate.stages, tables.layers());
      const int last = std::min(first + candidate.stages, tables.layers());
      summed = std::max(summed, bytes_per_float * tables.sizes->parameters_of(first, last));
    }
  }
  if (candidate.stages > 1) {
    const int sent = faults == Faults::kept ? tables.layers() / candidate.stages : stages.front().last - 1;
    pipeline.send = microseconds(tables.link->send(tables.output(std::max(sent, 0), candidate.micro_batch)));
  }
  const double simulated = simulate_varuna(pipeline, faults);
  if (simulated == 0.0) return 0.0;
  const int all_reduce = microseconds(tables.link->all_reduce(summed, candidate.replicas));
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

class Varuna final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "varuna"; }
  [[nodiscard]] std::string_view title() const override { return "Varuna"; }
  [[nodiscard]] std::string_view citation() const override { return "Athlur et al., EuroSys 2022"; }
  [[nodiscard]] std::string_view summary() const override {
    return "numbers of stages that divide the layers, each with the largest micro-batch that fits, ranked by an "
           "event-driven simulator; a node is one worker; ignores zones, several GPU types and prices";
  }

  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override {
    const auto offer = only_offer(problem, title());
    SAILOR_CHECK(offer);
    Proposals proposals;
    SAILOR_CHECK(plan_offer(problem, *offer, proposals));
    return sorted_proposals(std::move(proposals), problem, title());
  }

  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    const auto uniform = uniform_plan(plan, problem.inputs, title());
    SAILOR_CHECK(uniform);
    const Offer offer{uniform->gpu, uniform->zone, uniform->gpus_per_node, uniform->gpus_per_node};
    const auto tables = tables_of(problem, offer, uniform->tensor_parallel);
    SAILOR_CHECK(tables);
    const std::vector<int> known = micro_batches_of(*tables);
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
    const double seconds = iteration_time(*tables, candidate, uniform->stages, workers_per_node, problem.faults);
    if (seconds > 0.0) estimate.iteration_time = Seconds(seconds);
    double memory = 0.0;
    for (int stage = 0; stage < candidate.stages; ++stage)
      memory =
          std::max(memory, problem.faults == Faults::kept
                               ? std::floor(tables->published_memory(uniform->stages[stage], candidate.micro_batch) /
                                            uniform->tensor_parallel)
                               : tables->true_memory(uniform->stages[stage], candidate.micro_batch,
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

  /// The largest micro-batch that fits; nothing: none does, at which the artifact ends with a key error.
  static std::optional<Candidate> fitting(const Problem& problem, const Tables& tables, int stages, int replicas) {
    for (const int micro_batch : micro_batches_of(tables)) {
      const Candidate candidate = candidate_of(problem, stages, replicas, micro_batch);
      bool fits = true;
      if (problem.faults == Faults::kept) {
        // The number of stages is taken for the tensor-parallel degree of the whole model (auto_config.py:65).
        const double bytes =
            std::floor(std::floor(tables.published_memory({0, tables.layers()}, micro_batch)) / stages);
        fits = bytes <= problem.inputs.configured_memory(tables.gpu);
      } else {
        const auto ranges = equal_stages(tables.layers(), stages);
        for (int stage = 0; stage < stages; ++stage)
          fits = fits &&
                 tables.true_memory(ranges[stage], micro_batch, std::min(candidate.micro_batches, stages - stage)) <=
                     problem.inputs.memory(tables.gpu);
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

  static Result<void> plan_offer(const Problem& problem, const Offer& offer, Proposals& proposals) {
    const int degree = degree_of(problem, offer);
    const auto tables = tables_of(problem, offer, degree);
    SAILOR_CHECK(tables);
    if (micro_batches_of(*tables).empty())
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no layer times of {} on {} with tensor parallel {}",
                              problem.inputs.model().name, offer.gpu, degree),
                  "Varuna takes a node for one worker and needs them; profile the model at this degree");
    if (!tables->is_measured)
      note(
          proposals,
          fmt::format("Varuna's memory of {} is a substitute: 24 bytes per parameter, activations and the workspace of "
                      "the backward "
                      "pass; the original measures the peak of each layer",
                      offer.gpu));
    const int nodes = offer.gpus / offer.gpus_per_node;
    const int workers_per_node = offer.gpus_per_node / degree;
    const int workers = nodes * workers_per_node;
    for (const int stages : divisors_of(tables->layers())) {
      if (problem.is_over()) {
        proposals.out_of_time = true;
        break;
      }
      const int replicas = stages <= workers ? std::min(workers / stages, problem.job.global_batch) : 0;
      if (replicas == 0) continue;
      const auto candidate = fitting(problem, *tables, stages, replicas);
      if (!candidate) {
        note(proposals, fmt::format("Varuna with {} stages on {}: no micro-batch fits", stages, offer.gpu));
        continue;
      }
      const double seconds =
          iteration_time(*tables, *candidate, equal_stages(tables->layers(), stages), workers_per_node, problem.faults);
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

  /// As published all GPUs of the nodes are replicas without tensor parallelism, which the times are not of.
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
