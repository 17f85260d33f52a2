#include "apps/plan/published_planners.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <utility>
#include <vector>

#include "apps/plan/handover_format.hpp"
#include "apps/stop_requests.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "planner/baselines/harness.hpp"
#include "planner/baselines/plan_list_json.hpp"
#include "planner/considered_nodes.hpp"
#include "reports/published_plans.hpp"

namespace sailor::apps {

namespace baselines = planner::baselines;

namespace published_planners_detail {

constexpr const char* own_planner = "sailor";

tl::unexpected<Error> conflict(std::string what, std::string hint) {
  return fail(ErrorCode::usage, std::move(what), std::move(hint));
}

/// The best plan in the form that --output and --format toml write, with the prediction of the simulator.
Result<Plan> plan_to_write(const baselines::JudgedPlan& best, const simulator::Environment& simulated,
                           const PlanOrigin& origin, std::string_view option) {
  if (!best.plan)
    return conflict(fmt::format("{}: {}", option, best.why_no_plan),
                    "write the artifact's JSON with --format sailor-json");
  Plan plan = *best.plan;
  plan.origin = origin;
  if (const auto prediction = simulator::simulate(plan, simulated)) plan.prediction = simulator::summary(*prediction);
  return plan;
}

}  // namespace published_planners_detail

std::vector<Option> planner_options(PlanOptions& options) {
  return {option(options.planner, {.name = "planner",
                                   .value_name = "NAME",
                                   .help = "whose search finds the plans: sailor, this project's own, or one of the "
                                           "planners that the Sailor paper compares with (help lists them)",
                                   .default_value = published_planners_detail::own_planner}),
          option(options.planner_faults,
                 {.name = "planner-faults",
                  .value_name = "WHICH",
                  .help = "faults of a published planner's adaptation in the artifact: kept, so that its figures come "
                          "out, or fixed; what the planner ignores by design it ignores in both",
                  .default_value = "fixed",
                  .choices = {"kept", "fixed"}}),
          option(options.judge,
                 {.name = "judge",
                  .value_name = "JUDGE",
                  .help = "what says whether a published planner's plan fits, how fast it is and what it costs: this "
                          "project's simulator (no --memory-margin unless given), or the artifact's evaluator",
                  .default_value = "simulator",
                  .choices = {"simulator", "artifact"}}),
          option(options.planner_seed, {.name = "planner-seed",
                                        .value_name = "N",
                                        .help = "seed of published planners that search at random",
                                        .default_value = "0",
                                        .minimum = 0,
                                        .maximum = 9e15})};
}

baselines::Faults planner_faults(const OptionValue<std::string>& option) {
  return *option == "kept" ? baselines::Faults::kept : baselines::Faults::fixed;
}

bool wants_planner_list(const PlanOptions& options) { return *options.planner == "help"; }
bool by_published_planner(const PlanOptions& options) {
  return *options.planner != published_planners_detail::own_planner;
}

Result<void> check_planner_options(const PlanOptions& options) {
  using published_planners_detail::conflict;
  const std::string name = *options.planner;
  if (!by_published_planner(options)) {
    for (const auto* option : OptionList{&options.planner_faults, &options.judge, &options.planner_seed})
      if (option->typed())
        return conflict(fmt::format("--{} is about published planners", option->name()),
                        "name one with --planner NAME");
    return {};
  }
  if (!baselines::find_baseline(name))
    return conflict(fmt::format("there is no planner '{}'; there are\n{}", name, reports::planner_list()),
                    "name one of them with --planner");
  // Options that only this project's own planner takes.
  for (const auto* option :
       OptionList{&options.pareto, &options.explain, &options.why_not, &options.placement, &options.preflight,
                  &options.availability_trace, &options.without, &options.threads, &options.space, &options.cost_model,
                  &options.max_gpus, &options.max_nodes, &options.max_node_hours, &options.within, &options.tokens,
                  &options.iterations, &options.max_tensor_parallel})
    if (option->typed())
      return conflict(fmt::format("--{} does not go with --planner {}, a published planner", option->name(), name),
                      fmt::format("leave out --{}, or --planner to plan by this project's own", option->name()));
  if (*options.objective == "throughput-per-usd")
    return conflict(fmt::format("--objective throughput-per-usd does not go with --planner {}", name),
                    "published planners know throughput and cost");
  if (*options.judge == "artifact")
    for (const auto* option : OptionList{&options.memory_margin, &options.measured_only})
      if (option->typed())
        return conflict(
            fmt::format("--{} does not go with --judge artifact, which has a rule of its own", option->name()),
            "leave out one of them");
  for (const std::string& pin : *options.pin)
    if (!pin.starts_with("gpu=") && !pin.starts_with("zone="))
      return conflict(
          fmt::format("--pin {} does not go with --planner {}: a published planner chooses that itself", pin, name),
          "pin only gpu=NAME and zone=NAME, which say what it may use");
  return {};
}

Result<int> plan_by_published(const PlanOptions& options, const planner::Request& request,
                              const simulator::Environment& simulated, const reports::Heading& heading,
                              const std::vector<NodeGroup>& nodes, const PlanOrigin& origin) {
  using namespace published_planners_detail;
  const auto baseline = baselines::find_baseline(*options.planner);
  if (!baseline) return fail(baseline.error());
  SAILOR_CHECK(planner::check_places(request, *simulated.cluster));
  const auto partitions = planner::partitions_of(request, *simulated.cluster);
  if (!partitions) return fail(partitions.error());
  const auto inputs = baselines::Inputs::build(request.job, simulated.model, simulated.profile, simulated.gpus);
  if (!inputs) return fail(inputs.error());
  const LayerCosts costs = simulator::layer_costs_for(simulated);  // many plans ask for the same layers
  simulator::Environment judging_environment = simulated;
  judging_environment.costs = &costs;
  catch_stop_requests("sailor-plan", {SIGINT});
  const baselines::Problem problem{.inputs = *inputs,
                                   .job = request.job,
                                   .offers = baselines::offers_of(nodes),
                                   .objective = request.objective,
                                   .max_cost = request.limits.cost,
                                   .min_throughput = request.limits.throughput,
                                   .faults = planner_faults(options.planner_faults),
                                   .seed = static_cast<std::uint64_t>(*options.planner_seed),
                                   .work_limit = request.effort.work.value_or(0),
                                   .time_limit = request.effort.time,
                                   .is_over = [] { return stop_request() != 0; }};
  const auto judge = *options.judge == "artifact" ? baselines::Judge::artifact : baselines::Judge::simulator;
  const baselines::Judging judging{.simulated = judging_environment,
                                   .judge = judge,
                                   .memory_margin = options.memory_margin.given() ? request.memory_margin : 0.0,
                                   .max_plans = request.max_plans,
                                   .max_nodes = planner::max_nodes_of(*partitions)};
  const auto answer = baselines::ask(**baseline, problem, judging);
  if (!answer) return fail(answer.error(), (*baseline)->name());
  const std::string format = *options.format;
  std::string text;
  if (format == "json") text = reports::published_to_json(heading, **baseline, problem, judge, *answer).dump(2) + "\n";
  if (answer->plans.empty()) {
    fmt::print("{}", text);
    for (const std::string& note : answer->notes) log_warning("{}", note);
    return fail(ErrorCode::infeasible,
                fmt::format("no plan of {} is accepted: {}", (*baseline)->title(), reports::counts_text(*answer)),
                "relax the limits, or let Sailor's own planner search: leave out --planner");
  }
  const baselines::JudgedPlan& best = answer->plans.front();
  if (format == "sailor-json")
    text = baselines::plan_list_to_json(best.proposal.plan, request.job.global_batch);
  else if (format == "table")
    text = fitted(reports::published_report(heading, **baseline, problem, judge, *answer));
  else if (format == "toml") {
    const auto plan = plan_to_write(best, judging_environment, origin, "--format toml");
    if (!plan) return fail(plan.error());
    text = fmt::format("# {}\n# by {} ({})\n", reports::heading_text(heading), (*baseline)->title(),
                       (*baseline)->citation()) +
           plan_to_toml(*plan);
  } else if (is_handover_format(format)) {
    const auto plan = plan_to_write(best, judging_environment, origin, "--format " + format);
    if (!plan) return fail(plan.error());
    auto written = in_handover_format(format, *plan, simulated.model, "sailor-plan");
    if (!written) return fail(written.error());
    text = *std::move(written);
  }
  fmt::print("{}", text);
  if (options.output.has()) {
    const auto plan = plan_to_write(best, judging_environment, origin, "--output");
    if (!plan) return fail(plan.error());
    SAILOR_CHECK(save_plan(*plan, *options.output));
    log_info("wrote {} ({})", *options.output, describe(*plan));
  }
  return 0;
}

}  // namespace sailor::apps
