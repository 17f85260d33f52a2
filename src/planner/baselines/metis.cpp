// Metis: device groups for the stages, then data and tensor parallelism of each, then layers in proportion to speed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "planner/baselines/baseline.hpp"
#include "planner/baselines/harness.hpp"
#include "planner/baselines/metis_balancer.hpp"
#include "planner/baselines/metis_groups.hpp"
#include "planner/baselines/metis_model.hpp"
#include "planner/baselines/offered_nodes.hpp"

namespace sailor::planner::baselines {

namespace metis_detail {

/// Sizes of stages with a number of micro-batches, and strategies that layers were balanced for, in place of the
/// artifact's 300 s. Its figures come out with anything from a hundredth of this.
constexpr std::uint64_t default_work = 300'000;
/// Proposals are many and large; the rest is counted.
constexpr std::size_t max_proposals = 1000;
constexpr int max_attempts = 3;
constexpr double memory_factor = 5.0;

struct Found {
  Arrangement plan;
  std::size_t sequence = 0;
  double ms = 0.0;
};

/// The artifact's constructor loads these two, whatever the cluster has.
const std::vector<std::string> artifact_gpus_of_metis{"A100-40", "V100-16"};

class Search {
 public:
  Search(const Problem& problem, const Tables& tables, std::vector<std::vector<int>> sequences)
      : problem_(problem),
        tables_(tables),
        sequences_(std::move(sequences)),
        work_limit_(problem.work_limit > 0 ? problem.work_limit : default_work) {}

  void run() {
    for (std::size_t sequence = 0; sequence < sequences_.size() && !is_over_; ++sequence) {
      sequence_ = sequence;
      ranks_ = tables_.ranks(sequences_[sequence]);
      const int max_stages = std::min(ranks_.size(), problem_.inputs.blocks());
      // From the second sequence on the artifact has the groups of two stages (or the next that there are) where it
      // means one, and counts the first of them only.
      if (sequence > 0 && problem_.faults == Faults::kept) {
        bool has_groups = false;
        for (int stages = 2; stages <= max_stages && !has_groups && !is_over_; ++stages)
          visit_device_groups(ranks_.size(), stages, [&](const std::vector<int>& groups) {
            has_groups = true;
            return visit_batches(groups, 1);
          });
      }
      for (int stages = sequence > 0 && problem_.faults == Faults::kept ? 2 : 1; stages <= max_stages && !is_over_;
           ++stages)
        visit_device_groups(ranks_.size(), stages,
                            [&](const std::vector<int>& groups) { return visit_batches(groups, stages); });
    }
  }

  std::vector<Found> found;
  std::size_t uncosted = 0;  ///< plans with times that were not measured
  std::uint64_t work = 0;
  bool out_of_time = false;
  [[nodiscard]] std::uint64_t work_limit() const { return work_limit_; }

 private:
  bool visit_batches(const std::vector<int>& groups, int counted) {
    capacity_.clear();
    int rank = 0;
    for (const int group : groups) {
      double sum = 0.0;
      for (int i = 0; i < group; ++i, ++rank) sum += tables_.types()[ranks_.type[rank]].memory_mb;
      capacity_.push_back(sum);
    }
    for (int batches = tables_.global_batch(); batches >= 1; --batches) {
      if (tables_.global_batch() % batches != 0) continue;
      out_of_time = problem_.is_over();
      is_over_ = ++work > work_limit_ || out_of_time;
      if (!is_over_) visit_strategies(groups, batches, counted);
      if (is_over_) return false;
    }
    return true;
  }

  [[nodiscard]] int micro_batch(Strategy strategy, int batches) const {
    return tables_.global_batch() / strategy.data_parallel / batches;
  }

  /// From data parallelism alone towards tensor parallelism, in the stage with the least memory first.
  void visit_strategies(const std::vector<int>& groups, int batches, int counted) {
    Arrangement plan{.groups = groups, .batches = batches};
    for (const int group : groups) plan.strategies.push_back({group, 1});
    std::vector<double> room;
    while (true) {
      bool is_valid = true;
      for (const Strategy& strategy : plan.strategies) {
        const int size = micro_batch(strategy, batches);
        // Further strategies have larger micro-batches and degrees still.
        if (size > tables_.max_micro_batch() || strategy.tensor_parallel > tables_.max_degree()) return;
        is_valid = is_valid && size > 0;
      }
      if (is_valid) {
        if (++work > work_limit_) {
          is_over_ = true;
          return;
        }
        const auto attempts = balance(plan, room);
        if (attempts > 0) {
          const auto ms = tables_.cost(plan, ranks_, counted, false);
          if (ms)
            found.push_back({plan, sequence_, *ms});
          else
            ++uncosted;
          if (attempts == 1) return;
        }
      }
      if (!advance(plan.strategies, room)) return;
    }
  }

  static bool advance(std::vector<Strategy>& strategies, const std::vector<double>& room) {
    std::vector<double> key = room;
    if (key.empty())
      for (const Strategy& strategy : strategies) key.push_back(1.0 / strategy.data_parallel);
    std::vector<int> order(strategies.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key[a] < key[b]; });
    for (const int stage : order)
      if (strategies[stage].data_parallel > 1) {
        strategies[stage].data_parallel /= 2;
        strategies[stage].tensor_parallel *= 2;
        return true;
      }
    return false;
  }

  /// Sets the boundaries of the plan and the memory left in each stage; says after how many attempts. 0: none.
  int balance(Arrangement& plan, std::vector<double>& room) const {
    room.clear();
    std::vector<double> shares = speeds(plan);
    if (shares.empty()) return 0;
    for (int attempt = 1; attempt <= max_attempts; ++attempt) {
      plan.boundaries = balance_layers(shares, tables_.layer_shares());
      const std::vector<double> demand = memory_demand(plan);
      if (demand.empty()) return 0;
      bool fits = true;
      for (std::size_t i = 0; i < demand.size(); ++i) fits = fits && capacity_[i] >= demand[i];
      if (fits) {
        for (std::size_t i = 0; i < demand.size(); ++i) room.push_back(capacity_[i] - demand[i]);
        return attempt;
      }
      shares = shifted_shares(shares, capacity_, demand);
      if (shares.empty()) return 0;
    }
    return 0;
  }

  /// Shares of the stages in the speed of all.
  [[nodiscard]] std::vector<double> speeds(const Arrangement& plan) const {
    std::vector<double> shares;
    int rank = 0;
    double total = 0.0;
    for (std::size_t stage = 0; stage < plan.groups.size(); ++stage) {
      const Strategy strategy = plan.strategies[stage];
      const int size = micro_batch(strategy, plan.batches);
      const auto ms = Tables::is_mixed(ranks_, rank, plan.groups[stage])
                          ? tables_.mixed_time(ranks_, rank, plan.groups[stage], strategy,
                                               std::vector<int>(strategy.data_parallel, size), 0, tables_.layers())
                          : tables_.time(ranks_.type[rank], strategy, size, 0, tables_.layers());
      if (!ms) return {};
      shares.push_back(1.0 / *ms);
      total += shares.back();
      rank += plan.groups[stage];
    }
    for (double& share : shares) share /= total;
    return shares;
  }

  /// 2^20 bytes. Of one GPU where a stage has one type, although the capacity is that of all.
  [[nodiscard]] std::vector<double> memory_demand(const Arrangement& plan) const {
    std::vector<double> demand;
    int rank = 0;
    for (std::size_t stage = 0; stage < plan.groups.size(); ++stage) {
      const Strategy strategy = plan.strategies[stage];
      const int size = micro_batch(strategy, plan.batches);
      const int first = plan.boundaries[stage];
      const int last = plan.boundaries[stage + 1];
      const bool is_mixed = Tables::is_mixed(ranks_, rank, plan.groups[stage]);
      double sum = 0.0;
      for (int power = 1 << 30; power > 0; power /= 2) {
        const int part = is_mixed ? (size & power) : (power == 1 ? size : 0);
        if (part == 0) continue;
        const auto memory = tables_.memory(strategy.tensor_parallel, part, first, last);
        if (!memory) return {};
        sum += *memory * (is_mixed ? strategy.data_parallel : 1);
      }
      demand.push_back(0.001 + memory_factor * sum);
      rank += plan.groups[stage];
    }
    return demand;
  }

  const Problem& problem_;
  const Tables& tables_;
  std::vector<std::vector<int>> sequences_;
  std::uint64_t work_limit_;
  std::size_t sequence_ = 0;
  Ranks ranks_;
  std::vector<double> capacity_;  // by stage of the groups at hand, 2^20 bytes
  bool is_over_ = false;
};

/// Orders of the GPU types, by name. The artifact's first is that of a set of Python, which changes from run to run:
/// there the seed selects it. Seed 0 has V100 first, as in the golden runs of figures 8b and 12, seed 1 A100, as in
/// that of figure 11.
std::vector<std::vector<int>> sequences_of(const Tables& tables, const Problem& problem) {
  std::vector<int> types(tables.types().size());
  std::iota(types.begin(), types.end(), 0);
  const auto by_name = [&](int a, int b) { return tables.types()[a].gpu < tables.types()[b].gpu; };
  std::sort(types.begin(), types.end(), by_name);
  if (problem.faults == Faults::kept) {
    std::reverse(types.begin(), types.end());
    for (std::uint64_t i = 0; i < problem.seed % 1000; ++i) std::next_permutation(types.begin(), types.end(), by_name);
  }
  std::vector<int> order(types.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> sequences;
  do {
    std::vector<int>& sequence = sequences.emplace_back();
    for (const int index : order) sequence.push_back(types[index]);
  } while (std::next_permutation(order.begin(), order.end()));
  return sequences;
}

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
        // The artifact names the machine of every GPU, and pays for it as if all of it were used.
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
  // "Works only with powers of 2": 20 A100 nodes are those of the second input of figures 7 and 8b.
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
                            problem.inputs.model().name, fmt::join(measured, ", ")),
                "Metis needs them at micro-batch 1");
  const std::vector<std::vector<int>> sequences = sequences_of(*tables, problem);
  Search search(problem, *tables, sequences);
  search.run();

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
  if (search.work > search.work_limit())
    proposals.notes.push_back(
        fmt::format("the search ended after {} candidates (its work limit)", search.work_limit()));
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
