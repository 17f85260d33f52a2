// sailor-simulate: predicts iteration time, memory of every rank and cost of a plan, draws its timeline, and compares
// predictions with what was measured. Runs anywhere. Failure: exit 1, 2 for a wrong command line, 3 when the plan does
// not fit into memory.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "apps/inputs.hpp"
#include "apps/plan/handover_format.hpp"
#include "apps/programs.hpp"
#include "apps/simulate/against_cases.hpp"
#include "apps/simulate/copies.hpp"
#include "apps/simulate/elastic_run.hpp"
#include "apps/simulate/estimators.hpp"
#include "apps/simulate/plan_input.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "core/shell.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/trace.hpp"
#include "reports/prediction.hpp"
#include "reports/timeline_plot.hpp"

namespace sailor::apps {

namespace {

CommandLine command_line(SimulateOptions& options) {
  Option partition = shared::partition();
  partition.help = "take node sizes and memory from this Slurm partition, read live unless --cluster is given";
  Option format = shared::format();
  format.choices = {"table", "json"};
  add_handover_formats(format);
  Option model = shared::model();
  model.help = "model of a plan in the original Sailor's JSON, which does not say it";
  Option profile = shared::profile_store();
  profile.help += " [default: the one that the plan was made with; published for the original's plans and for cases]";
  Option framework = shared::framework();
  framework.help += " [default: the one that the plan was made for or the cases file names, else sailor]";
  framework.default_value.clear();
  const std::vector<Option> estimators = estimator_options(options);
  return {
      .program = "sailor-simulate",
      .purpose = purpose_of("sailor-simulate"),
      .positionals = {positional(
          options.plan, {.name = "PLAN",
                         .help = "plan file: plan.toml, or the JSON of the original Sailor; none with a cases file",
                         .required = false})},
      .options =
          {option(options.profile, profile), option(options.framework, framework),
           option(options.cluster, shared::cluster_file()), option(options.partition, partition),
           option(options.trace,
                  {.name = "trace",
                   .value_name = "FILE",
                   .help = "write what every rank does and when (JSON that ui.perfetto.dev shows; microseconds)",
                   .writes = true}),
           option(options.trace_ranks, {.name = "trace-ranks",
                                        .value_name = "WHICH",
                                        .help = "ranks in the trace: all, or of those that do the same only the first",
                                        .default_value = "all",
                                        .choices = {"all", "one-alike"}}),
           option(options.plot, {.name = "plot",
                                 .value_name = "FILE",
                                 .help = "draw what every stage does and when, or the errors of a cases file as box "
                                         "plots: .svg, .png or .pdf (needs gnuplot)",
                                 .writes = true}),
           option(options.against, {.name = "against",
                                    .value_name = "RUN|CASES",
                                    .help = "compare with what a run measured (run.h5 of sailor-train), or every "
                                            "measured case of a cases file (*.toml) with its prediction"}),
           option(options.copies,
                  {.name = "copies",
                   .help = "show what copies of an elastic training's state cost (sailor-controller --copies)"}),
           option(options.model, model),
           option(options.precision,
                  {.name = "precision",
                   .value_name = "NAME",
                   .help = "number format of a plan in the original's JSON [default: the profiled one of the model, "
                           "tf32 before "
                           "fp32; if there is none, bf16 if every device has it, else fp16, else fp32]",
                   .choices = precision_choices()}),
           estimators.front(), estimators.back(), option(options.measured_only, shared::measured_only()),
           option(options.format, format), option(options.models, shared::models_folder()),
           option(options.gpus, shared::catalogue_or_counts())},
      .examples = {{"sailor-simulate plan.toml --profile store", "time, memory and cost of a plan"},
                   {"sailor-simulate plan.toml --profile store --cluster cluster.toml --format json",
                    "with the nodes of a cluster, for a program to read"},
                   {"sailor-simulate plan.toml --profile store --trace trace.json --plot timeline.svg",
                    "what every rank does and when, for ui.perfetto.dev and as a picture"},
                   {"sailor-simulate plan.toml --profile store --cluster cluster.toml --against run.h5",
                    "how far the prediction was from a run"},
                   {"sailor-simulate --profile store --cluster cluster.toml --against cases.toml --plot errors.svg",
                    "how far predictions were from many runs, and a box plot of the errors"},
                   {"sailor-simulate original.json --model opt-350m-sailor --framework megatron-deepspeed "
                    "--profile published",
                    "a plan of the original Sailor, by figures that come with this one"}},
      .exit_statuses = {{0, "the plan fits"},
                        {1, "failure"},
                        {2, "wrong usage"},
                        {3, "the plan does not fit into memory (the report is printed all the same)"}}};
}

/// The run that --against names; std::nullopt without the option.
Result<std::optional<RunRecord>> read_run(const SimulateOptions& options, const Plan& plan) {
  if (!options.against.has()) return std::nullopt;
  if (to_lower(std::filesystem::path(*options.against).extension().string()) == ".toml")
    return load_plan(*options.against)
               ? fail(ErrorCode::usage,
                      fmt::format("--against '{}' is a plan, not what a run measured", *options.against),
                      "name the run.h5 of sailor-train, or a file of measured cases")
               : fail(ErrorCode::usage,
                      fmt::format("'{}' is a cases file, whose cases have plans of their own", *options.against),
                      "leave out PLAN");
  auto run = load_run(*options.against);
  if (!run) return fail(run.error());
  const auto trained = parse_plan(run->plan_toml, *options.against);
  const bool is_last = trained && plan_fingerprint(*trained) == plan_fingerprint(plan);
  if (use_epochs_of(plan, *run)) {
    if (!is_last)
      log_warning("{}: its times are those of the epochs under this plan, its memory is that of the last plan",
                  *options.against);
  } else if (!is_last)
    log_warning("{} is the run of another plan: what follows compares two different plans", *options.against);
  return std::optional<RunRecord>(*std::move(run));
}

Result<void> write_pictures(const SimulateOptions& options, const Plan& plan, const simulator::Prediction& prediction,
                            const Timeline& timeline) {
  const auto ranks = *options.trace_ranks == "all" ? TraceRanks::all : TraceRanks::one_alike;
  if (options.trace.has()) {
    auto saved = save_trace(plan, timeline, *options.trace, ranks);
    if (!saved) return fail(saved.error());
  }
  if (options.plot.has())
    SAILOR_CHECK(reports::draw(reports::timeline_plot(plan, prediction, timeline), *options.plot));
  return {};
}

/// Suggests to submit a plan that fits, unless it is one of the original Sailor, which the other programs cannot read.
void suggest_submission(const SimulateOptions& options) {
  const std::string& plan = *options.plan;
  if (*options.format != "table" || is_original_plan(plan).value_or(true)) return;
  std::vector<std::string> commands;
  if (options.partition.has()) {
    commands.push_back("sailor-plan --preflight " + shell_quote(plan));
    for (const auto* name : OptionList{&options.partition, &options.cluster, &options.profile})
      if (name->has()) commands.back() += fmt::format(" --{} {}", name->name(), shell_quote(name->text()));
  }
  commands.push_back(submit_command(plan));
  suggest_next(commands);
}

Result<void> simulate_plan(const SimulateOptions& options, const Environment& environment, const GpuCatalogue& gpus,
                           const Profile& profile) {
  auto input = read_plan_input(*options.plan, options, environment, gpus, profile);
  if (!input) {
    // Not every list of pipelines is expressible as a plan.
    if (input.error().code == ErrorCode::invalid_input && options.estimator.typed() &&
        is_original_plan(*options.plan).value_or(false))
      return simulate_list(options, environment, gpus, profile);
    return fail(input.error());
  }
  const Plan& plan = input->plan;
  auto cluster = read_cluster_for(plan, options, environment, gpus);
  if (!cluster) return fail(cluster.error());
  if (*cluster)
    if (const auto missing = what_is_missing(plan, **cluster, partitions_of(options.partition)))
      log_warning("{}", *missing);
  auto measured = read_run(options, plan);
  if (!measured) return fail(measured.error());
  const std::string made_for = plan.origin.framework.empty() ? "sailor" : plan.origin.framework;
  auto framework = simulator::find_framework(options.framework.has() ? *options.framework : made_for,
                                             frameworks_folder(environment));
  if (!framework) return fail(framework.error());

  const simulator::Environment simulated{.model = input->model,
                                         .profile = profile,
                                         .gpus = gpus,
                                         .framework = *framework,
                                         .cluster = *cluster ? &**cluster : nullptr,
                                         .measured_only = *options.measured_only};
  Timeline timeline;
  const bool wants_timeline = options.trace.has() || options.plot.has();
  const auto prediction = simulator::simulate(plan, simulated, wants_timeline ? &timeline : nullptr);
  if (!prediction) return fail(prediction.error());
  std::optional<elastic::CopiesEstimate> copies;
  if (*options.copies) {
    const auto hosts = hosts_of_ranks(plan, simulated.cluster);
    if (!hosts) return fail(hosts.error(), "--copies");
    auto estimate = elastic::estimate_copies(plan, *hosts, simulated, *prediction);
    if (!estimate) return fail(estimate.error(), "--copies");
    copies = *std::move(estimate);
  }
  const auto other = other_estimate(options, plan, input->model, profile, gpus, simulated.cluster);
  if (!other) return fail(other.error());
  const std::optional<Seconds> measured_time = *measured ? (*measured)->iteration_time().median : input->measured_time;
  const std::optional<Bytes> measured_memory = *measured ? (*measured)->peak_resident_memory() : input->measured_memory;
  const bool file_has_measured = input->measured_time || input->measured_memory;
  if (const std::string format = *options.format; is_handover_format(format)) {
    Plan predicted = plan;
    predicted.origin.framework = framework->name;
    predicted.prediction = simulator::summary(*prediction);
    const auto written = in_handover_format(format, predicted, input->model, "sailor-simulate");
    if (!written) return fail(written.error());
    fmt::print("{}", *written);
  } else if (format == "json") {
    nlohmann::ordered_json json{
        {"model", plan.job.model},
        {"cluster", *cluster ? nlohmann::ordered_json{{"name", (*cluster)->name}} : nlohmann::ordered_json()},
        {"precision", to_string(plan.job.precision)}};
    json.update(reports::prediction_to_json(*prediction));
    if (copies) json["copies"] = copies_to_json(*copies);
    if (*measured) {
      json["against"] = reports::comparison_to_json(*prediction, **measured);
      if (!(*measured)->epochs.empty()) json["against"]["elastic"] = elastic_to_json(**measured);
    } else if (file_has_measured)
      json["against"] = reports::comparison_to_json(*prediction, input->measured_time, input->measured_memory);
    if (*other) json["estimate"] = reports::estimate_to_json(**other, measured_time, measured_memory);
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", fitted(reports::prediction_report(plan, *prediction)));
    if (copies) fmt::print("\n{}", fitted(copies_report(*copies, simulated.cluster != nullptr)));
    if (*measured)
      fmt::print("\n{}", fitted(reports::comparison_report(*prediction, **measured) + elastic_report(**measured)));
    else if (file_has_measured)
      fmt::print("\n{}", reports::comparison_report(*prediction, input->measured_time, input->measured_memory));
    if (*other)
      fmt::print("\n{}", reports::estimate_report(
                             {.iteration_time = prediction->iteration_time, .peak_memory = prediction->peak_memory},
                             **other, measured_time, measured_memory));
  }
  if (wants_timeline) SAILOR_CHECK(write_pictures(options, plan, *prediction, timeline));
  if (const auto problem = simulator::memory_problem(plan, *prediction, simulated))
    return fail(ErrorCode::infeasible, "the plan does not fit into memory: " + *problem);
  if (!options.against.has()) suggest_submission(options);
  return {};
}

/// Refuses what is not written together with a plan for another framework.
Result<void> check_format(const SimulateOptions& options) {
  const std::string format = *options.format;
  if (!is_handover_format(format)) return {};
  for (const auto* option : OptionList{&options.against, &options.copies, &options.estimator})
    if (option->typed())
      return fail(ErrorCode::usage,
                  fmt::format("--format {} writes the plan alone, without what --{} says", format, option->name()),
                  "use --format table or json");
  return {};
}

Result<void> run(const SimulateOptions& options, const Environment& environment) {
  SAILOR_CHECK(check_estimator(options));
  SAILOR_CHECK(check_format(options));
  for (const auto* written : OptionList{&options.trace, &options.plot})
    if (written->has()) SAILOR_CHECK(check_can_write(written->text()));
  if (options.plot.has()) SAILOR_CHECK(reports::picture_kind(*options.plot));
  const bool has_plan = options.plan.has();
  if (!has_plan && !options.against.has())
    return fail(ErrorCode::usage, "PLAN is missing: plan file (plan.toml)",
                "or compare with measured cases: --against CASES.toml");
  auto gpus = GpuCatalogue::load(catalogue_file(options, environment));
  if (!gpus) return fail(gpus.error());
  auto profile = read_profile(options.profile, environment,
                              has_plan && !options.profile.has() ? usual_profile(*options.plan) : "published");
  if (!profile) return fail(profile.error());
  if (has_plan) return simulate_plan(options, environment, *gpus, *profile);
  return compare_with_cases(options, environment, *gpus, *profile);
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::command(sailor::apps::command_line, sailor::apps::run));
}
