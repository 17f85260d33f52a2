// Aceso as the artifact adapts it: GPUs of the first offer, operators divided into stages, recomputation off.
// Measurements of operators are derived from those of layers (aceso_operators.hpp), as every answer notes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "planner/baselines/aceso_search.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines {

namespace aceso_detail {

namespace {

constexpr std::size_t max_plans = 5;
constexpr int max_stages = 128;
/// Ratings per number of stages. On the inputs of figure 7, 500 to 3000 ratings give the same best plan; 10000 give one
/// that is 0 to 5 % faster by Aceso's own estimate.
constexpr std::uint64_t default_ratings = 3000;

constexpr std::string_view substitute_note =
    "Aceso's operator measurements are not published: operators share the times, parameters and activations of their "
    "layers by FLOP and bytes, so that this is a substitute for the published planner";

Result<Site> first_site(const Problem& problem) {
  if (problem.offers.empty() || problem.offers.front().gpus_per_node < 1 ||
      problem.offers.front().gpus < problem.offers.front().gpus_per_node)
    return fail(ErrorCode::invalid_input, "Aceso needs at least one whole node in the first offer",
                "offer more GPUs, or fewer per node");
  const Offer& offer = problem.offers.front();
  return Site{.gpu = offer.gpu,
              .zone = offer.zone,
              .gpus = offer.gpus / offer.gpus_per_node * offer.gpus_per_node,
              .gpus_per_node = offer.gpus_per_node};
}

/// Moves boundaries inside a layer to the nearest layer boundary; every stage keeps at least one layer.
std::vector<LayerRange> layer_ranges(const Config& config, const Operators& operators) {
  const int count = static_cast<int>(config.stages.size());
  std::vector<LayerRange> ranges;
  int first = 0;
  for (int index = 0; index < count; ++index) {
    const int wanted = operators.nearest_layer(config.stages[static_cast<std::size_t>(index)].operators.last);
    const int last = std::clamp(wanted, first + 1, operators.layers() - (count - 1 - index));
    ranges.push_back({first, last});
    first = last;
  }
  return ranges;
}

PlanList plan_of(const Config& config, const Operators& operators) {
  const Site& site = operators.site();
  const std::vector<LayerRange> ranges = layer_ranges(config, operators);
  ListPipeline pipeline;
  for (std::size_t index = 0; index < ranges.size(); ++index) {
    const AcesoStage& stage = config.stages[index];
    const Replica replica{.machines = {{site.gpu, site.gpus_per_node, site.zone}},
                          .tensor_parallel = stage.tensor_parallel};
    pipeline.stages.push_back(
        {.layers = ranges[index],
         .replicas = std::vector<Replica>(static_cast<std::size_t>(stage.data_parallel), replica)});
  }
  return {.pipelines = {std::move(pipeline)}, .micro_batch = config.micro_batch / config.stages.front().data_parallel};
}

bool is_measured(const Config& config, const Operators& operators) {
  return std::all_of(config.stages.begin(), config.stages.end(), [&](const AcesoStage& stage) {
    return operators.costs(config.micro_batch / stage.data_parallel, stage.tensor_parallel).measured;
  });
}

bool has_unequal_replicas(const Config& config) {
  return std::any_of(config.stages.begin(), config.stages.end(), [&](const AcesoStage& stage) {
    return stage.data_parallel != config.stages.front().data_parallel;
  });
}

Result<EvaluatorScore> operator_score(const Config& config, const Operators& operators, const Problem& problem) {
  const auto score = evaluate_operators(config, operators, problem.inputs, problem.job.global_batch);
  SAILOR_CHECK(score);
  EvaluatorScore result;
  result.iteration_time = Seconds(score->iteration_time);
  result.synchronization_time = Seconds(score->synchronization_time);
  result.pipeline_time = result.iteration_time - result.synchronization_time;
  result.cost = UsdPerHour(problem.inputs.price(operators.site().gpu) * config.gpus()) * result.iteration_time;
  result.fits = score->fits;
  result.peak_memory = result.validation_memory = Bytes(score->memory);
  result.micro_batches = std::ceil(static_cast<double>(problem.job.global_batch) / config.micro_batch);
  return result;
}

/// Converts a plan for one GPU type to a configuration. Errors: invalid_input (what configurations cannot express).
Result<std::pair<Config, Site>> config_of(const PlanList& plan, const Inputs& inputs) {
  const auto refuse = [](std::string what) {
    return fail(ErrorCode::invalid_input, std::move(what), "Aceso's cost model knows one pipeline of one GPU type");
  };
  if (plan.pipelines.size() != 1 || plan.pipelines.front().stages.empty() ||
      plan.pipelines.front().stages.front().replicas.empty())
    return refuse(fmt::format("the plan has {} pipelines", plan.pipelines.size()));
  const std::vector<ListStage>& stages = plan.pipelines.front().stages;
  const Machine& machine = stages.front().replicas.front().machines.front();
  std::pair<Config, Site> result;
  auto& [config, site] = result;
  site = {.gpu = machine.gpu, .zone = machine.zone, .gpus = 0, .gpus_per_node = machine.gpus_per_node};
  config.micro_batch = plan.micro_batch * static_cast<int>(stages.front().replicas.size());
  for (const ListStage& stage : stages) {
    const int replicas = static_cast<int>(stage.replicas.size());
    for (const Replica& replica : stage.replicas)
      if (replica.machines.size() != 1 || replica.machines.front().gpu != machine.gpu ||
          replica.tensor_parallel != stage.replicas.front().tensor_parallel)
        return refuse("the stages of the plan have several GPU types, degrees or machines for a group");
    if (stage.layers.size() < 1 || stage.layers.last > inputs.layers())
      return refuse("a stage of the plan has no layers, or layers that the model does not have");
    const int degree = replicas == 0 ? 0 : stage.replicas.front().tensor_parallel;
    if (replicas == 0 || degree > std::min(site.gpus_per_node, largest_degree) || (degree & (degree - 1)) != 0 ||
        !CostModel::is_allowed(config.micro_batch, replicas))
      return refuse(fmt::format("a stage of {} replicas with tensor parallel {} and micro-batch {} was not measured",
                                replicas, degree, plan.micro_batch));
    config.stages.push_back({.operators = stage.layers, .tensor_parallel = degree, .data_parallel = replicas});
    site.gpus += config.stages.back().gpus();
  }
  return result;
}

}  // namespace

class Aceso final : public Baseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "aceso"; }
  [[nodiscard]] std::string_view title() const override { return "Aceso"; }
  [[nodiscard]] std::string_view citation() const override { return "Liu et al., EuroSys 2024"; }
  [[nodiscard]] std::string_view summary() const override {
    return "divides operators into stages by removing one bottleneck after another, on the first offer only; ignores "
           "gradient all-reduces and prices; with operator times derived from those of layers, a substitute";
  }

  [[nodiscard]] Result<Proposals> plan(const Problem& problem) const override {
    auto site = first_site(problem);
    SAILOR_CHECK(site);
    auto operators = Operators::build(problem.inputs, problem.job, *site);
    SAILOR_CHECK(operators);
    const CostModel model(*operators, problem.job.global_batch, problem.inputs.configured_memory(site->gpu));
    const SearchLimits limits{.ratings = problem.work_limit > 0 ? problem.work_limit : default_ratings,
                              .is_over = problem.is_over};
    Proposals proposals;
    proposals.notes.emplace_back(substitute_note);
    if (problem.offers.size() > 1)
      proposals.notes.push_back(
          fmt::format("Aceso plans for one GPU type in one zone: only the first of {} offers", problem.offers.size()));
    std::vector<Rated> found;
    for (int stages = 1; stages <= std::min({site->gpus, max_stages, operators->layers()}); ++stages) {
      if (problem.is_over()) {
        proposals.out_of_time = true;
        break;
      }
      for (Rated& rated : alleviate(model, stages, problem.faults == Faults::fixed, limits))
        if (is_measured(rated.config, *operators)) found.push_back(std::move(rated));
      proposals.out_of_time = proposals.out_of_time || problem.is_over();
    }
    std::stable_sort(found.begin(), found.end(), [&](const Rated& a, const Rated& b) {
      if (model.fits(a.predicted) != model.fits(b.predicted)) return model.fits(a.predicted);
      return a.predicted.time < b.predicted.time;
    });
    if (found.empty() && !proposals.out_of_time)
      return fail(ErrorCode::infeasible,
                  fmt::format("Aceso found no plan of measured operators for {} {}", site->gpus, site->gpu),
                  "profile more micro-batch sizes or tensor-parallel degrees");
    std::set<std::string> described;
    bool unequal = false;
    for (const Rated& rated : found) {
      if (proposals.plans.size() == max_plans) break;
      PlanList list = plan_of(rated.config, *operators);
      if (!described.insert(describe(list)).second) continue;  // differs only in operators inside a layer
      auto score = operator_score(rated.config, *operators, problem);
      SAILOR_CHECK(score);
      unequal = unequal || has_unequal_replicas(rated.config);
      proposals.plans.push_back({.plan = std::move(list),
                                 .throughput = 1.0 / rated.predicted.time,
                                 .cost = std::nullopt,
                                 .own_score = *score});
    }
    proposals.notes.emplace_back(
        "boundaries inside a layer went to the nearest between layers by time; a stage keeps at least one layer");
    if (std::min(site->gpus, max_stages) > operators->layers())
      proposals.notes.push_back(
          fmt::format("more stages than the model's {} layers were not tried", operators->layers()));
    if (unequal)
      proposals.notes.emplace_back(
          "stages have unequal numbers of replicas: the micro-batch is that of the first stage's replicas");
    return proposals;
  }

  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    auto converted = config_of(plan, problem.inputs);
    SAILOR_CHECK(converted);
    auto& [config, site] = *converted;
    auto operators = Operators::build(problem.inputs, problem.job, site);
    SAILOR_CHECK(operators);
    for (AcesoStage& stage : config.stages) stage.operators = operators->of_layers(stage.operators);
    if (!is_measured(config, *operators))
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no times of {} on {} with micro-batch {} and the plan's degrees",
                              problem.job.model, site.gpu, plan.micro_batch),
                  "Aceso does not interpolate: use what was measured");
    const CostModel model(*operators, problem.job.global_batch, problem.inputs.configured_memory(site.gpu));
    const Predicted predicted = model.predict(config);
    return Estimate{.iteration_time = Seconds(predicted.time), .peak_memory = Bytes(predicted.memory)};
  }
};

}  // namespace aceso_detail

const Baseline& aceso() {
  static const aceso_detail::Aceso planner;
  return planner;
}

}  // namespace sailor::planner::baselines
