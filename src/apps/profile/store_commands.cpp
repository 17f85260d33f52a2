// sailor-profile show, check and diff: inspect profile stores. They need no MPI.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>

#include "apps/profile/commands.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/output_fit.hpp"
#include "core/terminal.hpp"
#include "model/model.hpp"
#include "plan/plan_origin.hpp"
#include "profile/profile.hpp"
#include "profile/store.hpp"
#include "reports/prediction.hpp"
#include "reports/profile_plots.hpp"
#include "reports/profile_reports.hpp"
#include "reports/profile_tables.hpp"

namespace sailor::apps {

namespace {

Option table_or_json() {
  Option format = shared::format();
  format.choices = {"table", "json"};
  return format;
}

Positional store_positional() { return {.name = "STORE", .help = "a folder of *.h5 files, or one such file"}; }

/// The options that select rows, see row_options().
struct RowOptions {
  OptionValue<std::vector<std::string>> model, gpu, zone, operation, table;
};

std::vector<Option> row_options(RowOptions& options) {
  return {option(options.model, {.name = "model", .value_name = "NAME", .help = "layers of this model only"}),
          option(options.gpu,
                 {.name = "gpu", .value_name = "NAME", .help = "this GPU type only; of links at one of the ends"}),
          option(options.zone, {.name = "zone", .value_name = "NAME", .help = "links with an end in this zone only"}),
          option(options.operation, {.name = "operation",
                                     .value_name = "NAME",
                                     .help = "links of this operation only",
                                     .choices = {"send_receive", "all_reduce", "all_gather", "reduce_scatter"}}),
          option(options.table, {.name = "table",
                                 .value_name = "NAME",
                                 .help = "this table only",
                                 .choices = reports::profile_table_names()})};
}

reports::ProfileFilter filter_of(const RowOptions& options) {
  return {.models = *options.model,
          .gpus = *options.gpu,
          .zones = *options.zone,
          .operations = *options.operation,
          .tables = *options.table};
}

// ---- show

struct ShowOptions : CommonOptions, RowOptions {
  OptionValue<std::string> store, plot, format;
  OptionValue<bool> all;
};

CommandLine show_line(ShowOptions& options) {
  std::vector<Option> rows = row_options(options);
  rows.push_back(option(options.all, {.name = "all", .help = "list every row of tables that are summarised"}));
  rows.push_back(
      option(options.plot, {.name = "plot",
                            .value_name = "FILE",
                            .help = "draw instead (.svg, .png or .pdf; needs gnuplot): bandwidth of the links by "
                                    "message size, or with --table layer_times the time of a block by micro-batch",
                            .writes = true}));
  rows.push_back(option(options.format, table_or_json()));
  return {.program = "sailor-profile show",
          .purpose = "shows what a profile store holds",
          .positionals = {positional(options.store, store_positional())},
          .options = std::move(rows),
          .examples = {{"sailor-profile show store", "tables; long ones are summarised"},
                       {"sailor-profile show store --model tiny-gpt --all", "every row of one model"},
                       {"sailor-profile show store --plot links.svg --gpu cpu", "a picture of the links"},
                       {"sailor-profile show store --plot blocks.png --table layer_times", "a picture of the blocks"},
                       {"sailor-profile show store --format json", "everything, SI units in the names"}},
          .notes = ""};
}

bool names_only(const std::vector<std::string>& tables, std::initializer_list<std::string_view> names) {
  return !tables.empty() && std::all_of(tables.begin(), tables.end(), [&](const std::string& table) {
    return std::find(names.begin(), names.end(), table) != names.end();
  });
}

Result<void> show_plot(const ProfileData& data, const ShowOptions& options) {
  const std::vector<std::string> tables = *options.table;
  const bool links = tables.empty() ? options.model->empty() : names_only(tables, {"links", "link_fits"});
  if (!links && !tables.empty() && !names_only(tables, {"layer_times"}))
    return fail(ErrorCode::usage, "--plot draws links or layer_times, not what --table names",
                "use --table links,link_fits or --table layer_times");
  const auto plot = links ? reports::link_plot(data) : reports::layer_plot(data);
  if (!plot) return fail(plot.error());
  SAILOR_CHECK(reports::draw(*plot, *options.plot));
  fmt::print("{}: {} ({})\n", *options.plot, plot->title, plot->note);
  return {};
}

Result<void> show(const ShowOptions& options, const Environment& environment) {
  const auto loaded = load_profile(find_store(*options.store, environment));
  if (!loaded) return fail(loaded.error());
  const auto data = reports::select_rows(*loaded, filter_of(options));
  if (!data) return fail(data.error());
  if (options.plot.has()) return show_plot(*data, options);
  if (*options.format == "json") {
    fmt::print("{}", reports::profile_json(*data));
    return {};
  }
  const std::vector<std::string> tables = *options.table;
  const bool sessions = tables.empty() || std::find(tables.begin(), tables.end(), "sessions") != tables.end();
  const std::string above = sessions ? reports::session_table(*data, *options.all) : "";
  const std::string below = reports::profile_tables(*data, *options.all);
  fmt::print("{}{}{}", fitted(above), above.empty() || below.empty() ? "" : "\n", fitted(below));
  return {};
}

// ---- check

struct CheckOptions : CommonOptions {
  OptionValue<std::string> store, format;
  OptionValue<bool> all, strict;
};

CommandLine check_line(CheckOptions& options) {
  return {.program = "sailor-profile check",
          .purpose = "names what is suspicious in a profile store, why it matters and what to do",
          .positionals = {positional(options.store, store_positional())},
          .options = {option(options.all,
                             {.name = "all", .help = "list every finding, not only the worst of a problem and place"}),
                      option(options.strict, {.name = "strict", .help = "warnings fail too"}),
                      option(options.format, table_or_json())},
          .examples = {{"sailor-profile check store", "the worst of every kind"},
                       {"sailor-profile check store --all", "every finding"},
                       {"sailor-profile check store --format json", "the same for programs"}},
          .exit_statuses = {{0, "there is no finding of severity fail (with --strict: nor warn); notes do not count"},
                            {1, "there is one, or the store cannot be read"},
                            {2, "wrong usage"}}};
}

Result<void> check(const CheckOptions& options, const Environment& environment) {
  const std::string store = find_store(*options.store, environment);
  const auto data = load_profile(store);
  if (!data) return fail(data.error());
  const std::string today =
      fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  std::vector<Finding> findings = check_profile(*data, today);
  auto count = [&](Severity severity) {
    return static_cast<std::size_t>(std::count_if(
        findings.begin(), findings.end(), [&](const Finding& finding) { return finding.severity == severity; }));
  };
  const std::size_t failures = count(Severity::fail);
  const std::size_t warnings = count(Severity::warn);
  const std::size_t notes = count(Severity::note);
  if (!*options.all) findings = fold_findings(std::move(findings));
  if (*options.format == "json") {
    const nlohmann::ordered_json json{{"store", store},
                                      {"failures", failures},
                                      {"warnings", warnings},
                                      {"notes", notes},
                                      {"findings", reports::findings_to_json(findings)}};
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else if (findings.empty()) {
    fmt::print("nothing suspicious\n");
  } else {
    fmt::print("{}\n{}, {}, {}\n", fitted(reports::findings_report(findings)), plural(failures, "failure"),
               plural(warnings, "warning"), plural(notes, "note"));
  }
  if (failures > 0 || (*options.strict && warnings > 0))
    return fail(ErrorCode::failure,
                fmt::format("{} has {}{}", store, plural(failures, "failure"),
                            *options.strict ? " and " + plural(warnings, "warning") : ""),
                "each is named above with its remedy");
  return {};
}

// ---- diff

struct DiffOptions : CommonOptions {
  OptionValue<std::string> a, b, threshold, cluster, models, gpus, format;
  OptionValue<bool> all;
};

CommandLine diff_line(DiffOptions& options) {
  return {
      .program = "sailor-profile diff",
      .purpose = "compares two profile stores, or what a store predicts with what a run measured",
      .positionals = {positional(options.a, {.name = "A", .help = "a profile store"}),
                      positional(options.b, {.name = "B", .help = "another one, or a run of sailor-train (run.h5)"})},
      .options = {option(options.threshold, {.name = "threshold",
                                             .value_name = "PERCENT",
                                             .help = "leave out differences up to this many per cent of A",
                                             .default_value = "0%"}),
                  option(options.all, {.name = "all", .help = "list every row"}),
                  option(options.cluster, {.name = "cluster",
                                           .value_name = "FILE",
                                           .help = "take node sizes and memory from this file (cluster.toml)"}),
                  option(options.models, shared::models_folder()), option(options.gpus, shared::gpus_file()),
                  option(options.format, table_or_json())},
      .examples = {{"sailor-profile diff store store/20260102T030405Z-nid001-77-0badcafe.h5 --threshold 5%",
                    "what changed by more than 5%"},
                   {"sailor-profile diff store run.h5", "iteration time and memory: predicted and measured"},
                   {"sailor-profile diff store run.h5 --cluster cluster.toml --format json",
                    "the same with the nodes of a cluster, for a program to read"}},
      .notes = "--cluster, --models and --gpus serve the prediction of a run."};
}

/// "5%" or "5": 0.05.
Result<double> parse_threshold(std::string text) {
  const std::string given = text;
  if (!text.empty() && text.back() == '%') text.pop_back();
  double percent = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error != std::errc() || end != text.data() + text.size() || !(percent >= 0.0) || percent > 1e6)
    return fail(ErrorCode::usage, fmt::format("--threshold is '{}' but must be a percentage from 0 on", given),
                "write it like 5%");
  return percent / 100.0;
}

Result<void> diff_run(const ProfileData& data, const RunRecord& run, const DiffOptions& options,
                      const Environment& environment) {
  const std::string& file = *options.b;
  const auto plan = parse_plan(run.plan_toml, file);
  if (!plan) return fail(plan.error());
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  const auto model = find_model(*plan, models_folder(options.models, environment));
  if (!model) return fail(model.error(), file);
  if (auto good = check_plan(*plan, *model); !good) return fail(good.error(), file);
  const auto cluster = cluster_for(*plan, *options.cluster, *gpus);
  if (!cluster) return fail(cluster.error());
  const auto framework = simulator::find_framework("sailor", frameworks_folder(environment));  // the run used it
  if (!framework) return fail(framework.error());
  const Profile profile(data);
  const auto prediction = simulator::simulate(*plan, {.model = *model,
                                                      .profile = profile,
                                                      .gpus = *gpus,
                                                      .framework = *framework,
                                                      .cluster = *cluster ? &**cluster : nullptr});
  if (!prediction) return fail(prediction.error());
  const auto stages = reports::compare_stage_memory(*plan, *prediction, run);
  if (*options.format == "json") {
    nlohmann::ordered_json json{{"predicted_iteration_time_s", prediction->iteration_time.value()},
                                {"predicted_peak_memory_bytes", prediction->peak_memory.value()}};
    json.update(reports::comparison_to_json(*prediction, run));
    json["stages"] = reports::stage_memory_to_json(stages);
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{} in {}: {}\n\n{}", plan->job.model, to_string(plan->job.precision), describe(*plan),
               reports::comparison_report(*prediction, run));
    if (!stages.empty()) fmt::print("\n{}", reports::stage_memory_report(stages));
  }
  return {};
}

Result<void> diff(const DiffOptions& options, const Environment& environment) {
  const auto threshold = parse_threshold(*options.threshold);
  if (!threshold) return fail(threshold.error());
  const std::string a = find_store(*options.a, environment);
  const std::string b = find_store(*options.b, environment);
  const auto data_a = load_profile(a);
  if (!data_a) return fail(data_a.error());
  if (std::filesystem::is_regular_file(b))
    if (const auto run = load_run(b)) return diff_run(*data_a, *run, options, environment);
  const auto data_b = load_profile(b);
  if (!data_b) return fail(data_b.error());
  const ProfileDifference difference = diff_profiles(*data_a, *data_b);
  const reports::DiffView view{.name_a = a, .name_b = b, .threshold = *threshold, .all = *options.all};
  if (*options.format == "json")
    fmt::print("{}\n", reports::difference_to_json(difference, view)
                           .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    fmt::print("{}", fitted(reports::difference_report(difference, view)));
  return {};
}

}  // namespace

std::vector<Command> store_commands() {
  return {command(show_line, show), command(check_line, check), command(diff_line, diff)};
}

}  // namespace sailor::apps
