// Oobleck (Jang et al., SOSP 2023) as its paper describes it: pipeline templates for a range of node counts, then a
// number of pipelines of each so that all nodes are used, there is one pipeline more than failures to survive, and the
// iteration is the shortest. The Sailor artifact names Oobleck but has no planner for it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "core/text.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/baselines/oobleck_templates.hpp"

namespace sailor::planner::baselines {

namespace oobleck_detail {

/// Failures at the same time after which a replica of every layer is left: f of the paper, which leaves it to the user.
/// 1 costs the least throughput.
constexpr int tolerated_failures = 1;
constexpr int min_pipelines = tolerated_failures + 1;

/// Seconds of the gradient all-reduce of each stage's layers over `replicas`, the maximum over the stages.
Result<double> reduction_time(const std::vector<TemplateStage>& stages, int replicas, const Inputs& inputs,
                              const std::string& gpu, const std::string& zone) {
  double longest = 0.0;
  if (replicas == 1) return longest;
  for (const TemplateStage& stage : stages) {
    const LinkCoefficients* link = inputs.inter(gpu, zone, stage.gpus, gpu, zone, stage.gpus);
    if (link == nullptr) link = inputs.inter(gpu, zone, 1, gpu, zone, 1);
    const LayerSizes* sizes = inputs.sizes(stage.gpus);
    if (link == nullptr || sizes == nullptr)
      return fail(ErrorCode::not_found, fmt::format("the profile has no link between nodes of {} in zone '{}', or no "
                                                    "sizes with tensor parallel {}",
                                                    gpu, zone, stage.gpus));
    double seconds = 0.0;
    for (int layer = stage.layers.first; layer < stage.layers.last; ++layer)
      seconds += link->all_reduce(float_bytes * sizes->parameters[static_cast<std::size_t>(layer)], replicas);
    longest = std::max(longest, seconds);
  }
  return longest;
}

/// Pipelines as pairs of template index and number of micro-batches.
struct Instantiation {
  std::vector<std::pair<int, int>> pipelines;
  double time = std::numeric_limits<double>::infinity();
};

/// Chooses the number of pipelines of each template (section 4.2.1) and divides the batch among them (4.2.2). The paper
/// goes through all sums of node counts; here, all that complete the batch within a time are considered together, and
/// the time is lowered until there are none.
class Instantiator {
 public:
  Instantiator(const std::vector<Template>& templates, int nodes, int micro_batches,
               const std::function<bool()>& is_over)
      : templates_(templates), nodes_(nodes), micro_batches_(micro_batches), is_over_(is_over) {}

  [[nodiscard]] bool was_over() const { return was_over_; }

  /// `reductions`: seconds by template, for this number of pipelines. Replaces `best` if it finds something faster.
  void try_number(int pipelines, const std::vector<double>& reductions, Instantiation& best) {
    // The slowest gradient all-reduce counts for all pipelines, so each value in turn limits the templates.
    const std::set<double> longest(reductions.begin(), reductions.end());
    for (const double reduction : longest) {
      std::vector<bool> is_allowed;
      for (const double seconds : reductions) is_allowed.push_back(seconds <= reduction);
      try_templates(pipelines, is_allowed, reduction, best);
    }
  }

 private:
  void try_templates(int pipelines, const std::vector<bool>& is_allowed, double reduction, Instantiation& best) {
    double above = best.time - reduction;  // passes of the slowest pipeline, in seconds
    if (above <= 0.0 || max_within(above, pipelines, is_allowed) < micro_batches_) return;
    if (!std::isfinite(above))
      for (above = 1.0; max_within(above, pipelines, is_allowed) < micro_batches_; above *= 2.0)
        if (was_over_) return;
    constexpr double precision = 1e-9;
    double below = 0.0;
    while (above - below > precision * above && !was_over_) {
      const double middle = 0.5 * (above + below);
      (max_within(middle, pipelines, is_allowed) >= micro_batches_ ? above : below) = middle;
    }
    if (max_within(above, pipelines, is_allowed) < micro_batches_) return;
    Instantiation found = read_back(pipelines, above, reduction);
    if (found.time < best.time) best = std::move(found);
  }

  [[nodiscard]] int at(int pipelines, int nodes) const { return pipelines * (nodes_ + 1) + nodes; }
  [[nodiscard]] int share(std::size_t entry, double seconds) const {
    return std::min(templates_[entry].time.micro_batches_within(seconds), micro_batches_);
  }

  /// Max number of micro-batches that so many pipelines on all nodes do in `seconds`; negative if there are no such
  /// pipelines.
  int max_within(double seconds, int pipelines, const std::vector<bool>& is_allowed) {
    was_over_ = was_over_ || is_over_();
    std::vector<int> shares;
    for (std::size_t entry = 0; entry < templates_.size(); ++entry)
      shares.push_back(is_allowed[entry] ? share(entry, seconds) : 0);
    max_micro_batches_.assign(at(pipelines, nodes_) + 1, -1);
    chosen_.assign(max_micro_batches_.size(), -1);
    max_micro_batches_[at(0, 0)] = 0;
    for (int number = 1; number <= pipelines; ++number)
      for (std::size_t entry = 0; entry < templates_.size(); ++entry) {
        if (shares[entry] == 0) continue;  // every pipeline needs a micro-batch
        for (int nodes = templates_[entry].nodes; nodes <= nodes_; ++nodes) {
          const int before = max_micro_batches_[at(number - 1, nodes - templates_[entry].nodes)];
          if (before < 0 || before + shares[entry] <= max_micro_batches_[at(number, nodes)]) continue;
          max_micro_batches_[at(number, nodes)] = before + shares[entry];
          chosen_[at(number, nodes)] = static_cast<int>(entry);
        }
      }
    return max_micro_batches_[at(pipelines, nodes_)];
  }

  /// The result of the last max_within(); micro-batches beyond the batch are taken from the pipelines that end last.
  [[nodiscard]] Instantiation read_back(int pipelines, double seconds, double reduction) const {
    Instantiation found;
    int total = 0;
    for (int number = pipelines, nodes = nodes_; number > 0; --number) {
      const int entry = chosen_[at(number, nodes)];
      const int mine = share(static_cast<std::size_t>(entry), seconds);
      found.pipelines.emplace_back(entry, mine);
      total += mine;
      nodes -= templates_[static_cast<std::size_t>(entry)].nodes;
    }
    const auto ends = [&](const std::pair<int, int>& pipeline) {
      const auto index = static_cast<std::size_t>(pipeline.first);
      return templates_[index].time.iteration(pipeline.second);
    };
    for (; total > micro_batches_; --total) {
      auto last = found.pipelines.end();
      for (auto candidate = found.pipelines.begin(); candidate != found.pipelines.end(); ++candidate)
        if (candidate->second > 1 && (last == found.pipelines.end() || ends(*candidate) > ends(*last)))
          last = candidate;
      if (last == found.pipelines.end()) break;
      --last->second;
    }
    double passes = 0.0;
    for (const auto& pipeline : found.pipelines) passes = std::max(passes, ends(pipeline));
    found.time = passes + reduction;
    std::sort(found.pipelines.begin(), found.pipelines.end());
    return found;
  }

  const std::vector<Template>& templates_;
  int nodes_;
  int micro_batches_;
  const std::function<bool()>& is_over_;
  bool was_over_ = false;
  std::vector<int> max_micro_batches_;  // by number of pipelines and nodes
  std::vector<int> chosen_;             // the template of the last pipeline
};

class Oobleck final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "oobleck"; }
  [[nodiscard]] std::string_view title() const override { return "Oobleck"; }
  [[nodiscard]] std::string_view citation() const override { return "Jang et al., SOSP 2023"; }
  [[nodiscard]] std::string_view summary() const override {
    return "follows its paper: pipeline templates for every number of nodes, two pipelines or more on all nodes; one "
           "GPU "
           "type, no links between stages, no activations beyond one micro-batch";
  }
  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override;
  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override;
};

/// The zone of every node of the first offer's type.
std::vector<std::string> node_zones(const Problem& problem, const Offer& first) {
  std::vector<std::string> zones;
  for (const Offer& offer : problem.offers)
    if (offer.gpu == first.gpu && offer.gpus_per_node == first.gpus_per_node && offer.gpus > 0)
      zones.insert(zones.end(), static_cast<std::size_t>(offer.gpus / offer.gpus_per_node), offer.zone);
  return zones;
}

PlanList list_of(const Instantiation& chosen, const std::vector<Template>& templates, int micro_batch,
                 const Offer& offer, const std::vector<std::string>& zones) {
  PlanList list;
  list.micro_batch = micro_batch;
  std::size_t first_node = 0;
  for (const auto& [entry, micro_batches] : chosen.pipelines) {
    const Template& of_pipeline = templates[static_cast<std::size_t>(entry)];
    ListPipeline pipeline;
    pipeline.micro_batches = micro_batches;
    for (const TemplateStage& stage : of_pipeline.stages)
      pipeline.stages.push_back(
          {.layers = stage.layers,
           .replicas = {{.machines = {{.gpu = offer.gpu,
                                       .gpus_per_node = offer.gpus_per_node,
                                       .zone = zones[first_node + static_cast<std::size_t>(stage.node)]}},
                         .tensor_parallel = stage.gpus}}});
    first_node += static_cast<std::size_t>(of_pipeline.nodes);
    list.pipelines.push_back(std::move(pipeline));
  }
  return list;
}

Result<Proposals> Oobleck::plan(const Problem& problem) const {
  const auto offer =
      std::find_if(problem.offers.begin(), problem.offers.end(), [](const Offer& entry) { return entry.gpus > 0; });
  if (offer == problem.offers.end()) return fail(ErrorCode::infeasible, "oobleck is offered no devices");
  const Inputs& inputs = problem.inputs;
  const std::vector<std::string> zones = node_zones(problem, *offer);
  const int nodes = static_cast<int>(zones.size());
  const std::vector<int> sizes = inputs.micro_batches(offer->gpu);
  if (sizes.empty())
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no times of {} on {}", problem.job.model, offer->gpu),
                "measure them with sailor-profile layers");

  Proposals proposals;
  for (const int micro_batch : sizes) {
    const int micro_batches = problem.job.global_batch / micro_batch;
    if (problem.job.global_batch % micro_batch != 0 || micro_batches < min_pipelines) continue;
    const StageCosts costs(inputs, offer->gpu, micro_batch, offer->gpus_per_node);
    std::vector<Template> templates =
        make_templates(costs, nodes, static_cast<double>(micro_batches) / std::max(nodes, 1));
    if (templates.empty()) continue;
    // The largest pipeline must leave nodes for the other required pipelines, which have the smallest template.
    const int smallest = templates.front().nodes;
    std::erase_if(templates,
                  [&](const Template& entry) { return entry.nodes > nodes - tolerated_failures * smallest; });
    Instantiator instantiator(templates, nodes, micro_batches, problem.is_over);
    Instantiation best;
    for (int pipelines = min_pipelines; pipelines <= std::min(nodes / smallest, micro_batches); ++pipelines) {
      std::vector<double> reductions;
      for (const Template& entry : templates) {
        const auto seconds = reduction_time(entry.stages, pipelines, inputs, offer->gpu, zones.front());
        if (!seconds) return fail(seconds.error(), "oobleck");
        reductions.push_back(*seconds);
      }
      instantiator.try_number(pipelines, reductions, best);
      if (instantiator.was_over()) proposals.out_of_time = true;
      if (proposals.out_of_time) break;
    }
    if (!best.pipelines.empty())
      proposals.plans.push_back({.plan = list_of(best, templates, micro_batch, *offer, zones),
                                 .throughput = 1.0 / best.time,
                                 .cost = std::nullopt});
    if (proposals.out_of_time) break;
  }
  if (proposals.plans.empty())
    return fail(
        ErrorCode::infeasible,
        fmt::format("oobleck finds no plan for {} on {} nodes of {} {}: it survives {} failure, so it needs {} "
                    "pipelines, each on nodes of its own with memory for the model",
                    problem.job.model, nodes, offer->gpus_per_node, offer->gpu, tolerated_failures, min_pipelines),
        "offer more nodes");
  std::stable_sort(proposals.plans.begin(), proposals.plans.end(),
                   [](const Proposal& a, const Proposal& b) { return *a.throughput > *b.throughput; });
  std::set<std::string> others;
  for (const Offer& entry : problem.offers)
    if (entry.gpus > 0 && entry.gpu != offer->gpu) others.insert(entry.gpu);
  if (!others.empty())
    proposals.notes.push_back(
        fmt::format("oobleck plans for one GPU type, that of the first offer: {} not used", join(others, ", ")));
  return proposals;
}

Result<Estimate> Oobleck::estimate(const PlanList& plan, const Problem& problem) const {
  const Inputs& inputs = problem.inputs;
  std::size_t replicas = 0;
  for (const ListPipeline& pipeline : plan.pipelines)
    if (!pipeline.stages.empty()) replicas += pipeline.stages.front().replicas.size();
  if (replicas == 0) return fail(ErrorCode::invalid_input, "oobleck: the plan has no pipeline");
  const int even = static_cast<int>(
      std::ceil(static_cast<double>(problem.job.global_batch) / (plan.micro_batch * static_cast<double>(replicas))));
  double passes = 0.0;
  double reduction = 0.0;
  double memory = 0.0;
  for (const ListPipeline& pipeline : plan.pipelines) {
    // If replicas of a stage differ, the slowest counts.
    std::optional<ChainTime> chain;
    std::vector<TemplateStage> stages;
    for (const ListStage& stage : pipeline.stages) {
      double slowest = 0.0;
      for (const Replica& replica : stage.replicas) {
        const Machine& machine = replica.machines.front();
        const LayerTimes* times = inputs.times(machine.gpu, plan.micro_batch, replica.tensor_parallel);
        const StageCosts costs(inputs, machine.gpu, plan.micro_batch, machine.gpus_per_node);
        if (times == nullptr || inputs.sizes(replica.tensor_parallel) == nullptr)
          return fail(ErrorCode::not_found,
                      fmt::format("oobleck: the profile has no times or sizes of {} with micro-batch {} and tensor "
                                  "parallel {}",
                                  machine.gpu, plan.micro_batch, replica.tensor_parallel));
        slowest = std::max(slowest, times->compute(stage.layers.first, stage.layers.last));
        memory = std::max(memory, costs.memory_bytes(stage.layers, replica.tensor_parallel));
      }
      const Replica& first = stage.replicas.front();
      stages = {{.layers = stage.layers, .gpus = first.tensor_parallel}};
      const auto seconds = reduction_time(stages, static_cast<int>(replicas), inputs, first.machines.front().gpu,
                                          first.machines.front().zone);
      if (!seconds) return fail(seconds.error(), "oobleck");
      reduction = std::max(reduction, *seconds);
      chain = chain ? joined(*chain, chain_of_one(slowest)) : chain_of_one(slowest);
    }
    passes = std::max(passes, chain->iteration(pipeline.micro_batches > 0 ? pipeline.micro_batches : even));
  }
  return Estimate{.iteration_time = Seconds(passes + reduction), .peak_memory = Bytes(memory)};
}

}  // namespace oobleck_detail

const Baseline& oobleck() {
  static const oobleck_detail::Oobleck planner;
  return planner;
}

}  // namespace sailor::planner::baselines
