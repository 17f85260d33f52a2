// sailor-simulate: predicts iteration time, memory of every rank and cost of a plan, and compares with a measured run.
// Runs anywhere. Failure: exit 1, 2 for a wrong command line, 3 when the plan does not fit into memory.
#include <fmt/format.h>

#include "apps/inputs.hpp"
#include "apps/reports.hpp"
#include "core/log.hpp"

namespace sailor::apps {

namespace {

CommandLine command_line() {
  Option partition = shared::partition();
  partition.help = "take node sizes and memory from this Slurm partition, read live unless --cluster is given";
  Option format = shared::format();
  format.choices = {"table", "json"};
  return {.program = "sailor-simulate",
          .purpose = "predicts the iteration time, the memory of every rank and the cost of a plan",
          .positionals = {{.name = "PLAN", .help = "plan file (plan.toml)"}},
          .options = {shared::required_profile(),
                      shared::cluster_file(),
                      partition,
                      {.name = "against",
                       .value_name = "RUN",
                       .help = "compare with what this run measured (run.h5 of sailor-train)"},
                      shared::measured_only(),
                      format,
                      shared::models_folder(),
                      shared::gpus_file()},
          .examples = {{"sailor-simulate plan.toml --profile store", "time, memory and cost of a plan"},
                       {"sailor-simulate plan.toml --profile store --cluster cluster.toml --format json",
                        "with the nodes of a cluster, for a program to read"},
                       {"sailor-simulate plan.toml --profile store --cluster cluster.toml --against run.h5",
                        "how far the prediction was from a run"}},
          .notes =
              "Exit status: 0 done, 1 failure, 2 wrong usage, 3 the plan does not fit into memory (the report is "
              "printed all the same)."};
}

Result<void> run(const Options& options, const Environment& environment) {
  auto gpus = GpuCatalogue::load(gpus_file(options, environment));
  if (!gpus) return fail(gpus.error());
  auto plan = load_plan(options.positional("PLAN").front());
  if (!plan) return fail(plan.error());
  auto model = find_model(plan->job.model, models_folder(options, environment));
  if (!model) return fail(model.error(), options.positional("PLAN").front());
  if (auto good = check_plan(*plan, *model); !good) return fail(good.error(), options.positional("PLAN").front());
  auto profile = read_profile(options, environment);
  if (!profile) return fail(profile.error());
  auto cluster = read_cluster(options, environment, *gpus);
  if (!cluster) return fail(cluster.error());
  std::optional<RunRecord> measured;
  if (options.has("against")) {
    auto loaded = load_run(options.text("against"));
    if (!loaded) return fail(loaded.error());
    measured = std::move(*loaded);
    const auto trained = parse_plan(measured->plan_toml, options.text("against"));
    if (!trained || plan_fingerprint(*trained) != plan_fingerprint(*plan))
      spdlog::warn("{} is the run of another plan: what follows compares two different plans", options.text("against"));
  }

  const simulator::Environment simulated{.model = *model,
                                         .profile = *profile,
                                         .gpus = *gpus,
                                         .cluster = *cluster ? &**cluster : nullptr,
                                         .measured_only = options.flag("measured-only")};
  const auto prediction = simulator::simulate(*plan, simulated);
  if (!prediction) return fail(prediction.error());

  if (options.text("format") == "json") {
    nlohmann::ordered_json json = prediction_to_json(*prediction);
    if (measured) json["against"] = comparison_to_json(*prediction, *measured);
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", prediction_report(*plan, *prediction));
    if (measured) fmt::print("\n{}", comparison_report(*prediction, *measured));
  }
  if (const auto problem = simulator::memory_problem(*plan, *prediction))
    return fail(ErrorCode::infeasible, "the plan does not fit into memory: " + *problem,
                "use a smaller micro_batch, more pipeline stages, or larger devices");
  return {};
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::command_line(), sailor::apps::run);
}
