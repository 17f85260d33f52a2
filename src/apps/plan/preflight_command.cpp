#include "apps/plan/preflight_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>

#include "apps/inputs.hpp"
#include "apps/simulate/plan_input.hpp"
#include "apps/training_program.hpp"
#include "core/output_fit.hpp"
#include "handover/handover.hpp"
#include "plan/node_placement.hpp"
#include "plan/plan_origin.hpp"
#include "preflight/system.hpp"
#include "profile/store.hpp"
#include "simulator/simulator.hpp"
#include "slurm/node_records.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

using nlohmann::ordered_json;

namespace {

constexpr Seconds command_deadline{15};  // limit for sacctmgr and srun

/// Seconds since 1970 of "2026-11-21T05:57:21.250Z"; std::nullopt if it cannot be parsed.
std::optional<double> unix_time(std::string_view date) {
  std::array<int, 6> parts{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [end, problem] = std::from_chars(date.data(), date.data() + date.size(), parts[i]);
    if (problem != std::errc()) return std::nullopt;
    date.remove_prefix(static_cast<std::size_t>(end - date.data()));
    if (!date.empty()) date.remove_prefix(1);
    if (i == 2 && date.empty()) break;  // a date without a time
  }
  const std::chrono::year_month_day day{std::chrono::year(parts[0]),
                                        std::chrono::month(static_cast<unsigned>(parts[1])),
                                        std::chrono::day(static_cast<unsigned>(parts[2]))};
  if (!day.ok()) return std::nullopt;
  const auto days = std::chrono::sys_days(day).time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600.0 * parts[3] + 60.0 * parts[4] + parts[5];
}

/// The framework that a plan is made for.
std::string framework_of(const PlanOptions& options, const Plan& plan) {
  return options.framework.given() || plan.origin.framework.empty() ? *options.framework : plan.origin.framework;
}

/// The value of an option, else of the variable that sbatch would read, as with sailor-submit.
std::string option_or_variable(const OptionValue<std::string>& option, const Environment& environment,
                               const char* variable) {
  if (option.has()) return *option;
  const auto found = environment.find(variable);
  return found == environment.end() ? "" : found->second;
}

Result<preflight::Job> job_of(const PlanOptions& options, const Environment& environment, const PreflightInput& input) {
  preflight::Job job{.partitions = partitions_of(options.partition),
                     .account = option_or_variable(options.account, environment, "SBATCH_ACCOUNT"),
                     .qos = option_or_variable(options.qos, environment, "SBATCH_QOS"),
                     .time = std::nullopt,
                     .iterations = std::nullopt,
                     .data = *options.data,
                     .checkpoints = *options.checkpoints,
                     .mpi = *options.mpi,
                     .memory_margin = *options.memory_margin,
                     .reservation = *options.reservation,
                     .program = training_program(options, environment),
                     .licenses = *options.licenses};
  if (options.time.has()) {
    const auto time = slurm::parse_time_limit(*options.time);
    if (!time) return fail(ErrorCode::usage, "--time: " + time.error().what, time.error().hint);
    job.time = *time;
  }
  if (options.iterations.has()) job.iterations = *options.iterations;
  if (options.tokens.has() && input.plan != nullptr)
    job.iterations = std::ceil(*options.tokens / input.plan->job.tokens());
  if (job.mpi.empty()) {
    const auto usual = slurm::choose_environment(input.cluster.site, "");
    if (!usual) return fail(usual.error());
    job.mpi = *usual != nullptr && !(*usual)->mpi.empty() ? (*usual)->mpi : input.cluster.site.launch.mpi;
  }
  return job;
}

/// Whether the framework that a plan is made for can run it; std::nullopt for Sailor's own, and where --program says
/// what is to run.
std::optional<preflight::FrameworkAnswer> framework_answer(const PlanOptions& options, const PreflightInput& input) {
  if (input.plan == nullptr || input.model == nullptr || options.program.has()) return std::nullopt;
  const std::string name = framework_of(options, *input.plan);
  if (name == "sailor" || name.ends_with(".toml")) return std::nullopt;  // a description of one's own
  std::optional<preflight::FrameworkAnswer> refused;
  for (const std::string& trainer : handover::formats_for(name)) {
    const handover::Format format = *handover::parse_format(trainer);
    const auto written =
        handover::hand_over(format, *input.plan, *input.model, "sailor-plan", handover::Ranks::as_numbered);
    preflight::FrameworkAnswer answer{.framework = std::string(handover::framework_of(format)),
                                      .trainer = trainer,
                                      .can_run = written ? Result<void>() : fail(written.error())};
    if (written) return answer;
    if (!refused) refused = std::move(answer);
  }
  return refused ? refused : preflight::FrameworkAnswer{.framework = name};
}

/// Collects everything that must be queried from Slurm, the program and the file systems.
/// sailor-train is not asked where the framework has answered.
preflight::Answers ask(const PreflightInput& input, const preflight::Job& job, const Environment& environment,
                       std::optional<preflight::FrameworkAnswer> framework) {
  preflight::Answers answers{.now_unix_s = preflight::now_unix_s(),
                             .identity = preflight::current_identity(),
                             .accounting = std::nullopt,
                             .starts = {},
                             .mpi_types = std::nullopt,
                             .data = std::nullopt,
                             .checkpoints = std::nullopt,
                             .profile = input.profile,
                             .memory_headroom = input.memory_headroom,
                             .not_simulated = input.not_simulated,
                             .program = framework ? std::nullopt : ask_about(job.program),
                             .framework = std::move(framework)};
  if (!job.data.empty()) answers.data = preflight::data_facts(job.data);
  if (!job.checkpoints.empty()) answers.checkpoints = preflight::checkpoint_facts(job.checkpoints);
  if (!input.cluster.live) return answers;
  answers.mpi_types = preflight::mpi_types(command_deadline);
  if (input.cluster.facts.accounting)
    answers.accounting = slurm::read_accounting(answers.identity.user, input.cluster.cluster.name, command_deadline);
  if (input.plan == nullptr) return answers;
  const slurm::SlurmEnvironment slurm{.configuration = slurm_configuration(environment)};
  for (const Availability availability : {Availability::up, Availability::all})
    if (const auto needs = preflight::needs_of(*input.plan, input.cluster.cluster, job.partitions, availability)) {
      answers.starts = preflight::ask_starts(*needs, job, input.cluster.site, input.gpus, slurm);
      break;
    }
  return answers;
}

/// Predicts the plan again: the prediction in its file may be older than its last edit.
void predict(const PlanOptions& options, const Environment& environment, const Profile& profile, const Model& model,
             const GpuCatalogue& gpus, const Cluster& cluster, Plan& plan, PreflightInput& input) {
  const auto framework = simulator::find_framework(framework_of(options, plan), frameworks_folder(environment));
  if (!framework) return;
  const auto prediction = simulator::simulate(plan, {.model = model,
                                                     .profile = profile,
                                                     .gpus = gpus,
                                                     .framework = *framework,
                                                     .cluster = &cluster,
                                                     .measured_only = *options.measured_only});
  if (!prediction) {
    input.not_simulated = prediction.error();
    return;
  }
  plan.prediction = simulator::summary(*prediction);
  plan.prediction_is_stale = false;
  for (const simulator::StagePrediction& stage : prediction->stages)
    if (stage.capacity) {
      const double free = 1.0 - stage.memory.total() / *stage.capacity;
      input.memory_headroom = std::min(input.memory_headroom.value_or(free), free);
    }
}

}  // namespace

std::vector<preflight::ProfileFacts> profile_facts(const Profile& profile, const Plan& plan, const std::string& model) {
  const ProfileData& data = profile.data();
  const auto now = static_cast<double>(preflight::now_unix_s());
  std::vector<preflight::ProfileFacts> all;
  for (const auto& [gpu, zone] : kinds_of(plan)) {
    if (std::any_of(all.begin(), all.end(), [&, &name = gpu](const auto& known) { return known.gpu == name; }))
      continue;
    preflight::ProfileFacts facts{.gpu = gpu, .measured = false, .published = false, .age_days = std::nullopt};
    for (const LayerTime& row : data.layer_times) {
      if (row.key.model != model || row.key.gpu != gpu) continue;
      const Provenance& provenance = data.sessions[static_cast<std::size_t>(row.session)].provenance;
      if (!provenance.source.empty()) {
        facts.published = true;
        continue;
      }
      facts.measured = true;
      if (const auto date = unix_time(provenance.date)) {
        const double age = (now - *date) / 86400.0;
        facts.age_days = std::min(facts.age_days.value_or(age), age);
      }
    }
    all.push_back(std::move(facts));
  }
  return all;
}

Result<std::vector<preflight::Check>> check_job(const PlanOptions& options, const Environment& environment,
                                                const PreflightInput& input) {
  const auto job = job_of(options, environment, input);
  if (!job) return fail(job.error());
  const preflight::Answers answers = ask(input, *job, environment, framework_answer(options, input));
  return preflight::run_checks({.job = *job,
                                .cluster = input.cluster.cluster,
                                .gpus = input.gpus,
                                .site = input.cluster.site,
                                .facts = input.cluster.facts,
                                .left_out = input.cluster.left_out,
                                .answers = answers,
                                .plan = input.plan,
                                .model = input.model,
                                .no_plan = input.no_plan});
}

ordered_json preflight_to_json(const std::vector<preflight::Check>& checks) {
  ordered_json rows = ordered_json::array();
  for (const preflight::Check& check : checks)
    rows.push_back({{"name", check.name},
                    {"outcome", preflight::to_string(check.outcome)},
                    {"what", check.what},
                    {"remedy", check.remedy}});
  return {{"outcome", preflight::to_string(preflight::worst(checks))}, {"checks", std::move(rows)}};
}

Result<int> preflight_of_plan(const PlanOptions& options, const Environment& environment) {
  const std::string& path = *options.plan;
  const auto gpus = GpuCatalogue::load(catalogue_file(options, environment));
  if (!gpus) return fail(gpus.error());
  auto plan = load_plan(path);
  if (!plan) return fail(plan.error());
  const auto model = find_model(*plan, models_folder(options.models, environment));
  if (!model) return fail(model.error(), path);
  if (auto good = check_plan(*plan, *model); !good) return fail(good.error(), path);
  use_catalogue_names(*plan, *gpus);
  const auto cluster = read_cluster_input(options, environment, *gpus, &*plan);
  if (!cluster) return fail(cluster.error());
  PreflightInput input{.cluster = **cluster, .gpus = *gpus, .plan = &*plan, .model = &*model};
  const std::string store = options.profile.has() ? *options.profile : plan->origin.profile_store;
  if (!store.empty()) {
    auto data = load_profile(find_store(store, environment));
    if (data) {
      const Profile profile(*std::move(data));
      input.profile = profile_facts(profile, *plan, model->name);
      predict(options, environment, profile, *model, *gpus, (*cluster)->cluster, *plan, input);
    } else {
      input.profile = Result<std::vector<preflight::ProfileFacts>>(fail(data.error()));
    }
  }
  const auto checks = check_job(options, environment, input);
  if (!checks) return fail(checks.error());
  if (*options.format == "json") {
    ordered_json json{{"model", plan->job.model},
                      {"cluster", {{"name", (*cluster)->cluster.name}}},
                      {"precision", to_string(plan->job.precision)}};
    json.update(preflight_to_json(*checks));
    json["plan"] = path;
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", fitted(fmt::format("{}: {} in {}, {}\n\n{}", slurm::printable(path),
                                        slurm::printable(plan->job.model), to_string(plan->job.precision),
                                        slurm::printable(describe(*plan)), preflight::report(*checks))));
  }
  return preflight::exit_status(preflight::worst(*checks));
}

}  // namespace sailor::apps
