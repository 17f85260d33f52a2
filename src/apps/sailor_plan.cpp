// sailor-plan: finds the best plans for a model on a cluster, under limits and with parts of the plan given, checks a
// job before it is submitted, and follows a cluster whose nodes come and go. Runs on a login node: no GPU, no MPI.
// Failure: exit 1, 2 for a wrong command line, 3 when no plan fits or keeps the limits; with --preflight 4 for
// warnings, 5 for a failed check.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <type_traits>

#include "apps/inputs.hpp"
#include "apps/plan/cluster_input.hpp"
#include "apps/plan/command_line.hpp"
#include "apps/plan/handover_format.hpp"
#include "apps/plan/precision_choice.hpp"
#include "apps/plan/preflight_command.hpp"
#include "apps/plan/published_planners.hpp"
#include "apps/plan/questions.hpp"
#include "apps/plan/watch.hpp"
#include "apps/programs.hpp"
#include "apps/simulate/plan_input.hpp"
#include "apps/stop_requests.hpp"
#include "cluster/availability_trace.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "core/shell.hpp"
#include "core/terminal.hpp"
#include "plan/original_plan.hpp"
#include "planner/advice.hpp"
#include "planner/considered_nodes.hpp"
#include "planner/outline.hpp"
#include "planner/trace_planning.hpp"
#include "profile/store.hpp"
#include "reports/plans.hpp"
#include "reports/prediction.hpp"
#include "reports/published_plans.hpp"
#include "reports/trace.hpp"

namespace sailor::apps {

namespace {

/// All inputs of the program.
struct Inputs {
  GpuCatalogue gpus;
  Model model;
  Profile profile;
  std::optional<ClusterInput> cluster;
  simulator::Framework framework;
};

Result<Inputs> read_inputs(const PlanOptions& options, const Environment& environment) {
  auto gpus = GpuCatalogue::load(catalogue_file(options, environment));
  if (!gpus) return fail(gpus.error());
  auto model = find_model(*options.model, models_folder(options.models, environment));
  if (!model) return fail(model.error());
  if (const std::string unplanned = model->unplanned_text(false); !unplanned.empty())
    log_warning("{}: plans and predictions do not cover {}; {}", model->name, unplanned,
                *options.framework == "sailor" ? "sailor-train does not train it" : "set it in the framework yourself");
  auto profile = read_profile(options.profile, environment, planned_profile(options));
  if (!profile) return fail(profile.error());
  auto cluster = read_cluster_input(options, environment, *gpus);
  if (!cluster) return fail(cluster.error());
  if (*cluster && !*options.preflight) SAILOR_CHECK(check_live_partitions(**cluster, options));
  auto framework = simulator::find_framework(*options.framework, frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  const auto precision = read_precision(options.precision);
  if (!precision) return fail(precision.error());
  if (*precision) SAILOR_CHECK(simulator::check_trains(*framework, **precision, frameworks_folder(environment)));
  return Inputs{*std::move(gpus), *std::move(model), *std::move(profile), *std::move(cluster), *std::move(framework)};
}

/// Shows progress on a terminal during its lifetime.
class Watched {
 public:
  /// `time`: limit of the search, if there is one.
  Watched(planner::Objective objective, std::optional<Seconds> time) : objective_(objective), time_(time) {}

  std::function<void(const planner::SearchProgress&)> report() {
    return [this](const planner::SearchProgress& progress) {
      if (!progress_.is_due()) return;
      std::string text = plural(static_cast<std::size_t>(progress.considered), "plan");
      if (progress.best) {
        const bool by_cost = objective_ == planner::Objective::cost;
        text += fmt::format(", best {}{:.4g}{} (Ctrl-C shows it)", by_cost ? "$" : "", *progress.best,
                            by_cost                                        ? " per iteration"
                            : objective_ == planner::Objective::throughput ? " iterations/s"
                                                                           : " iterations/s per USD");
      }
      if (progress.gap) text += fmt::format(", none more than {:.0f}% better", std::ceil(*progress.gap * 100.0));
      const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start_;
      if (time_)
        text = fmt::format("{} left, {}", format_time(std::max(*time_ - Seconds(gone.count()), Seconds(0.0))), text);
      progress_.update(text);
    };
  }

  /// Erases the progress, before anything else is written.
  void finish() { progress_.finish(); }

 private:
  planner::Objective objective_;
  std::optional<Seconds> time_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Progress progress_{"planning"};
};

Result<PlanOrigin> origin_of(const PlanOptions& options, const Environment& environment, const Inputs& inputs) {
  auto measured = profile_hash(find_store(planned_profile(options), environment));
  if (!measured) return fail(measured.error());
  return origin_of(options, inputs.cluster->cluster, *measured);
}

/// The best plan in the original's JSON. Errors: usage, if it cannot be expressed in it.
Result<std::string> in_original_json(const Plan& plan, const Cluster& cluster, const planner::Request& request) {
  std::map<std::string, int> devices;
  for (const NodeGroup& group : cluster.usable(request.partitions, request.availability))
    devices[group.gpu] = std::max(devices[group.gpu], group.gpus_per_node);
  auto json = original_plan_to_json(plan, devices);
  if (!json) return fail(ErrorCode::usage, "--format sailor-json: " + json.error().what, json.error().hint);
  return json;
}

std::vector<std::string> next_commands(const PlanOptions& options) {
  if (!options.output.has()) return {"the same command with --output plan.toml, which keeps the plan"};
  const std::string plan = shell_quote(*options.output);
  return {fmt::format("sailor-simulate {} --trace trace.json  # memory of every rank, and a timeline", plan),
          submit_command(*options.output)};
}

/// Writes the found plans to stdout and to --output. `found` is a SearchResult or an ArtifactResult; `more` is printed
/// below the table and becomes further keys of the JSON.
template <class Found>
Result<void> write(const PlanOptions& options, const Environment& environment, const Inputs& inputs,
                   const planner::Request& request, const reports::Heading& heading, Found& found,
                   const Answers& more) {
  if constexpr (std::is_same_v<Found, planner::SearchResult>)
    if (!found.not_linked.empty()) log_warning("{}", found.not_linked);
  for (const std::string& what : found.left_out) log_warning("left out: {}", what);
  const auto origin = origin_of(options, environment, inputs);
  if (!origin) return fail(origin.error());
  for (auto& candidate : found.plans) candidate.plan.origin = *origin;
  const Plan& best = found.plans.front().plan;
  std::string text;
  if (const std::string format = *options.format; format == "toml") {
    text = fmt::format("# {}\n", reports::heading_text(heading)) + plan_to_toml(best);
  } else if (format == "sailor-json") {
    auto json = in_original_json(best, inputs.cluster->cluster, request);
    if (!json) return fail(json.error());
    text = *std::move(json);
  } else if (is_handover_format(format)) {
    auto written = in_handover_format(format, best, inputs.model, "sailor-plan");
    if (!written) return fail(written.error());
    text = *std::move(written);
  } else if (format == "json") {
    nlohmann::ordered_json json = reports::plans_to_json(heading, request, found);
    json.update(more.json);
    text = json.dump(2) + "\n";
  } else {
    text = fitted(reports::plans_report(heading, request, found) + more.text);
  }
  if (options.output.has()) SAILOR_CHECK(save_plan(best, *options.output));
  fmt::print("{}", text);
  if (options.output.has()) log_info("wrote {} ({})", *options.output, describe(best));
  if (*options.format == "table") suggest_next(next_commands(options));
  return {};
}

Result<void> plan_for_trace(const PlanOptions& options, planner::Request request,
                            const simulator::Environment& simulated) {
  const reports::TraceTimes times{.reconfiguration = Seconds(*options.reconfiguration_time),
                                  .last_step = Seconds(*options.last_step)};
  // All of the training uses one precision.
  const auto available = load_availability_trace(*options.availability_trace, simulated.gpus, times.last_step);
  if (!available) return fail(available.error());
  std::set<std::string> types;
  for (const AvailabilityStep& step : *available)
    for (const AvailableGpus& gpus : step.gpus)
      if (gpus.count > 0) types.insert(gpus.gpu);
  const std::vector<std::string> on(types.begin(), types.end());
  const auto given = read_precision(options.precision);
  if (!given) return fail(given.error());
  request.job.precision = usual_precision(
      precision_candidates(*given, simulated.profile, simulated.model.name, &simulated.framework, simulated.gpus, on),
      simulated.gpus, on);
  const auto steps = planner::plan_trace(*available, request, simulated, times.reconfiguration);
  if (!steps) return fail(steps.error());
  if (*options.format == "json")
    fmt::print("{}\n", reports::trace_to_json(request, simulated.cluster != nullptr ? simulated.cluster->name : "",
                                              *steps, times)
                           .dump(2));
  else
    fmt::print("{}", fitted(reports::trace_report(request, *steps, times)));
  if (std::none_of(steps->begin(), steps->end(), [](const auto& step) { return step.plan.has_value(); }))
    return fail(ErrorCode::infeasible, fmt::format("{}: no step has a plan", *options.availability_trace),
                "see what the steps say");
  return {};
}

double headroom_of(const planner::Candidate& best) { return best.memory_headroom; }
std::optional<double> headroom_of(const planner::ArtifactPlan&) { return std::nullopt; }

/// Checks the job of the best plan, if --preflight is given, adds the checks to `answers`, and returns the exit status.
template <class Found>
Result<int> add_preflight(const PlanOptions& options, const Environment& environment, const Inputs& inputs,
                          Found& found, Answers& answers) {
  if (!*options.preflight) return 0;
  const auto& best = found.plans.front();
  const auto checks = check_job(options, environment,
                                {.cluster = *inputs.cluster,
                                 .gpus = inputs.gpus,
                                 .plan = &best.plan,
                                 .model = &inputs.model,
                                 .profile = profile_facts(inputs.profile, best.plan, inputs.model.name),
                                 .memory_headroom = headroom_of(best)});
  if (!checks) return fail(checks.error());
  answers.text += "\nBefore the queue:\n" + preflight::report(*checks);
  answers.json["preflight"] = preflight_to_json(*checks);
  return preflight::exit_status(preflight::worst(*checks));
}

/// Reports that there is no plan: with --preflight as one failed check among others.
Result<int> report_no_plan(const PlanOptions& options, const Environment& environment, const Inputs& inputs,
                           const Error& error) {
  if (!*options.preflight || error.code == ErrorCode::usage) return fail(error);
  const auto checks =
      check_job(options, environment,
                {.cluster = *inputs.cluster, .gpus = inputs.gpus, .model = &inputs.model, .no_plan = error});
  if (!checks) return fail(checks.error());
  if (*options.format == "json")
    fmt::print("{}\n", nlohmann::ordered_json({{"preflight", preflight_to_json(*checks)}}).dump(2));
  else
    fmt::print("{}", fitted(preflight::report(*checks)));
  return preflight::exit_status(preflight::worst(*checks));
}

/// Adds the results of further searches to the answers, as far as there is time.
void add_comparisons(const planner::Request& request, const simulator::Environment& simulated,
                     const PrecisionAnswer& answer, std::optional<Seconds> left, Answers& answers) {
  std::string text = next_precision_text(answer);
  answers.json["next_best_precision"] = next_precision_to_json(answer);
  answers.json["what_pays"] = nlohmann::ordered_json::array();
  if (!request.pareto)
    for (const planner::Advice& advice : planner::what_pays(answer.found.plans.front(), request, simulated, left)) {
      text += advice.text + "\n";
      nlohmann::ordered_json row = reports::prediction_to_json(advice.plan.prediction);
      row["text"] = advice.text;
      row["description"] = planner::outline(advice.plan.plan);
      row["plan"] = reports::plan_to_json(advice.plan.plan);
      answers.json["what_pays"].push_back(std::move(row));
    }
  if (!text.empty()) answers.text = "\n" + text + answers.text;
}

/// Searches plans in the given or best precision, and writes the result.
Result<int> plan_by_simulator(const PlanOptions& options, const Environment& environment, const Inputs& inputs,
                              planner::Request request, simulator::Environment simulated) {
  // Shared by several searches, which ask for the same layers.
  const LayerCosts costs = simulator::layer_costs_for(simulated);
  simulated.costs = &costs;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> gpus;
  for (const NodeGroup& group : planner::considered_nodes(request, *simulated.cluster, simulated.gpus).groups)
    if (std::find(gpus.begin(), gpus.end(), group.gpu) == gpus.end()) gpus.push_back(group.gpu);
  const auto given = read_precision(options.precision);
  if (!given) return fail(given.error());
  PrecisionCandidates candidates =
      precision_candidates(*given, simulated.profile, simulated.model.name, &simulated.framework, simulated.gpus, gpus);
  if (!*given && options.why_not.has()) {
    const auto compared = read_plan_input(*options.why_not, options, environment, inputs.gpus, inputs.profile);
    if (!compared) return fail(compared.error());
    candidates = {.precisions = {compared->plan.job.precision}, .why = "as the plan of --why-not"};
  }
  request.job.precision = candidates.precisions.front();
  const auto own = read_own_plan(options, environment, request, simulated);
  if (!own) return fail(own.error());
  const std::string format = *options.format;
  const bool compare = (format == "table" || format == "json") && request.space == planner::Space::full;
  catch_stop_requests("sailor-plan", {SIGINT});
  request.effort.is_interrupted = [] { return stop_request() != 0; };
  Watched watched(request.objective, request.effort.time);
  auto answer = plan_in_best_precision(candidates, request, simulated, compare, watched.report());
  watched.finish();
  if (!answer) return report_no_plan(options, environment, inputs, answer.error());
  request.job.precision = answer->precision;
  Answers answers = answer_questions(options, request, simulated, answer->found, *own);
  const auto status = add_preflight(options, environment, inputs, answer->found, answers);
  if (!status) return fail(status.error());
  std::optional<Seconds> left;
  if (request.effort.time) {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start;
    left = std::max(Seconds(0.0), *request.effort.time - Seconds(gone.count()));
  }
  if (compare && answer->found.stop != planner::Stop::interrupted)
    add_comparisons(request, simulated, *answer, left, answers);
  reports::Heading heading = reports::heading_of(request, simulated, answer->found.nodes, planned_profile(options));
  heading.why_precision = answer->why;
  SAILOR_CHECK(write(options, environment, inputs, request, heading, answer->found, answers));
  return *status;
}

Result<int> run(const PlanOptions& options, const Environment& environment) {
  if (wants_planner_list(options)) {
    fmt::print("{}", reports::planner_list());
    return 0;
  }
  SAILOR_CHECK(check_plan_options(options));
  if (options.plan.has()) return preflight_of_plan(options, environment);
  for (const auto* written : OptionList{&options.output, &options.save_cluster})
    if (written->has()) SAILOR_CHECK(check_can_write(written->text()));
  auto inputs = read_inputs(options, environment);
  if (!inputs) return fail(inputs.error());
  const bool trace = options.availability_trace.has();
  if (!inputs->cluster && !trace)
    return fail(ErrorCode::usage, "no cluster is named", "use --partition NAME (live, from Slurm) or --cluster FILE");
  if (options.save_cluster.has())
    SAILOR_CHECK(write_file_atomically(*options.save_cluster, cluster_to_toml(inputs->cluster->cluster)));
  auto request = read_request(options, inputs->model, inputs->profile, inputs->gpus);
  if (!request) return fail(request.error());
  if (*options.watch) {
    SAILOR_CHECK(check_excluded_nodes(*request, inputs->cluster->cluster));
    const WatchInputs watched{
        .gpus = inputs->gpus, .model = inputs->model, .profile = inputs->profile, .framework = inputs->framework};
    SAILOR_CHECK(watch(options, environment, watched, *inputs->cluster, *request));
    return 0;
  }
  // A trace itself says which devices are available when.
  std::optional<Cluster> part;
  if (inputs->cluster) part = trace ? inputs->cluster->cluster : searched_part(inputs->cluster->cluster, *request);
  const simulator::Environment simulated{.model = inputs->model,
                                         .profile = inputs->profile,
                                         .gpus = inputs->gpus,
                                         .framework = inputs->framework,
                                         .cluster = part ? &*part : nullptr,
                                         .measured_only = *options.measured_only};
  if (trace) {
    SAILOR_CHECK(plan_for_trace(options, *request, simulated));
    return 0;
  }
  SAILOR_CHECK(check_excluded_nodes(*request, inputs->cluster->cluster));
  keep_excluded_nodes_of(*part, *request);
  if (by_published_planner(options)) {
    const auto nodes = planner::considered_nodes(*request, *part, inputs->gpus).groups;
    reports::Heading heading = reports::heading_of(*request, simulated, nodes, planned_profile(options));
    heading.why_precision = options.precision.has() ? "as --precision says" : "as the profile has the model";
    const auto origin = origin_of(options, environment, *inputs);
    if (!origin) return fail(origin.error());
    return plan_by_published(options, *request, simulated, heading, nodes, *origin);
  }
  if (*options.cost_model == "artifact") {
    auto found = planner::find_artifact_plans(*request, inputs->model, inputs->profile, *part, inputs->gpus);
    if (!found) return report_no_plan(options, environment, *inputs, found.error());
    Answers answers;
    const auto status = add_preflight(options, environment, *inputs, *found, answers);
    if (!status) return fail(status.error());
    reports::Heading heading = reports::heading_of(
        *request, simulated, planner::considered_nodes(*request, *part, inputs->gpus).groups, planned_profile(options));
    heading.why_precision = options.precision.has() ? "as --precision says" : "as the profile has the model";
    SAILOR_CHECK(write(options, environment, *inputs, *request, heading, *found, answers));
    return *status;
  }
  return plan_by_simulator(options, environment, *inputs, *std::move(request), simulated);
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv,
                                   sailor::apps::command(sailor::apps::plan_command_line, sailor::apps::run));
}
