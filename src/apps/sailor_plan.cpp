// sailor-plan: finds the best plans for a model on a cluster, under limits and with parts of the plan given. Runs on a
// login node: no GPU, no MPI. Failure: exit 1, 2 for a wrong command line, 3 when no plan fits or keeps the limits.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "apps/inputs.hpp"
#include "apps/plan/command_line.hpp"
#include "apps/plan/plan_reports.hpp"
#include "apps/plan/questions.hpp"
#include "apps/plan/trace_planning.hpp"
#include "apps/reports.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "plan/original_plan.hpp"
#include "profile/store.hpp"

namespace sailor::apps {

namespace {

/// Everything that was read.
struct Inputs {
  GpuCatalogue gpus;
  Model model;
  Profile profile;
  std::optional<Cluster> cluster;
  simulator::Framework framework;
};

Result<Inputs> read_inputs(const Options& options, const Environment& environment) {
  auto gpus = GpuCatalogue::load(gpus_file(options, environment));
  if (!gpus) return fail(gpus.error());
  auto model = find_model(options.text("model"), models_folder(options, environment));
  if (!model) return fail(model.error());
  auto profile = read_profile(options, environment);
  if (!profile) return fail(profile.error());
  auto cluster = read_cluster(options, environment, *gpus);
  if (!cluster) return fail(cluster.error());
  auto framework = simulator::find_framework(options.text("framework"), frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  return Inputs{*std::move(gpus), *std::move(model), *std::move(profile), *std::move(cluster), *std::move(framework)};
}

/// Progress on a terminal while it lives.
class Watched {
 public:
  std::function<void(std::size_t, std::size_t)> report() {
    return [this](std::size_t done, std::size_t of) { progress_.update(done, of, plural(done, "plan")); };
  }

 private:
  Progress progress_{"planning"};
};

Result<PlanOrigin> origin_of(const Options& options, const Environment& environment, const Inputs& inputs) {
  auto measured = profile_hash(find_store(options.text("profile"), environment));
  if (!measured) return fail(measured.error());
  return PlanOrigin{.tool = fmt::format("sailor-plan {}", version()),
                    .cluster = inputs.cluster->origin,
                    .partition = options.text("partition"),
                    .profile_store = options.text("profile"),
                    .framework = options.text("framework"),
                    .cluster_hash = content_hash(cluster_to_toml(*inputs.cluster)),
                    .profile_hash = *measured};
}

/// The best plan in the original's JSON. Errors: usage, when it cannot be said so.
Result<std::string> in_original_json(const Plan& plan, const Cluster& cluster, const std::string& partition) {
  std::map<std::string, int> devices;
  for (const NodeGroup& group : cluster.usable(partition, false))
    devices[group.gpu] = std::max(devices[group.gpu], group.gpus_per_node);
  auto json = original_plan_to_json(plan, devices);
  if (!json) return fail(ErrorCode::usage, "--format sailor-json: " + json.error().what, json.error().hint);
  return json;
}

/// Writes what was found to stdout and to --output. `found` is a SearchResult or an ArtifactResult; `more` is said
/// below the table and becomes further keys of the JSON.
template <class Found>
Result<void> write(const Options& options, const Environment& environment, const Inputs& inputs,
                   const planner::Request& request, Found& found, const Answers& more) {
  for (const std::string& what : found.left_out) spdlog::warn("left out: {}", what);
  const auto origin = origin_of(options, environment, inputs);
  if (!origin) return fail(origin.error());
  for (auto& candidate : found.plans) candidate.plan.origin = *origin;
  const Plan& best = found.plans.front().plan;
  std::string text;
  if (const std::string format = options.text("format"); format == "toml") {
    text = plan_to_toml(best);
  } else if (format == "sailor-json") {
    auto json = in_original_json(best, *inputs.cluster, request.partition);
    if (!json) return fail(json.error());
    text = *std::move(json);
  } else if (format == "json") {
    nlohmann::ordered_json json = plans_to_json(request, found);
    json.update(more.json);
    text = json.dump(2) + "\n";
  } else {
    text = plans_report(request, found) + more.text;
  }
  if (options.has("output")) SAILOR_CHECK(save_plan(best, options.text("output")));
  fmt::print("{}", text);
  if (options.has("output")) spdlog::info("wrote {} ({})", options.text("output"), describe(best));
  return {};
}

Result<void> run(const Options& options, const Environment& environment) {
  SAILOR_CHECK(check_plan_options(options));
  for (const char* written : {"output", "save-cluster"})
    if (options.has(written)) SAILOR_CHECK(check_can_write(options.text(written)));
  auto inputs = read_inputs(options, environment);
  if (!inputs) return fail(inputs.error());
  const bool trace = options.has("availability-trace");
  if (!inputs->cluster && !trace)
    return fail(ErrorCode::usage, "no cluster is named", "use --partition NAME (live, from Slurm) or --cluster FILE");
  if (options.has("save-cluster"))
    SAILOR_CHECK(write_file_atomically(options.text("save-cluster"), cluster_to_toml(*inputs->cluster)));
  const auto request = read_request(options, inputs->model, inputs->profile, inputs->gpus);
  if (!request) return fail(request.error());
  const simulator::Environment simulated{.model = inputs->model,
                                         .profile = inputs->profile,
                                         .gpus = inputs->gpus,
                                         .framework = inputs->framework,
                                         .cluster = inputs->cluster ? &*inputs->cluster : nullptr,
                                         .measured_only = options.flag("measured-only")};
  if (trace) {
    const TraceTimes times{.reconfiguration = Seconds(options.number("reconfiguration-time")),
                           .last_step = Seconds(options.number("last-step"))};
    const auto steps = plan_trace(options.text("availability-trace"), *request, simulated, times);
    if (!steps) return fail(steps.error());
    if (options.text("format") == "json")
      fmt::print("{}\n", trace_to_json(*request, *steps, times).dump(2));
    else
      fmt::print("{}", trace_report(*request, *steps, times));
    if (std::none_of(steps->begin(), steps->end(), [](const auto& step) { return step.plan.has_value(); }))
      return fail(ErrorCode::infeasible, fmt::format("{}: no step has a plan", options.text("availability-trace")),
                  "see what the steps say");
    return {};
  }
  SAILOR_CHECK(check_excluded_nodes(*request, *inputs->cluster));
  if (options.text("cost-model") == "artifact") {
    auto found = planner::find_artifact_plans(*request, inputs->model, inputs->profile, *inputs->cluster, inputs->gpus);
    if (!found) return fail(found.error());
    return write(options, environment, *inputs, *request, *found, {});
  }
  const auto own = read_own_plan(options, environment, *request, simulated);
  if (!own) return fail(own.error());
  Watched watched;
  auto found = planner::find_plans(*request, simulated, watched.report());
  if (!found) return fail(found.error());
  const auto answers = answer_questions(options, *request, simulated, *found, *own);
  return write(options, environment, *inputs, *request, *found, answers);
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::plan_command_line(), sailor::apps::run);
}
