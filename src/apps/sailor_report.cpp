// sailor-report: makes one HTML page of a plan or of a finished training. Runs anywhere. Failure: exit 1, 2 for a wrong
// command line, 3 when the plan does not fit into memory (the page is made all the same).
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "apps/inputs.hpp"
#include "apps/programs.hpp"
#include "apps/report/content.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "elastic/run_trace.hpp"
#include "reports/page/page.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;

CommandLine command_line(ReportOptions& options) {
  Option partition = shared::partition();
  partition.help = "take nodes, their sizes and memory from this Slurm partition, read live unless --cluster is given";
  Option model = shared::model();
  model.help = "model of a plan in the original Sailor's JSON, which does not say it";
  Option profile = shared::profile_store();
  profile.help +=
      " [default: the one that the plan was made with; without it the page has the plan's own figures only]";
  Option framework = shared::framework();
  framework.help += " [default: the one that the plan was made for, else sailor]";
  framework.default_value.clear();
  Option output = shared::output();
  output.help =
      "page to write; a file that is no page of sailor-report is never replaced [default: that of the input, ending in "
      ".html]";
  return {
      .program = "sailor-report",
      .purpose = purpose_of("sailor-report"),
      .positionals = {positional(options.input,
                                 {.name = "PLAN|RUN",
                                  .help = "plan file (plan.toml, or the JSON of the original Sailor), or run file of "
                                          "sailor-train (run.h5), which contains its plan"})},
      .options =
          {option(options.output, output), option(options.profile, profile), option(options.framework, framework),
           option(options.cluster, shared::cluster_file()), option(options.partition, partition),
           option(options.pareto,
                  {.name = "pareto",
                   .help = "also search plans for the same job on the nodes of the cluster, and show those that no "
                           "other beats in time, money and devices at once (needs --cluster or --partition)"}),
           option(
               options.trace,
               {.name = "trace",
                .value_name = "FILE",
                .help = "what sailor-train --trace wrote in the run: its timeline is drawn below the simulated one"}),
           option(options.events, {.name = "events",
                                   .value_name = "FILE",
                                   .help = "events.jsonl of an elastic training: its events, and where its time went "
                                           "[default: those that the run file has]"}),
           option(options.elastic_trace,
                  {.name = "elastic-trace",
                   .value_name = "FILE",
                   .help = "also write the whole elastic training as a trace that ui.perfetto.dev shows: what every "
                           "member did in every epoch, interruptions, events, goodput and tokens per second",
                   .writes = true}),
           option(options.model, model),
           option(options.precision,
                  {.name = "precision",
                   .value_name = "NAME",
                   .help = "number format of a plan in the original's JSON [default: as sailor-simulate]",
                   .choices = precision_choices()}),
           option(options.measured_only, shared::measured_only()), option(options.models, shared::models_folder()),
           option(options.gpus, shared::catalogue_or_counts())},
      .examples = {{"sailor-report plan.toml --profile store", "plan.html: time, memory and cost of a plan"},
                   {"sailor-report plan.toml --profile store --cluster cluster.toml --pareto --output report.html",
                    "on the nodes of a cluster, beside other plans for them"},
                   {"sailor-report run.h5 --profile store --cluster cluster.toml",
                    "run.html: what was predicted beside what the run measured"}},
      .exit_statuses = {{0, "the page was made"},
                        {1, "failure"},
                        {2, "wrong usage"},
                        {3, "the plan does not fit into memory (the page is made all the same)"}},
      .notes = "The page is one file without scripts that loads nothing: send it, or keep it beside the run."};
}

/// Where the page goes. Errors: usage (a file that is no page of ours), io.
Result<fs::path> choose_output(const ReportOptions& options, const std::string& input) {
  const fs::path path = options.output.has() ? fs::path(*options.output) : fs::path(input).replace_extension(".html");
  SAILOR_CHECK(check_can_write(path));
  std::error_code code;
  if (!fs::exists(path, code)) return path;
  const auto there = read_text_file(path);
  if (there && reports::is_html_page(*there)) return path;
  return fail(ErrorCode::usage,
              fmt::format("'{}' is there and no page of sailor-report: it is not replaced", path.string()),
              "name another file with --output, or remove it");
}

/// Refuses a trace that would replace the page. Errors: usage, io.
Result<void> check_elastic_trace(const ReportOptions& options, const fs::path& page) {
  if (!options.elastic_trace.has()) return {};
  const std::string path = *options.elastic_trace;
  SAILOR_CHECK(check_can_write(path));
  std::error_code code;
  if (path != page.string() && !fs::equivalent(path, page, code)) return {};
  return fail(ErrorCode::usage, fmt::format("--elastic-trace '{}' would replace another file of this command", path),
              "name another file");
}

Result<void> run(const ReportOptions& options, const Environment& environment) {
  const std::string input = *options.input;
  const auto output = choose_output(options, input);
  if (!output) return fail(output.error());
  SAILOR_CHECK(check_elastic_trace(options, *output));
  const auto content = gather_report(input, options, environment);
  if (!content) return fail(content.error());
  for (const std::string& note : content->notes) log_warning("{}", note);
  SAILOR_CHECK(write_file_atomically(
      *output, reports::report_page(content->page(input, fmt::format("sailor-report {}", version())))));
  log_info("wrote {}", output->string());
  if (options.elastic_trace.has()) {
    SAILOR_CHECK(elastic::save_run_trace(content->events->lines, *options.elastic_trace));
    log_info("wrote {}", *options.elastic_trace);
  }
  // A run has shown whether it fits.
  if (!content->run && !content->memory_problem.empty())
    return fail(ErrorCode::infeasible, "the plan does not fit into memory: " + content->memory_problem);
  return {};
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::command(sailor::apps::command_line, sailor::apps::run));
}
