// AMP (Li et al., NeurIPS 2022) as the Sailor artifact adapts it (baselines/AMP): every
// combination of tensor parallel, data parallel and micro-batch, layers divided evenly, no placement and no memory.
// Compute times are averaged over the GPU types, and every link between nodes is the slowest one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "planner/baselines/homogeneous.hpp"

namespace sailor::planner::baselines {
namespace amp_detail {

constexpr double bytes_per_float = 4.0;
constexpr double start_bandwidth = 500e9;    // bytes/s; of amp_utils.py, before the minimum is taken
constexpr double compute_per_forward = 3.0;  // the backward pass is taken for two forward passes

/// Nodes as AMP counts them: all of one size.
struct Group {
  std::string gpu;
  std::string zone;
  int gpus = 0;
  int gpus_per_node = 0;  ///< as offered
};
struct Nodes {
  std::vector<Group> groups;
  int count = 0;  ///< nodes that are used
  int gpus_per_node = 0;
  double floats_per_second = 0.0;  ///< between nodes

  [[nodiscard]] int gpus() const { return count * gpus_per_node; }
  [[nodiscard]] std::set<std::string> types() const {
    std::set<std::string> names;
    for (const Group& group : groups) names.insert(group.gpu);
    return names;
  }
};

/// Seconds of a forward pass at micro-batch 1 by layer, the mean of the types that have this degree; empty if none has.
std::vector<double> forward_times(const Inputs& inputs, const std::set<std::string>& types, int degree) {
  std::vector<double> mean;
  double known = 0.0;
  for (const std::string& gpu : types) {
    const LayerTimes* times = inputs.times(gpu, 1, degree);
    if (times == nullptr) continue;
    mean.resize(times->forward.size());
    for (std::size_t layer = 0; layer < mean.size(); ++layer) mean[layer] += times->forward[layer];
    ++known;
  }
  for (double& value : mean) value /= known;
  return mean;
}

struct Strategy {
  int tensor_parallel = 1;
  int data_parallel = 1;
  int micro_batch = 1;
  std::vector<LayerRange> stages;
};

/// Iteration time in seconds. Ranks are numbered tensor parallel first, then data parallel, then stages.
double iteration_time(const Strategy& strategy, const std::vector<double>& forward, const LayerSizes& sizes,
                      const Nodes& nodes, int global_batch) {
  const int degree = strategy.tensor_parallel;
  const int replicas = strategy.data_parallel;
  const int stages = static_cast<int>(strategy.stages.size());
  const auto node_of = [&](int tensor_rank, int replica, int stage) {
    return (tensor_rank + degree * (replica + replicas * stage)) / nodes.gpus_per_node;
  };
  double longest = 0.0;
  double compute = 0.0;
  double transfers = 0.0;
  double gradients = 0.0;
  for (int stage = 0; stage < stages; ++stage) {
    const auto [first, last] = strategy.stages[stage];
    double stage_compute = 0.0;
    for (int layer = first; layer < last; ++layer)
      stage_compute += compute_per_forward * strategy.micro_batch * forward[layer];
    longest = std::max(longest, stage_compute);
    compute += stage_compute;

    // The activation crosses once; its gradient is not counted.
    int slow = 0;  // replicas whose activation leaves the node
    if (stage + 1 < stages) {
      for (int replica = 0; replica < replicas; ++replica) {
        bool leaves = false;
        for (int rank = 0; rank < degree; ++rank)
          leaves |= node_of(rank, replica, stage) != node_of(rank, replica, stage + 1);
        slow += leaves ? 1 : 0;
      }
      const double floats = last > 0 ? strategy.micro_batch * sizes.output[last - 1] : 0.0;
      transfers += floats / nodes.floats_per_second * slow / replicas;
    }

    // The published code uses the ring's last link (cost_amp.py:315) where the slowest is meant. The result is the
    // same: a stage's ranks are contiguous, so the first and the last share a node only if all do.
    bool leaves = false;
    for (int rank = 0; rank < degree; ++rank) leaves |= node_of(rank, replicas - 1, stage) != node_of(rank, 0, stage);
    if (leaves)
      gradients = std::max(
          gradients, 2.0 * (replicas - 1) / (replicas * nodes.floats_per_second) * sizes.parameters_of(first, last));
  }
  const double micro_batches = static_cast<double>(global_batch) / replicas / strategy.micro_batch;
  return (micro_batches - 1.0) * longest + transfers + compute + gradients;
}

/// floor(n / stages) layers each, the last stage takes the rest.
std::vector<LayerRange> divide(int layers, int stages) {
  std::vector<LayerRange> ranges;
  for (int stage = 0; stage < stages; ++stage)
    ranges.push_back({stage * (layers / stages), stage + 1 < stages ? (stage + 1) * (layers / stages) : layers});
  return ranges;
}

/// The slowest link between nodes, floats/s.
Result<double> slowest_link(const Inputs& inputs, const std::vector<Group>& groups, Faults faults) {
  double bytes_per_second = start_bandwidth;
  for (const Group& from : groups) {
    const auto link = node_link(inputs, from.gpu, from.zone, from.gpus_per_node, faults);
    SAILOR_CHECK(link);
    bytes_per_second = std::min(bytes_per_second, (*link)->max_bandwidth);
    if (faults == Faults::kept) continue;
    for (const Group& to : groups)  // pairs that were not measured do not count
      if (const LinkCoefficients* between =
              inputs.inter(from.gpu, from.zone, from.gpus_per_node, to.gpu, to.zone, to.gpus_per_node))
        bytes_per_second = std::min(bytes_per_second, between->max_bandwidth);
  }
  return bytes_per_second / bytes_per_float;
}

Result<Nodes> nodes_of(const Problem& problem) {
  Nodes nodes;
  SAILOR_CHECK(check_offers(problem));
  for (const Offer& offer : problem.offers)
    nodes.groups.push_back(
        {offer.gpu, offer.zone, offer.gpus / offer.gpus_per_node * offer.gpus_per_node, offer.gpus_per_node});
  nodes.gpus_per_node = nodes.groups.back().gpus_per_node;
  if (problem.faults == Faults::fixed)
    for (const Group& group : nodes.groups) nodes.gpus_per_node = std::min(nodes.gpus_per_node, group.gpus_per_node);
  for (const Group& group : nodes.groups)
    nodes.count += group.gpus / (problem.faults == Faults::kept ? group.gpus_per_node : nodes.gpus_per_node);
  const auto link = slowest_link(problem.inputs, nodes.groups, problem.faults);
  SAILOR_CHECK(link);
  nodes.floats_per_second = *link;
  return nodes;
}

/// GPUs are assigned type by type, in the order of the offers.
std::optional<Proposal> proposal_of(const Strategy& strategy, const Nodes& nodes, const Problem& problem,
                                    double seconds) {
  Proposal proposal;
  proposal.throughput = 1.0 / seconds;
  proposal.plan.micro_batch = strategy.micro_batch;
  ListPipeline pipeline;
  std::size_t group = 0;
  int left = nodes.groups.front().gpus;
  double price = 0.0;  // USD/h
  for (const LayerRange& layers : strategy.stages) {
    ListStage stage{layers, {}};
    for (int replica = 0; replica < strategy.data_parallel; ++replica) {
      while (left < strategy.tensor_parallel) {
        if (++group == nodes.groups.size()) return std::nullopt;
        left = nodes.groups[group].gpus;
      }
      const Group& from = nodes.groups[group];
      left -= strategy.tensor_parallel;
      price += problem.inputs.price(from.gpu) * strategy.tensor_parallel;
      stage.replicas.push_back({{{from.gpu, from.gpus_per_node, from.zone}}, strategy.tensor_parallel});
    }
    pipeline.stages.push_back(std::move(stage));
  }
  proposal.plan.pipelines.push_back(std::move(pipeline));
  proposal.cost = UsdPerHour(price) * Seconds(seconds);
  return proposal;
}

struct Candidate {
  double seconds = 0.0;
  Strategy strategy;
};

/// Whether each type was measured at this micro-batch and degree. The artifact's evaluator ends with a key error at
/// others, so they are left out unless faults are kept.
bool is_measured(const Inputs& inputs, const std::set<std::string>& types, int micro_batch, int degree) {
  return std::all_of(types.begin(), types.end(), [&](const std::string& gpu) {
    const std::vector<int> degrees = inputs.degrees(gpu, micro_batch);
    return std::find(degrees.begin(), degrees.end(), degree) != degrees.end();
  });
}

class Amp final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "amp"; }
  [[nodiscard]] std::string_view title() const override { return "AMP"; }
  [[nodiscard]] std::string_view citation() const override { return "Li et al., NeurIPS 2022"; }
  [[nodiscard]] std::string_view summary() const override {
    return "every tensor parallel x data parallel x micro-batch with layers divided evenly; ignores memory, "
           "differences "
           "between GPU types, zones and prices";
  }

  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override {
    auto nodes = nodes_of(problem);
    SAILOR_CHECK(nodes);
    const Inputs& inputs = problem.inputs;
    const int batch = problem.job.global_batch;
    Proposals proposals;
    const int offered = nodes->gpus();
    while (nodes->count > 0 && batch % nodes->gpus() != 0) --nodes->count;
    if (nodes->count == 0)
      return fail(
          ErrorCode::infeasible,
          fmt::format("AMP needs a global batch that is a multiple of the GPUs it uses; {} is not a multiple of "
                      "the {} GPUs of a node",
                      batch, nodes->gpus_per_node),
          "use another global batch");
    if (nodes->gpus() < offered)
      proposals.notes.push_back(
          fmt::format("AMP uses {} of {} GPUs: those that divide the global batch", nodes->gpus(), offered));

    std::vector<Candidate> candidates = search(problem, *nodes, proposals.out_of_time);
    // The planner's own order: grouped by micro-batch, then by time; equal ones in the order of the search.
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    int without_devices = 0;
    for (const Candidate& candidate : candidates) {
      auto proposal = proposal_of(candidate.strategy, *nodes, problem, candidate.seconds);
      if (proposal)
        proposals.plans.push_back(std::move(*proposal));
      else
        ++without_devices;
    }
    if (without_devices > 0)
      proposals.notes.push_back(
          fmt::format("{} strategies need tensor-parallel groups over two GPU types", without_devices));
    if (problem.objective == Objective::cost) sort_proposals(proposals.plans, problem.objective);
    if (proposals.plans.empty() && !proposals.out_of_time)
      return fail(ErrorCode::infeasible,
                  fmt::format("AMP has no strategy for {} on {} GPUs", inputs.model().name, nodes->gpus()),
                  "it needs layer times at micro-batch 1 of a tensor-parallel degree that divides the GPUs of a node");
    return proposals;
  }

  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    const auto uniform = uniform_plan(plan, problem.inputs, title(), Differences::gpus);
    SAILOR_CHECK(uniform);
    Nodes nodes;
    std::set<std::string> types;
    for (const ListStage& stage : plan.pipelines.front().stages)
      for (const Replica& replica : stage.replicas)
        for (const Machine& machine : replica.machines)
          if (types.insert(machine.gpu).second)
            nodes.groups.push_back({machine.gpu, machine.zone, 0, machine.gpus_per_node});
    nodes.count = uniform->machines;
    nodes.gpus_per_node = nodes.groups.back().gpus_per_node;
    const auto link = slowest_link(problem.inputs, nodes.groups, problem.faults);
    SAILOR_CHECK(link);
    nodes.floats_per_second = *link;
    const int degree = uniform->tensor_parallel;
    const std::vector<double> forward = forward_times(problem.inputs, types, degree);
    const LayerSizes* sizes = problem.inputs.sizes(degree);
    if (forward.empty() || sizes == nullptr)
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no {} of {} with tensor parallel {}",
                              forward.empty() ? "layer times at micro-batch 1" : "layer sizes",
                              problem.inputs.model().name, degree),
                  "AMP needs them; profile the model at this degree");
    const Strategy strategy{degree, uniform->replicas, uniform->micro_batch, uniform->stages};
    return Estimate{Seconds(iteration_time(strategy, forward, *sizes, nodes, problem.job.global_batch)), std::nullopt};
  }

 private:
  /// In the order of the artifact: by micro-batch as they first come, then tensor parallel, then data parallel.
  static std::vector<Candidate> search(const Problem& problem, const Nodes& nodes, bool& out_of_time) {
    const Inputs& inputs = problem.inputs;
    const int batch = problem.job.global_batch;
    const std::set<std::string> types = nodes.types();
    std::vector<Candidate> candidates;
    for (const int micro_batch : divisors_of(batch))
      for (const int degree : divisors_of(nodes.gpus_per_node)) {
        const std::vector<double> forward = forward_times(inputs, types, degree);
        const LayerSizes* sizes = inputs.sizes(degree);
        if (forward.empty() || sizes == nullptr) continue;
        if (problem.faults == Faults::fixed && !is_measured(inputs, types, micro_batch, degree)) continue;
        for (const int replicas : divisors_of(nodes.gpus() / degree)) {
          if (batch % (replicas * micro_batch) != 0) continue;
          const int stages = nodes.gpus() / (degree * replicas);
          if (stages > inputs.layers()) continue;
          if (problem.is_over()) {
            out_of_time = true;
            return candidates;
          }
          Strategy strategy{degree, replicas, micro_batch, divide(inputs.layers(), stages)};
          const double seconds = iteration_time(strategy, forward, *sizes, nodes, batch);
          candidates.push_back({seconds, std::move(strategy)});
        }
      }
    return candidates;
  }
};

}  // namespace amp_detail

const Baseline& amp() {
  static const amp_detail::Amp planner;
  return planner;
}

}  // namespace sailor::planner::baselines
