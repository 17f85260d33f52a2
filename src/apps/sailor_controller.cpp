// sailor-controller: decides which ranks take part in an elastic training, and under which plan. The job script starts
// one; it needs no GPU and no MPI. A supervisor in it restarts it when it dies or hangs, while the ranks train on.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/inputs.hpp"
#include "apps/programs.hpp"
#include "apps/stop_requests.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/shell.hpp"
#include "core/stop_status.hpp"
#include "core/terminal.hpp"
#include "elastic/adapted_plan.hpp"
#include "elastic/controller.hpp"
#include "elastic/copies_estimate.hpp"
#include "elastic/supervisor.hpp"
#include "plan/plan_origin.hpp"
#include "planner/planner.hpp"
#include "simulator/framework.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

namespace {

struct ControllerOptions : CommonOptions {
  OptionValue<std::string> folder, plan, copies, profile, cluster, models, framework, gpus;
  OptionValue<double> silence, wait, planning_time, min_gain, switch_time;
  OptionValue<int> min_ranks, max_ranks, port;
};

CommandLine command_line(ControllerOptions& options) {
  return {
      .program = "sailor-controller",
      .purpose = purpose_of("sailor-controller"),
      .positionals = {positional(
          options.folder,
          {.name = "FOLDER",
           .help = "folder of the training, on a file system that all nodes see: ranks find the controller there"})},
      .options =
          {option(options.plan, {.name = "plan", .value_name = "FILE", .help = "the plan to begin with (plan.toml)"}),
           option(options.profile, {.name = "profile",
                                    .value_name = "STORE",
                                    .help = "plan anew for the devices that are there, with these measurements; "
                                            "without, the plan's own pipelines become fewer or more"}),
           option(options.cluster, shared::cluster_file()), option(options.models, shared::models_folder()),
           option(options.framework, shared::framework()), option(options.gpus, shared::gpus_file()),
           option(
               options.copies,
               {.name = "copies",
                .value_name = "WHEN",
                .help = "keep state that only one rank has in the memory of another node, too, so that its loss costs "
                        "one iteration at most: auto (where no replica on another node has it and, by --profile, "
                        "iterations get at most 10 % longer) or never (the newest checkpoint counts then)",
                .default_value = "auto",
                .choices = {"auto", "never"}}),
           option(options.min_ranks, {.name = "min-ranks",
                                      .value_name = "N",
                                      .help = "with fewer devices the training waits for more",
                                      .default_value = "1",
                                      .minimum = 1}),
           option(options.max_ranks, {.name = "max-ranks",
                                      .value_name = "N",
                                      .help = "use no more devices than that; 0: all that come",
                                      .default_value = "0",
                                      .minimum = 0}),
           option(options.silence, {.name = "silence",
                                    .value_name = "SECONDS",
                                    .help = "a rank that is not heard of for longer is lost; ranks report every second",
                                    .default_value = "5",
                                    .minimum = 2,
                                    .maximum = 3600}),
           option(options.wait, {.name = "wait",
                                 .value_name = "SECONDS",
                                 .help = "wait so long for devices that are missing, at the start and later",
                                 .default_value = "600",
                                 .minimum = 1}),
           option(options.planning_time, {.name = "planning-time",
                                          .value_name = "SECONDS",
                                          .help = "with --profile: search for a plan for so long at most",
                                          .default_value = "3",
                                          .minimum = 0.1}),
           option(options.min_gain,
                  {.name = "min-gain",
                   .value_name = "SHARE",
                   .help = "least gain in throughput for which the plan is changed, as a share of the current one",
                   .default_value = "0.02",
                   .minimum = 0}),
           option(options.switch_time,
                  {.name = "switch-time",
                   .value_name = "SECONDS",
                   .help = "assumed time of a planned change; it is made only if training still ends sooner",
                   .default_value = "3",
                   .minimum = 0}),
           option(options.port, {.name = "port",
                                 .value_name = "N",
                                 .help = "listen on this TCP port; 0: any",
                                 .default_value = "0",
                                 .minimum = 0,
                                 .maximum = 65535})},
      .examples = {{"sailor-controller run --plan plan.toml --profile store --cluster cluster.toml",
                    "in the job script, in the background, before srun starts the ranks"},
                   {"srun --no-kill --kill-on-bad-exit=0 --mpi=none sailor-train plan.toml --elastic run --data corpus",
                    "the ranks; those of further jobs that start later take part in the same way"}},
      .exit_statuses = {{0, "all iterations are done"},
                        {1, "failure; the message says of what"},
                        {2, "wrong usage"},
                        {6, "the ranks were stopped by a signal, without a checkpoint"},
                        {75, "the ranks were stopped by a signal, with a checkpoint: the same command goes on"}},
      .notes =
          "What happens is printed, a line per event, and kept in FOLDER/events.jsonl, an object of JSON per line.\n"
          "A controller that is started again with the same FOLDER goes on where the one before was. Nodes named in\n"
          "FOLDER/exclude, one per line, are left after the running iteration; a plan in FOLDER/requests/*.toml is\n"
          "adopted if its devices are available."};
}

/// Inputs of the planner; only with a profile.
struct Planning {
  Model model;
  Profile profile;
  GpuCatalogue gpus;
  simulator::Framework framework;
  Cluster cluster;  ///< prices, zones, links
  Seconds time;
};

Result<Plan> plan_anew(const Planning& planning, const Plan& before, std::span<const elastic::MemberFacts> members,
                       const std::function<bool()>& is_interrupted) {
  const Cluster cluster = elastic::cluster_of(members, planning.cluster);
  const simulator::Environment environment{.model = planning.model,
                                           .profile = planning.profile,
                                           .gpus = planning.gpus,
                                           .framework = planning.framework,
                                           .cluster = &cluster};
  planner::Request request;
  request.job = before.job;
  request.max_plans = 1;
  request.availability = Availability::all;
  request.effort.brief = true;
  request.effort.time = planning.time;
  request.effort.is_interrupted = is_interrupted;
  auto found = planner::find_plans(request, environment);
  if (!found) return fail(found.error());
  Plan plan = std::move(found->plans.front().plan);
  plan.origin = before.origin;
  plan.origin.tool = fmt::format("sailor-controller {}", version());
  return plan;
}

/// Whether copies of the state make an iteration little longer. Where that cannot be estimated they are made.
bool copies_pay(const Planning& planning, const Plan& plan, const std::vector<std::string>& hosts) {
  const simulator::Environment environment{.model = planning.model,
                                           .profile = planning.profile,
                                           .gpus = planning.gpus,
                                           .framework = planning.framework,
                                           .cluster = planning.cluster.groups.empty() ? nullptr : &planning.cluster};
  const auto prediction = simulator::simulate(plan, environment);
  if (!prediction) return true;
  const auto estimate = elastic::estimate_copies(plan, hosts, environment, *prediction);
  if (!estimate || estimate->longer <= elastic::max_cost_of_copies * prediction->iteration_time) return true;
  log_warning(
      "copies of the state in peers' memory would make an iteration {:.0f} % longer: there are none, and after the "
      "loss "
      "of a node the newest checkpoint counts",
      estimate->longer / prediction->iteration_time * 100.0);
  return false;
}

/// Without times: adapts both the given plan and the previous one to the devices, and takes the one that uses more of
/// them. The given plan has pipelines that the previous one has lost.
Result<Plan> adapt(const Plan& given, const Plan& before, std::span<const elastic::MemberFacts> members) {
  auto of_before = elastic::adapt_plan(before, members);
  auto of_given = elastic::adapt_plan(given, members);
  if (!of_before || (of_given && of_given->ranks() > of_before->ranks())) return of_given;
  return of_before;
}

Result<std::optional<Planning>> read_planning(const ControllerOptions& options, const Environment& environment,
                                              const Plan& plan) {
  if (!options.profile.has()) return std::nullopt;
  auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  auto model = find_model(plan, models_folder(options.models, environment));
  if (!model) return fail(model.error());
  auto profile = read_profile(options.profile, environment);
  if (!profile) return fail(profile.error());
  auto framework = simulator::find_framework(*options.framework, frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  Cluster cluster;
  if (options.cluster.has()) {
    auto read = load_cluster(*options.cluster, *gpus);
    if (!read) return fail(read.error());
    cluster = *std::move(read);
  }
  return Planning{*std::move(model),     *std::move(profile), *std::move(gpus),
                  *std::move(framework), std::move(cluster),  Seconds(*options.planning_time)};
}

Result<int> run(const ControllerOptions& options, const Environment& environment) {
  if (!options.plan.has()) return fail(ErrorCode::usage, "--plan is missing", "make one with sailor-plan");
  const std::filesystem::path folder = *options.folder;
  auto plan = load_plan(*options.plan);
  if (!plan) return fail(plan.error());
  SAILOR_CHECK(create_folders(folder));
  // Errors in the inputs are found before the wait for ranks.
  const auto planning = read_planning(options, environment, *plan);
  if (!planning) return fail(planning.error());
  const Plan given = *plan;
  suggest_next(
      {fmt::format("{}sailor-train {} --elastic {} --data PREFIX  # in other terminals: the ranks",
                   environment.contains("SLURM_JOB_ID") ? "srun --no-kill --kill-on-bad-exit=0 --mpi=none " : "",
                   shell_quote(*options.plan), shell_quote(folder.string()))});
  elastic::ControllerSettings settings{.folder = folder,
                                       .plan = *std::move(plan),
                                       .make_plan =
                                           [&](const Plan& before, std::span<const elastic::MemberFacts> members,
                                               const std::function<bool()>& is_interrupted) {
                                             return *planning ? plan_anew(**planning, before, members, is_interrupted)
                                                              : adapt(given, before, members);
                                           },
                                       .min_ranks = *options.min_ranks,
                                       .max_ranks = *options.max_ranks,
                                       .silence = Seconds(*options.silence),
                                       .patience = Seconds(*options.wait),
                                       .min_gain = *options.min_gain,
                                       .switch_time = Seconds(*options.switch_time),
                                       .copies =
                                           [&](const Plan& now, const std::vector<std::string>& hosts) {
                                             if (*options.copies == "never") return false;
                                             return !*planning || copies_pay(**planning, now, hosts);
                                           },
                                       .port = *options.port,
                                       .say =
                                           [](const std::string& line) {
                                             fmt::print("# {}\n", line);
                                             std::fflush(stdout);
                                           },
                                       .beat = {},
                                       .stop_request = stop_request};
  return elastic::supervise({.silence = settings.silence}, [&](const std::function<void()>& beat) {
    catch_stop_requests("sailor-controller", {SIGINT, SIGTERM, SIGUSR2});
    settings.beat = beat;
    const auto status = elastic::control(settings);
    std::fflush(stdout);
    if (status) return *status;
    return report("sailor-controller", status.error());
  });
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  namespace apps = sailor::apps;
  return apps::run_program(argc, argv, apps::command(apps::command_line, apps::run));
}
