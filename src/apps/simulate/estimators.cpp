#include "apps/simulate/estimators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/inputs.hpp"
#include "apps/plan/published_planners.hpp"
#include "apps/simulate/plan_input.hpp"
#include "core/terminal.hpp"
#include "planner/baselines/harness.hpp"
#include "simulator/framework.hpp"

namespace sailor::apps {

namespace baselines = planner::baselines;

namespace estimators_detail {

constexpr const char* own = "sailor";
constexpr const char* evaluator = "artifact";

bool by_other(const SimulateOptions& options) { return *options.estimator != own; }

/// Estimate of the artifact's evaluator, with the memory that its validation compares (5.06e9 bytes beside states and
/// activations).
Result<baselines::Estimate> by_evaluator(const baselines::PlanList& list, const baselines::Inputs& inputs,
                                         const TrainingJob& job, baselines::Faults faults) {
  const auto score = baselines::evaluate(list, inputs, job, faults);
  if (!score) return fail(score.error());
  return baselines::Estimate{.iteration_time = score->iteration_time, .peak_memory = score->validation_memory};
}

}  // namespace estimators_detail

std::vector<Option> estimator_options(SimulateOptions& options) {
  return {option(options.estimator, {.name = "estimator",
                                     .value_name = "NAME",
                                     .help = "show beside the prediction what others say: artifact (the evaluator of "
                                             "the Sailor paper's artifact, with the memory of its validation), or a "
                                             "published planner's cost model (sailor-plan --planner help lists them)",
                                     .default_value = estimators_detail::own}),
          option(options.planner_faults,
                 {.name = "planner-faults",
                  .value_name = "WHICH",
                  .help = "faults of that cost model in the artifact: kept, so that its figures come out, or fixed",
                  .default_value = "fixed",
                  .choices = {"kept", "fixed"}})};
}

Result<void> check_estimator(const SimulateOptions& options) {
  using namespace estimators_detail;
  const std::string name = *options.estimator;
  if (!by_other(options)) {
    if (options.planner_faults.typed())
      return fail(ErrorCode::usage, "--planner-faults is about other cost models", "name one with --estimator NAME");
    return {};
  }
  if (name != evaluator && !baselines::find_baseline(name))
    return fail(
        ErrorCode::usage,
        fmt::format("there is no estimator '{}'; there are artifact, and those of\n{}", name, reports::planner_list()),
        "name one of them with --estimator");
  if (!options.plan.has())
    return fail(ErrorCode::usage, "--estimator says something of a plan, but none is given", "name the plan file");
  return {};
}

Result<std::optional<reports::OtherEstimate>> other_estimate(const SimulateOptions& options,
                                                             const baselines::PlanList& list, const TrainingJob& job,
                                                             const Model& model, const Profile& profile,
                                                             const GpuCatalogue& gpus) {
  using namespace estimators_detail;
  if (!by_other(options)) return std::nullopt;
  const std::string name = *options.estimator;
  const auto inputs = baselines::Inputs::build(job, model, profile, gpus);
  if (!inputs) return fail(inputs.error());
  const baselines::Faults faults = planner_faults(options.planner_faults);
  if (name == evaluator) {
    const auto estimate = by_evaluator(list, *inputs, job, faults);
    if (!estimate) return fail(estimate.error());
    return reports::OtherEstimate{.estimator = name, .title = "artifact", .estimate = *estimate};
  }
  const auto baseline = baselines::find_baseline(name);
  if (!baseline) return fail(baseline.error());
  const baselines::Problem problem{
      .inputs = *inputs, .job = job, .offers = baselines::offers_of(list), .faults = faults};
  const auto estimate = (*baseline)->estimate(list, problem);
  if (!estimate) return fail(estimate.error(), (*baseline)->title());
  return reports::OtherEstimate{.estimator = name, .title = std::string((*baseline)->title()), .estimate = *estimate};
}

Result<std::optional<reports::OtherEstimate>> other_estimate(const SimulateOptions& options, const Plan& plan,
                                                             const Model& model, const Profile& profile,
                                                             const GpuCatalogue& gpus, const Cluster* cluster) {
  if (!estimators_detail::by_other(options)) return std::nullopt;
  std::map<std::string, int> devices;
  if (cluster != nullptr)
    for (const NodeGroup& group : cluster->groups)
      devices[group.gpu] = std::max(devices[group.gpu], group.gpus_per_node);
  const auto list = baselines::from_plan(plan, devices);
  if (!list) return fail(list.error(), "--estimator");
  return other_estimate(options, *list, plan.job, model, profile, gpus);
}

Result<void> simulate_list(const SimulateOptions& options, const Environment& environment, const GpuCatalogue& gpus,
                           const Profile& profile) {
  for (const auto* option : OptionList{&options.trace, &options.plot, &options.against})
    if (option->has())
      return fail(ErrorCode::usage,
                  fmt::format("--{} needs a plan that Sailor can run, but of '{}' only a bound is known",
                              option->name(), *options.plan),
                  "leave it out");
  const auto input = read_plan_list_input(*options.plan, options, environment, gpus, profile);
  if (!input) return fail(input.error());
  const auto cluster = read_cluster(options, environment, gpus);
  if (!cluster) return fail(cluster.error());
  const auto framework = simulator::find_framework(
      options.framework.has() ? *options.framework : estimators_detail::own, frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  const simulator::Environment simulated{.model = input->model,
                                         .profile = profile,
                                         .gpus = gpus,
                                         .framework = *framework,
                                         .cluster = *cluster ? &**cluster : nullptr,
                                         .measured_only = *options.measured_only};
  const auto& file = input->file;
  const auto bound = baselines::predict_list(file.list, input->job, simulated, 0.0);
  if (!bound) return fail(bound.error());
  const auto other = other_estimate(options, file.list, input->job, input->model, profile, gpus);
  if (!other) return fail(other.error());
  const reports::OwnEstimate own{
      .iteration_time = bound->iteration_time, .peak_memory = bound->peak_memory, .is_bound = bound->is_bound};
  if (*options.format == "json") {
    nlohmann::ordered_json json{{"model", input->job.model},
                                {"precision", to_string(input->job.precision)},
                                {"description", describe(file.list)},
                                {"iteration_time_s", bound->iteration_time.value()},
                                {"peak_memory_bytes", bound->peak_memory.value()},
                                {"cost_usd_per_iteration", bound->cost.value()},
                                {"fits", bound->fits},
                                {"is_bound", bound->is_bound}};
    if (*other) json["estimate"] = reports::estimate_to_json(**other, file.measured_time, file.measured_memory);
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}\n", describe(file.list));
    if (*other)
      fmt::print("{}", reports::estimate_report(own, **other, file.measured_time, file.measured_memory));
    else
      fmt::print("iteration time >= {}, peak memory >= {}\n", format_time(own.iteration_time),
                 format_bytes(own.peak_memory));
    fmt::print(">=: a bound, as this project's runtime cannot run the plan.\n");
  }
  if (!bound->fits) return fail(ErrorCode::infeasible, "the plan does not fit into memory");
  return {};
}

}  // namespace sailor::apps
