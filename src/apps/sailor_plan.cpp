// sailor-plan: finds the plans with the highest throughput for a model on a cluster. Runs on a login node: no GPU, no
// MPI. Failure: exit 1, 2 for a wrong command line, 3 when no plan fits.
#include <fmt/format.h>

#include <algorithm>

#include "apps/inputs.hpp"
#include "apps/reports.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "profile/store.hpp"

namespace sailor::apps {

namespace {

CommandLine command_line() {
  Option partition = shared::partition();
  partition.help = "plan for the nodes of this Slurm partition, read live unless --cluster is given";
  Option output = shared::output();
  output.help = "write the best plan here (plan.toml)";
  return {
      .program = "sailor-plan",
      .purpose = "finds the fastest way to train a model on a cluster: which devices, how to split the model over them",
      .positionals = {},
      .options =
          {shared::model(),
           partition,
           shared::cluster_file(),
           shared::required_profile(),
           {.name = "global-batch",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "sequences per iteration; a plan never changes it",
            .minimum = 1,
            .maximum = 1 << 28},
           {.name = "sequence-length",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "tokens per sequence [default: the longest the model allows]",
            .minimum = 1,
            .maximum = 1 << 24},
           {.name = "precision",
            .value_name = "NAME",
            .help = "number format of the training [default: what the profile has of the model, tf32 before fp32]",
            .choices = {"fp32", "tf32", "bf16"}},
           {.name = "top",
            .type = OptionType::integer,
            .value_name = "K",
            .help = "how many plans to show",
            .default_value = "10",
            .minimum = 1,
            .maximum = 10000},
           {.name = "memory-margin",
            .type = OptionType::number,
            .value_name = "SHARE",
            .help = "share of each device's memory to leave free, 0 to 0.9",
            .default_value = "0.05",
            .minimum = 0.0,
            .maximum = 0.9},
           {.name = "only-idle",
            .type = OptionType::flag,
            .help = "plan only for nodes that are free now, not for all that are up"},
           shared::framework(),
           shared::measured_only(),
           {.name = "save-cluster", .value_name = "FILE", .help = "write the cluster as it was read (cluster.toml)"},
           output,
           shared::format(),
           shared::models_folder(),
           shared::gpus_file()},
      .examples =
          {{"sailor-plan -p normal --model tiny-gpt --global-batch 16 --profile store -o plan.toml",
            "plan for what partition normal has now"},
           {"sailor-plan --cluster cluster.toml --model tiny-gpt --global-batch 16 --profile store --top 3",
            "plan away from the cluster"},
           {"sailor-plan --cluster cluster.toml --model tiny-gpt --global-batch 16 --profile store --format json",
            "the same for a program to read"}},
      .notes = "Exit status: 0 a plan was found, 1 failure, 2 wrong usage, 3 no plan fits."};
}

Result<void> run(const Options& options, const Environment& environment) {
  for (const char* written : {"output", "save-cluster"})
    if (options.has(written)) SAILOR_CHECK(check_can_write(options.text(written)));
  auto model_name = required(options, "model");
  if (!model_name) return fail(model_name.error());
  SAILOR_CHECK(required(options, "global-batch"));
  auto gpus = GpuCatalogue::load(gpus_file(options, environment));
  if (!gpus) return fail(gpus.error());
  auto model = find_model(*model_name, models_folder(options, environment));
  if (!model) return fail(model.error());
  auto profile = read_profile(options, environment);
  if (!profile) return fail(profile.error());
  auto cluster = read_cluster(options, environment, *gpus);
  if (!cluster) return fail(cluster.error());
  if (!*cluster)
    return fail(ErrorCode::usage, "no cluster is named", "use --partition NAME (live, from Slurm) or --cluster FILE");
  const std::string cluster_text = cluster_to_toml(**cluster);
  if (options.has("save-cluster")) SAILOR_CHECK(write_file_atomically(options.text("save-cluster"), cluster_text));

  planner::Request request;
  request.job.model = model->name;
  request.job.global_batch = static_cast<int>(options.integer("global-batch"));
  request.job.sequence_length = options.has("sequence-length") ? static_cast<int>(options.integer("sequence-length"))
                                                               : model->max_sequence_length;
  const auto precision = read_precision(options, *profile, model->name);
  if (!precision) return fail(precision.error());
  request.job.precision = *precision;
  request.partition = options.text("partition");
  request.only_idle = options.flag("only-idle");
  request.memory_margin = options.number("memory-margin");
  request.most_plans = static_cast<std::size_t>(options.integer("top"));

  const auto framework = simulator::find_framework(options.text("framework"), frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  const simulator::Environment simulated{.model = *model,
                                         .profile = *profile,
                                         .gpus = *gpus,
                                         .framework = *framework,
                                         .cluster = &**cluster,
                                         .measured_only = options.flag("measured-only")};
  Progress progress("planning");
  auto found = planner::find_plans(
      request, simulated, [&](std::size_t done, std::size_t of) { progress.update(done, of, plural(done, "plan")); });
  progress.finish();
  if (!found) return fail(found.error());

  if (found->not_measured > 0) spdlog::warn("{} left out: {}", plural(found->not_measured, "plan"), found->missing);

  auto measured = profile_hash(find_store(options.text("profile"), environment));
  if (!measured) return fail(measured.error());
  const PlanOrigin origin{.tool = fmt::format("sailor-plan {}", version()),
                          .cluster = (*cluster)->origin,
                          .partition = request.partition,
                          .profile_store = options.text("profile"),
                          .framework = options.text("framework"),
                          .cluster_hash = content_hash(cluster_text),
                          .profile_hash = *measured};
  for (planner::Candidate& candidate : found->plans) candidate.plan.origin = origin;
  const Plan& best = found->plans.front().plan;
  if (options.has("output")) SAILOR_CHECK(save_plan(best, options.text("output")));

  if (const std::string format = options.text("format"); format == "toml") {
    fmt::print("{}", plan_to_toml(best));
  } else if (format == "json") {
    nlohmann::ordered_json plans = nlohmann::ordered_json::array();
    for (const planner::Candidate& candidate : found->plans) {
      nlohmann::ordered_json row = prediction_to_json(candidate.prediction);
      row["memory_headroom"] = candidate.memory_headroom;
      row["plan"] = plan_to_json(candidate.plan);
      plans.push_back(std::move(row));
    }
    fmt::print("{}\n", nlohmann::ordered_json{{"considered", found->considered},
                                              {"did_not_fit", found->did_not_fit},
                                              {"not_measured", found->not_measured},
                                              {"plans", std::move(plans)}}
                           .dump(2));
  } else {
    fmt::print("{}: the best of {} for {} sequences of {} tokens ({} did not fit into memory)\n\n{}", model->name,
               plural(found->considered, "plan"), request.job.global_batch, request.job.sequence_length,
               found->did_not_fit, plans_table(*found));
  }
  if (options.has("output")) spdlog::info("wrote {} ({})", options.text("output"), describe(best));
  return {};
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::command_line(), sailor::apps::run);
}
