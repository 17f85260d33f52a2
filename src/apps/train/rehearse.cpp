#include "apps/train/rehearse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/log.hpp"
#include "core/statistics.hpp"
#include "core/terminal.hpp"
#include "plan/plan_origin.hpp"
#include "profile/profile.hpp"
#include "profile/store.hpp"
#include "rehearsal/rehearsal.hpp"
#include "runtime/mpi/mpi_session.hpp"
#include "runtime/trainer.hpp"
#include "simulator/costs.hpp"
#include "simulator/framework.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

namespace {

using rehearsal::IterationTimes;
using rehearsal::StageNeed;
using simulator::PlanCosts;
using simulator::StageCosts;

/// Inputs that all ranks read. Not movable: parts refer to each other.
struct Inputs {
  Plan plan;
  Model model;
  GpuCatalogue gpus;
  std::optional<Profile> profile;
  std::optional<Cluster> cluster;
  simulator::Framework framework;
  std::string store;
  PlanCosts costs;
  std::unique_ptr<simulator::CostModel> cost_model;  // its tables are what `costs` points to

  [[nodiscard]] simulator::Environment environment() const {
    return {.model = model,
            .profile = *profile,
            .gpus = gpus,
            .framework = framework,
            .cluster = cluster ? &*cluster : nullptr};
  }
};

Result<void> read_inputs(const TrainOptions& options, const Environment& environment, const runtime::World& world,
                         Inputs& inputs) {
  const std::string& path = *options.plan;
  auto plan = load_plan(path);
  if (!plan) return fail(plan.error());
  inputs.plan = *std::move(plan);
  auto model = find_model(inputs.plan, models_folder(options.models, environment));
  if (!model) return fail(model.error(), path);
  inputs.model = *std::move(model);
  if (auto checked = runtime::check_trainable(rehearsal::trained_plan(inputs.plan), inputs.model, world.size());
      !checked)
    return fail(checked.error(), path);

  auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  inputs.gpus = *std::move(gpus);
  for (Pipeline& pipeline : inputs.plan.pipelines)
    for (Stage& stage : pipeline.stages)
      if (const auto type = inputs.gpus.find(stage.gpu)) stage.gpu = type->name;  // the simulator reports unknown types
  inputs.store = options.profile.has() ? *options.profile : inputs.plan.origin.profile_store;
  if (inputs.store.empty())
    return fail(ErrorCode::usage,
                fmt::format("--profile is missing, and '{}' does not say what it was made with", path),
                "name a profile store: --profile published");
  auto data = load_profile(find_store(inputs.store, environment));
  if (!data) return fail(data.error());
  inputs.profile.emplace(*std::move(data));
  auto cluster = cluster_for(inputs.plan, *options.cluster, inputs.gpus, world.rank() == 0);
  if (!cluster) return fail(cluster.error());
  inputs.cluster = *std::move(cluster);
  const std::string made_for = inputs.plan.origin.framework.empty() ? "sailor" : inputs.plan.origin.framework;
  auto framework = simulator::find_framework(options.framework.has() ? *options.framework : made_for,
                                             frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  inputs.framework = *std::move(framework);

  inputs.cost_model = std::make_unique<simulator::CostModel>(inputs.environment());
  return inputs.cost_model->price(inputs.plan, inputs.costs);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

std::string gibibytes(Bytes amount) { return fmt::format("{:.2f}", amount / gib); }

std::string error_text(Seconds time, Seconds simulated) {
  return fmt::format("{:+.1f}%", 100.0 * (time / simulated - 1.0));
}

void print_report(const Inputs& inputs, const IterationTimes& times, Seconds simulated,
                  const std::vector<StageNeed>& needs) {
  // The first iteration is left out if there are several: it connects the ranks.
  const auto later = [](const std::vector<double>& all) {
    return Seconds(median({all.begin() + (all.size() > 1 ? 1 : 0), all.end()}));
  };
  const Seconds waited = later(times.waited);
  const Seconds due = later(times.due);
  if (waited > Seconds(0))
    fmt::print("# iteration time: rehearsed {} ({} with exact waits), simulated {}: {} ({})\n", format_time(waited),
               format_time(due), format_time(simulated), error_text(waited, simulated), error_text(due, simulated));
  else
    fmt::print("# iteration time: rehearsed {} without waiting, simulated {}: {}\n", format_time(due),
               format_time(simulated), error_text(due, simulated));

  Table table({{"pipeline"},
               {"stage"},
               {"gpu", Align::left},
               {"ranks"},
               {"communicators"},
               {"tensors"},
               {"rehearsed"},
               {"simulated"},
               {"device"},
               {"fits", Align::left}});
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const StageCosts& stage = inputs.costs.stages[i];
    const Pipeline& pipeline = inputs.plan.pipelines[static_cast<std::size_t>(stage.entry)];
    const Stage& described = pipeline.stages[static_cast<std::size_t>(stage.stage)];
    const Bytes need = std::max(needs[i].tensors, needs[i].profiled);
    table.add_row({std::to_string(stage.entry), std::to_string(stage.stage), described.gpu,
                   std::to_string(inputs.plan.ranks_of(described) * pipeline.count),
                   std::to_string(needs[i].communicators), gibibytes(needs[i].tensors), gibibytes(needs[i].profiled),
                   gibibytes(stage.memory.total()), stage.capacity ? gibibytes(*stage.capacity) : "-",
                   !stage.capacity ? "" : (need <= *stage.capacity ? "yes" : "no")});
  }
  fmt::print(
      "# memory of a rank in GiB: tensors of sailor-train; all of it by the profile, rehearsed and simulated\n{}",
      table.to_string());
}

/// Warns of the stage whose prediction is furthest from what the runtime allocates, in one line.
void warn_of_unlike_memory(const Inputs& inputs, const std::vector<StageNeed>& needs) {
  constexpr double most = 0.25;
  std::size_t worst = 0;
  double largest = 0.0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const double difference = std::abs(needs[i].tensors / inputs.costs.stages[i].memory.total() - 1.0);
    if (difference <= largest) continue;
    largest = difference;
    worst = i;
  }
  if (largest <= most) return;
  const StageCosts& stage = inputs.costs.stages[worst];
  const bool ours = inputs.framework.name == "sailor";
  const bool estimated = stage.table->origin == Origin::estimated;
  log_warning(
      "rank {} (pipeline {}, stage {}): the tensors of sailor-train take {}, {:.0f}% {} than the {} that is predicted; "
      "{}",
      needs[worst].rank, stage.entry, stage.stage, format_bytes(needs[worst].tensors), 100.0 * largest,
      needs[worst].tensors > stage.memory.total() ? "more" : "less", format_bytes(stage.memory.total()),
      !ours       ? fmt::format("the prediction is for framework {}: for sailor-train, use --framework sailor",
                                inputs.framework.name)
      : estimated ? "the layers' sizes are estimated: measure them with sailor-profile layers"
                  : "the profile's layers are not those of this runtime: measure them with sailor-profile layers");
}

Result<void> check_memory(const Inputs& inputs, const std::vector<StageNeed>& needs) {
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const StageCosts& stage = inputs.costs.stages[i];
    const Bytes need = std::max(needs[i].tensors, needs[i].profiled);
    if (!stage.capacity || need <= *stage.capacity) continue;
    return fail(
        ErrorCode::infeasible,
        fmt::format("the plan does not fit into memory: rank {} (pipeline {}, stage {}) needs {} but a {} has {}",
                    needs[i].rank, stage.entry, stage.stage, format_bytes(need), stage.table->gpu,
                    format_bytes(*stage.capacity)),
        "use more stages, a smaller micro-batch, recompute or optimizer_sharding; sailor-simulate says which");
  }
  return {};
}

}  // namespace

std::vector<Option> rehearsal_options(TrainOptions& options) {
  const std::string group = "Rehearsal";
  Option store = shared::profile_store();
  store.help += " [default: the one that the plan was made with]";
  Option framework = shared::framework();
  framework.help += " [default: the one that the plan was made for, else sailor]";
  framework.default_value.clear();
  std::vector<Option> rows{
      option(options.rehearse, {.name = "rehearse",
                                .help = "run a plan of other devices here: the same schedule, order of messages and "
                                        "accounting of memory; waits replace computation, headers replace tensors"}),
      option(options.rehearse_slowdown,
             {.name = "rehearse-slowdown",
              .value_name = "FACTOR",
              .help = "how many times slower than the devices the rehearsal runs; 0: no rank waits, times are computed "
                      "only; not given: as slow as this machine needs for so many ranks",
              .minimum = 0,
              .maximum = 1e6}),
      option(options.max_communicators, {.name = "max-communicators",
                                         .value_name = "N",
                                         .help = "warn when a rank is in more communicators",
                                         .default_value = "64",
                                         .minimum = 1}),
      option(options.profile, store),
      option(options.framework, framework),
      option(options.cluster,
             {.name = "cluster", .value_name = "FILE", .help = "cluster description (cluster.toml): nodes and zones"})};
  for (Option& row : rows) row.group = group;
  return rows;
}

Result<void> rehearse(const TrainOptions& options, const Environment& environment, const runtime::World& world) {
  const bool speaks = world.rank() == 0;
  Inputs inputs;
  SAILOR_CHECK(agree(world.control, read_inputs(options, environment, world, inputs)));
  Seconds simulated{};
  const auto simulate = [&]() -> Result<void> {
    auto prediction = simulator::simulate(inputs.plan, inputs.environment());
    if (!prediction) return fail(prediction.error());
    simulated = prediction->iteration_time;
    return {};
  };
  SAILOR_CHECK(agree(world.control, speaks ? simulate() : Result<void>()));
  simulated = Seconds(world.control.max(simulated.value()));

  rehearsal::RehearsalSettings settings{
      .started =
          [&](double slowdown) {
            fmt::print("# {}: {} in {}, {}; {}, rehearsal of {} by {}, {}\n", *options.plan, inputs.plan.job.model,
                       to_string(inputs.plan.job.precision), describe(inputs.plan),
                       plural(static_cast<std::size_t>(inputs.plan.ranks()), "rank"), inputs.framework.name,
                       inputs.store,
                       slowdown == 1.0  ? "as fast as there"
                       : slowdown > 0.0 ? fmt::format("{:g} times slower than there", slowdown)
                                        : "without waiting");
            fmt::print("# {:>9} {:>12} {:>12}\n", "iteration", "time_ms", "exact_ms");
          },
      .ran =
          [](std::int64_t iteration, std::optional<Seconds> waited, Seconds due) {
            fmt::print("{:>11} {:>12} {:>12.1f}\n", iteration,
                       waited ? fmt::format("{:.1f}", waited->value() * 1e3) : "-", due.value() * 1e3);
            std::fflush(stdout);
          }};
  if (options.iterations.given()) settings.iterations = *options.iterations;
  if (options.rehearse_slowdown.given()) settings.slowdown = *options.rehearse_slowdown;
  const rehearsal::Rehearsal rehearsed = rehearsal::rehearse({.plan = inputs.plan,
                                                              .model = inputs.model,
                                                              .framework = inputs.framework,
                                                              .costs = inputs.costs,
                                                              .simulated = simulated},
                                                             settings, world);
  const std::vector<StageNeed>& needs = rehearsed.needs;
  if (speaks) {
    print_report(inputs, rehearsed.times, simulated, needs);
    warn_of_unlike_memory(inputs, needs);
    int most = 0;
    for (const StageNeed& need : needs) most = std::max(most, need.communicators);
    if (most > *options.max_communicators)
      log_warning("a rank is in {} communicators, more than {} (--max-communicators)", most,
                  *options.max_communicators);
  }
  return agree(world.control, speaks ? check_memory(inputs, needs) : Result<void>());
}

}  // namespace sailor::apps
