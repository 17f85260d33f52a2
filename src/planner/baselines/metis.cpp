// Metis: device groups for the stages, then data and tensor parallelism of each, then layers in proportion to speed.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/text.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/baselines/harness.hpp"
#include "planner/baselines/metis_model.hpp"
#include "planner/baselines/metis_search.hpp"
#include "planner/baselines/offered_nodes.hpp"

namespace sailor::planner::baselines {

namespace metis_detail {

/// Max number of proposals, which are many and large; the rest is counted.
constexpr std::size_t max_proposals = 1000;

/// The artifact's constructor loads these two, whatever the cluster has.
const std::vector<std::string> artifact_gpus_of_metis{"A100-40", "V100-16"};

Proposal proposal_of(const Found& found, const Ranks& ranks, const std::vector<OfferedNodes>& nodes,
                     const Problem& problem) {
  const bool kept = problem.faults == Faults::kept;
  Proposal proposal;
  proposal.plan.micro_batch =
      problem.job.global_batch / (found.plan.batches * found.plan.strategies.front().data_parallel);
  ListPipeline& pipeline = proposal.plan.pipelines.emplace_back();
  double usd_per_s = 0.0;
  int rank = 0;
  for (std::size_t stage = 0; stage < found.plan.groups.size(); ++stage) {
    const Strategy strategy = found.plan.strategies[stage];
    ListStage& list = pipeline.stages.emplace_back();
    list.layers = {found.plan.boundaries[stage], found.plan.boundaries[stage + 1]};
    for (int i = 0; i < strategy.data_parallel; ++i) {
      Replica& replica = list.replicas.emplace_back();
      replica.tensor_parallel = strategy.tensor_parallel;
      for (int j = 0; j < strategy.tensor_parallel; ++j, ++rank) {
        const OfferedNodes& offer = nodes[ranks.offer[rank]];
        // The artifact lists the machine of every GPU, and pays for it as if all of it were used.
        if (kept || j == 0 || ranks.node[rank] != ranks.node[rank - 1])
          replica.machines.push_back({offer.gpu, offer.gpus_per_node, offer.zone});
        usd_per_s += problem.inputs.price(offer.gpu) / 3600.0 * (kept ? offer.gpus_per_node : 1);
      }
    }
  }
  // The artifact takes milliseconds for seconds.
  const double seconds = kept ? found.ms : found.ms / 1000.0;
  proposal.throughput = 1.0 / seconds;
  proposal.cost = Usd(usd_per_s * seconds);
  return proposal;
}

class Metis final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "metis"; }
  [[nodiscard]] std::string_view title() const override { return "Metis"; }
  [[nodiscard]] std::string_view citation() const override { return "Um et al., USENIX ATC 2024"; }
  [[nodiscard]] std::string_view summary() const override {
    return "stages of unlike GPU types and sizes, layers by speed; ignores message sizes, prices, zones and most of "
           "memory";
  }
  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override;
  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override;
};

Result<Proposals> Metis::plan(const Problem& problem) const {
  const bool kept = problem.faults == Faults::kept;
  auto nodes = offered_nodes(problem.offers);
  SAILOR_CHECK(nodes);
  // "Works only with powers of 2": 20 A100 nodes identify the second input of figures 7 and 8b.
  const bool is_cut = kept && std::any_of(nodes->begin(), nodes->end(), [](const OfferedNodes& offered) {
                        return offered.gpu == "A100-40" && offered.nodes == 20;
                      });
  std::vector<std::string> measured;
  if (kept)
    for (const std::string& gpu : artifact_gpus_of_metis)
      if (!problem.inputs.micro_batches(gpu).empty()) measured.push_back(gpu);
  for (OfferedNodes& offered : *nodes) {
    if (is_cut) offered.nodes = 16;
    if (std::find(measured.begin(), measured.end(), offered.gpu) == measured.end()) measured.push_back(offered.gpu);
  }
  const auto tables = Tables::build(problem.inputs, problem.job.global_batch, problem.job.sequence_length, *nodes,
                                    measured, measured.front(), problem.faults);
  SAILOR_CHECK(tables);
  if (tables->max_micro_batch() < 1 || tables->layer_shares().empty())
    return fail(ErrorCode::not_found,
                fmt::format("the profile lacks times of {} without tensor parallelism on one of {}",
                            problem.inputs.model().name, join(measured, ", ")),
                "Metis needs them at micro-batch 1");
  const std::vector<std::vector<int>> sequences = sequences_of(*tables, problem);
  SearchResult search = search_plans(problem, *tables, sequences);

  std::erase_if(search.found, [&](const Found& found) {
    const std::vector<int>& boundaries = found.plan.boundaries;
    return std::adjacent_find(boundaries.begin(), boundaries.end()) != boundaries.end() ||
           (!kept && boundaries.back() != problem.inputs.layers());
  });
  std::stable_sort(search.found.begin(), search.found.end(),
                   [](const Found& a, const Found& b) { return a.ms < b.ms; });
  Proposals proposals;
  proposals.out_of_time = search.out_of_time;
  std::vector<Ranks> ranks;
  for (const std::vector<int>& sequence : sequences) ranks.push_back(tables->ranks(sequence));
  for (const Found& found : search.found) {
    if (proposals.plans.size() == max_proposals) break;
    proposals.plans.push_back(proposal_of(found, ranks[found.sequence], *nodes, problem));
  }
  if (!kept && problem.objective == Objective::cost)
    std::stable_sort(proposals.plans.begin(), proposals.plans.end(),
                     [](const Proposal& a, const Proposal& b) { return *a.cost < *b.cost; });
  if (search.found.size() > max_proposals)
    proposals.notes.push_back(fmt::format("of {} plans the {} that it expects to be the fastest are listed",
                                          search.found.size(), max_proposals));
  if (search.work_limit_hit > 0)
    proposals.notes.push_back(
        fmt::format("the search ended after {} candidates (its work limit)", search.work_limit_hit));
  if (search.uncosted > 0)
    proposals.notes.push_back(fmt::format("{} plans have times that were not measured", search.uncosted));
  if (is_cut) proposals.notes.emplace_back("16 nodes of every type are used, as the artifact does with 20 A100 nodes");
  if (proposals.plans.empty() && !search.out_of_time)
    return fail(
        ErrorCode::infeasible,
        fmt::format("Metis has no plan for {} GPUs and a batch of {}", ranks.front().size(), problem.job.global_batch),
        "it divides GPUs into powers of two, and the batch among all of a stage");
  return proposals;
}

Result<Estimate> Metis::estimate(const PlanList& plan, const Problem& problem) const {
  auto validated = validated_plan(plan);
  SAILOR_CHECK(validated);
  auto nodes = offered_nodes(offers_of(plan));
  SAILOR_CHECK(nodes);
  const int stages = static_cast<int>(validated->layers.size());
  const Strategy strategy{validated->data_parallel, validated->tensor_parallel};
  std::vector<std::string> measured;
  for (const OfferedNodes& offered : *nodes) measured.push_back(offered.gpu);
  // The artifact's loader takes the optimizer's time of the first folder that it finds.
  const std::string& gpu = measured.front();
  const auto tables = Tables::build(problem.inputs, problem.job.global_batch, problem.job.sequence_length, *nodes,
                                    measured, problem.faults == Faults::kept ? "A100-80" : gpu, problem.faults);
  SAILOR_CHECK(tables);
  std::vector<int> sequence(tables->types().size());
  std::iota(sequence.begin(), sequence.end(), 0);
  const Ranks ranks = tables->ranks(sequence);
  Arrangement arrangement{.batches = problem.job.global_batch / (plan.micro_batch * strategy.data_parallel)};
  double memory_mb = 0.0;
  for (const LayerRange& layers : validated->layers) {
    arrangement.groups.push_back(strategy.data_parallel * strategy.tensor_parallel);
    arrangement.strategies.push_back(strategy);
    arrangement.boundaries.push_back(layers.first);
    const auto memory = tables->memory(strategy.tensor_parallel, plan.micro_batch, layers.first, layers.last);
    if (!memory)
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no layer sizes with tensor parallel {}", strategy.tensor_parallel));
    memory_mb = std::max(memory_mb, 0.001 + *memory);
  }
  arrangement.boundaries.push_back(problem.inputs.layers());
  if (arrangement.batches == 0 || stages * arrangement.groups.front() > ranks.size())
    return fail(ErrorCode::invalid_input,
                arrangement.batches == 0
                    ? fmt::format("{} replicas with micro-batches of {} need more than the batch of {}",
                                  strategy.data_parallel, plan.micro_batch, problem.job.global_batch)
                    : fmt::format("the plan's machines have {} GPUs, and its stages use {}", ranks.size(),
                                  stages * arrangement.groups.front()));
  const auto ms = tables->cost(arrangement, ranks, stages, true);
  if (!ms)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no times of {} with tensor parallel {} and micro-batch {}", gpu,
                            strategy.tensor_parallel, plan.micro_batch));
  return Estimate{.iteration_time = Seconds(*ms / 1000.0), .peak_memory = Bytes(memory_mb * mib.value())};
}

}  // namespace metis_detail

const Baseline& metis() {
  static const metis_detail::Metis planner;
  return planner;
}

}  // namespace sailor::planner::baselines
