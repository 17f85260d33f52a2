// FlashFlex (HexiScale): devices are divided among pipelines by graph partitioning, each pipeline's among its stages.
// Its cost model is analytical; micro-batches have one sequence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "planner/baselines/baseline.hpp"
#include "planner/baselines/flashflex_cost.hpp"
#include "planner/baselines/flashflex_partition.hpp"
#include "planner/baselines/harness.hpp"
#include "planner/baselines/offered_nodes.hpp"

namespace sailor::planner::baselines {

namespace flashflex_detail {

/// The seed that src/globals.py gives numpy's generator.
constexpr std::uint32_t published_seed = 40404;
/// Min devices per pipeline, on average.
constexpr int devices_per_pipeline = 5;

struct Candidate {
  std::vector<Pipeline> pipelines;
  double seconds = 0.0;
  double usd_per_s = 0.0;
};

/// Pipelines of the devices, one for each entry of `parts`; empty if a pipeline does not fit.
Result<std::vector<Pipeline>> pipelines_of(const std::vector<int>& parts, const Devices& devices, const Shape& shape,
                                           Faults faults) {
  std::vector<Pipeline> pipelines;
  Graph all;
  for (const Device& device : devices.list) all.vertices.push_back(std::round(device.flop_per_s));
  // Fast links are cheap to cut: the weight is the time of a message of 1e10 bytes.
  all.edge = [&](int from, int to) { return 1e10 / devices.between(from, to); };
  auto part_of = partition(all, static_cast<int>(parts.size()));
  SAILOR_CHECK(part_of);
  if (*std::max_element(part_of->begin(), part_of->end()) + 1 != static_cast<int>(parts.size())) return pipelines;
  for (std::size_t number = 0; number < parts.size(); ++number) {
    std::vector<int> members;
    for (int device = 0; device < devices.size(); ++device)
      if ((*part_of)[device] == static_cast<int>(number)) members.push_back(device);
    Graph inner;
    for (const int device : members) inner.vertices.push_back(std::round(devices.list[device].flop_per_s));
    inner.edge = [&](int from, int to) { return devices.between(members[from], members[to]); };
    auto inner_part_of = partition(inner, parts[number]);
    SAILOR_CHECK(inner_part_of);
    std::vector<std::vector<int>> inner_parts(*std::max_element(inner_part_of->begin(), inner_part_of->end()) + 1);
    for (std::size_t i = 0; i < members.size(); ++i) inner_parts[(*inner_part_of)[i]].push_back(members[i]);
    const auto link = [&](int from, int to) {
      double sum = 0.0;
      for (const int a : inner_parts[from])
        for (const int b : inner_parts[to]) sum += std::round(devices.between(a, b));
      return sum;
    };
    std::vector<std::vector<int>> ordered;
    for (const int part : order_of_parts(static_cast<int>(inner_parts.size()), link, faults))
      ordered.push_back(inner_parts[part]);
    auto stages = groups_of(ordered, shape, devices, faults);
    SAILOR_CHECK(stages);
    Pipeline pipeline{.stages = *stages, .layers = layers_of(*stages, shape, devices)};
    if (pipeline.layers.empty()) return std::vector<Pipeline>{};
    pipelines.push_back(std::move(pipeline));
  }
  return pipelines;
}

/// The embedding joins the first stage, the layers after the transformer layers join the last.
ListPipeline list_pipeline(const Pipeline& pipeline, const Devices& devices, const Inputs& inputs, Faults faults) {
  ListPipeline list;
  int first = 0;
  for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
    const bool is_last = i + 1 == pipeline.stages.size();
    const int last = is_last ? inputs.layers() : first + pipeline.layers[i] + (i == 0 ? 1 : 0);
    Replica replica{.machines = {}, .tensor_parallel = static_cast<int>(pipeline.stages[i].size())};
    int node = -1;
    for (const int index : pipeline.stages[i]) {
      const Device& device = devices.list[index];
      // The artifact lists a machine for every device, which its evaluator counts as that many machines.
      if (faults == Faults::kept || device.node != node)
        replica.machines.push_back({device.gpu, device.gpus_per_node, device.zone});
      node = device.node;
    }
    list.stages.push_back({.layers = {first, last}, .replicas = {std::move(replica)}});
    first = last;
  }
  return list;
}

Shape shape_of(const Problem& problem) {
  const Model& model = problem.inputs.model();
  return {.hidden = static_cast<double>(model.hidden),
          .sequence = static_cast<double>(problem.job.sequence_length),
          .vocabulary = vocabulary(problem.inputs, problem.faults),
          .layers = problem.inputs.blocks()};
}

class FlashFlex final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "flashflex"; }
  [[nodiscard]] std::string_view title() const override { return "FlashFlex"; }
  [[nodiscard]] std::string_view citation() const override { return "Yan et al., arXiv 2409.01143, 2024"; }
  [[nodiscard]] std::string_view summary() const override {
    return "pipelines of unlike devices and lengths by graph partitioning (needs METIS); micro-batches of one "
           "sequence; "
           "ignores profiles, zones and prices";
  }
  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override;
  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override;
};

Result<Proposals> FlashFlex::plan(const Problem& problem) const {
  if (!has_graph_partitioning()) return tl::unexpected(partition({}, 0).error());
  auto nodes = offered_nodes(problem.offers);
  SAILOR_CHECK(nodes);
  auto devices = list_devices(*nodes, problem.inputs, problem.faults);
  SAILOR_CHECK(devices);
  Shape shape = shape_of(problem);
  NumbersOfParts numbers(published_seed + static_cast<std::uint32_t>(problem.seed));
  numbers.draw();  // the artifact draws one when it builds its configuration
  Proposals proposals;
  std::vector<Candidate> candidates;
  std::vector<int> left_out;
  for (int count = 1; count <= devices->size() / devices_per_pipeline; ++count) {
    if (problem.is_over()) {
      proposals.out_of_time = true;
      break;
    }
    std::vector<int> parts;
    for (int i = 0; i < count; ++i) parts.push_back(numbers.draw());
    shape.micro_batches = problem.job.global_batch / count;
    if (shape.micro_batches == 0) break;
    auto pipelines = pipelines_of(parts, *devices, shape, problem.faults);
    SAILOR_CHECK(pipelines);
    const bool has_empty_stage = std::any_of(pipelines->begin(), pipelines->end(), [](const Pipeline& pipeline) {
      return std::find(pipeline.layers.begin(), pipeline.layers.end(), 0) != pipeline.layers.end();
    });
    if (pipelines->empty() || has_empty_stage) {
      left_out.push_back(count);
      continue;
    }
    Candidate candidate{.pipelines = std::move(*pipelines)};
    candidate.seconds = iteration_time(candidate.pipelines, shape, *devices);
    for (const Device& device : devices->list) candidate.usd_per_s += problem.inputs.price(device.gpu) / 3600.0;
    candidates.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  // The harness creates FlashFlex without the objective; all plans use all devices, so that the order is the same.
  for (const Candidate& candidate : candidates) {
    Proposal proposal;
    for (const Pipeline& pipeline : candidate.pipelines)
      proposal.plan.pipelines.push_back(list_pipeline(pipeline, *devices, problem.inputs, problem.faults));
    proposal.throughput = 1.0 / candidate.seconds;
    proposal.cost = Usd(candidate.usd_per_s * candidate.seconds);
    proposals.plans.push_back(std::move(proposal));
  }
  if (!left_out.empty())
    proposals.notes.push_back(
        fmt::format("{} numbers of pipelines are left out, the first of them {}: a pipeline without devices, a stage "
                    "without layers, or one that does not fit",
                    left_out.size(), left_out.front()));
  if (problem.faults == Faults::kept && !has_published_partitions())
    proposals.notes.emplace_back(
        "the METIS library has integers of 32 bits, with which partitions differ from the artifact's; METIS_HOME may "
        "name one with 64");
  if (proposals.plans.empty() && !proposals.out_of_time)
    return fail(
        ErrorCode::infeasible,
        fmt::format("FlashFlex has no plan for {} GPUs: it wants 5 for each pipeline, and none of its pipelines "
                    "fits",
                    devices->size()));
  return proposals;
}

Result<Estimate> FlashFlex::estimate(const PlanList& plan, const Problem& problem) const {
  auto validated = validated_plan(plan);
  SAILOR_CHECK(validated);
  auto nodes = offered_nodes(offers_of(plan));
  SAILOR_CHECK(nodes);
  auto devices = list_devices(*nodes, problem.inputs, problem.faults);
  SAILOR_CHECK(devices);
  Shape shape = shape_of(problem);
  shape.micro_batch = plan.micro_batch;
  shape.micro_batches = problem.job.global_batch / (plan.micro_batch * validated->data_parallel);
  const int degree = validated->tensor_parallel;
  const int stages = static_cast<int>(validated->layers.size());
  // Devices are assigned by type, in their order.
  std::map<std::string, int> next;
  for (int device = devices->size(); device-- > 0;) next[devices->list[device].gpu] = device;
  std::vector<Pipeline> pipelines;
  double memory = 0.0;
  for (int replica = 0; replica < validated->data_parallel; ++replica) {
    Pipeline& pipeline = pipelines.emplace_back();
    for (int stage = 0; stage < stages; ++stage) {
      int& first = next[validated->gpus[stage][replica]];
      if (first + degree > devices->size())
        return fail(ErrorCode::invalid_input, fmt::format("the plan's machines have fewer GPUs than its {} stages use",
                                                          stages * validated->data_parallel));
      std::vector<int>& group = pipeline.stages.emplace_back();
      for (int i = 0; i < degree; ++i) group.push_back(first++);
      const LayerRange& layers = validated->layers[stage];
      // The artifact counts the embedding and the head as transformer layers, and divides memory by the number of
      // stages where it means the tensor parallelism.
      const bool kept = problem.faults == Faults::kept;
      const int blocks = std::min(layers.last, 1 + problem.inputs.blocks()) - std::max(layers.first, 1);
      pipeline.layers.push_back(kept ? layers.size() : std::max(0, blocks));
      memory = std::max(
          memory, stage_memory(pipeline.layers.back(), kept ? stages : degree, stage == 0, stage + 1 == stages, shape));
    }
  }
  return Estimate{.iteration_time = Seconds(iteration_time(pipelines, shape, *devices)),
                  .peak_memory = Bytes(memory * gib.value())};
}

}  // namespace flashflex_detail

const Baseline& flashflex() {
  static const flashflex_detail::FlashFlex planner;
  return planner;
}

}  // namespace sailor::planner::baselines
