#include "apps/plan/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "apps/inputs.hpp"
#include "apps/plan/handover_format.hpp"
#include "apps/plan/plan_options.hpp"
#include "apps/plan/precision_choice.hpp"
#include "apps/plan/published_planners.hpp"
#include "cluster/host_list.hpp"
#include "core/text.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

namespace {

tl::unexpected<Error> conflict(std::string what, std::string hint) {
  return fail(ErrorCode::usage, std::move(what), std::move(hint));
}

/// Options that only --preflight reads.
constexpr std::array options_of_preflight{"account", "qos",     "time",         "data",    "checkpoints",
                                          "mpi",     "program", "train-option", "licenses"};
/// Options that make no sense when --preflight is given a plan.
constexpr std::array search_options{"model",
                                    "global-batch",
                                    "sequence-length",
                                    "precision",
                                    "objective",
                                    "max-cost",
                                    "max-total-cost",
                                    "min-throughput",
                                    "max-gpus",
                                    "max-nodes",
                                    "max-node-hours",
                                    "within",
                                    "pin",
                                    "max-tensor-parallel",
                                    "exclude",
                                    "space",
                                    "cost-model",
                                    "time-limit",
                                    "work-limit",
                                    "top",
                                    "explain",
                                    "why-not",
                                    "placement",
                                    "planner",
                                    "planner-faults",
                                    "judge",
                                    "planner-seed",
                                    "output"};

bool by_artifact(const Options& options) { return options.text("cost-model") == "artifact"; }

Result<void> check_training_length(const Options& options) {
  if (options.has("tokens") && options.has("iterations"))
    return conflict("--tokens and --iterations both say how long the training is", "give one of them");
  const bool length = options.has("tokens") || options.has("iterations");
  if (options.has("max-cost") && options.has("max-total-cost"))
    return conflict("--max-cost and --max-total-cost are both budgets", "give one of them");
  for (const char* limit : {"within", "max-node-hours", "max-total-cost"})
    if (options.has(limit) && !length)
      return conflict(fmt::format("--{} limits the whole training, but its length is not known", limit),
                      "say it with --tokens N or --iterations N");
  for (const char* amount : {"tokens", "iterations"})
    if (options.has(amount) && std::trunc(options.number(amount)) != options.number(amount))
      return conflict(fmt::format("--{} {:.17g} is no whole number", amount, options.number(amount)),
                      fmt::format("write --{} 1e6, for example", amount));
  return {};
}

/// Refuses options that the artifact's evaluator does not support.
Result<void> check_cost_model(const Options& options) {
  if (!by_artifact(options)) return {};
  for (const char* option :
       {"explain", "why-not", "placement", "pareto", "availability-trace", "measured-only", "without", "prove"})
    if (options.given(option))
      return conflict(fmt::format("--{} does not go with --cost-model artifact", option),
                      "leave out --cost-model to plan by Sailor's simulator");
  return {};
}

/// Refuses contradicting pins: a part of the plan has one value, except for devices and zones.
Result<void> check_pins(const std::vector<std::string>& pins) {
  std::map<std::string, std::string, std::less<>> kept;
  for (const std::string& pin : pins) {
    const std::string key = pin.substr(0, pin.find('='));
    if (key == "gpu" || key == "zone") continue;
    if (const auto [other, fresh] = kept.emplace(key, pin); !fresh && other->second != pin)
      return conflict(fmt::format("--pin {} and --pin {} contradict each other", other->second, pin),
                      "leave out one of them");
  }
  return {};
}

Result<void> check_trace(const Options& options) {
  if (!options.has("availability-trace")) {
    for (const char* option : {"reconfiguration-time", "last-step"})
      if (options.given(option))
        return conflict(fmt::format("--{} is about a trace, but none is named", option),
                        "name it with --availability-trace FILE");
    return {};
  }
  for (const char* option : {"pareto", "explain", "why-not", "placement", "partition", "save-cluster", "output",
                             "exclude", "top", "availability", "reservation"})
    if (options.given(option))
      return conflict(fmt::format("--{} does not go with --availability-trace", option),
                      "leave out one of them: a trace is answered with one plan for each step");
  if (const std::string format = options.text("format"); format != "table" && format != "json")
    return conflict(fmt::format("--format {} writes one plan, but --availability-trace has one for each step", format),
                    "use --format json, which has all of them");
  return {};
}

/// Refuses options that do not go with --watch, which prints changes and not the plans of one moment.
Result<void> check_watch(const Options& options) {
  if (!options.flag("watch")) {
    for (const char* option : {"interval", "watch-count", "against", "switch-cost", "horizon", "elastic"})
      if (options.typed(option))
        return conflict(fmt::format("--{} is about watching the cluster", option), "add --watch");
    return {};
  }
  for (const char* option : {"availability-trace", "preflight", "pareto", "explain", "why-not", "placement", "planner",
                             "save-cluster", "top", "prove"})
    if (options.given(option))
      return conflict(fmt::format("--{} does not go with --watch, which says what changes", option),
                      "leave out one of them");
  if (by_artifact(options))
    return conflict("--cost-model artifact does not go with --watch, which judges plans by Sailor's simulator",
                    "leave out one of them");
  if (const std::string format = options.text("format"); format != "table" && format != "json")
    return conflict(fmt::format("--format {} writes one plan, but --watch has a line for each change", format),
                    "use --format table or json, and --output for the best plan");
  return {};
}

/// Checks the options of --preflight: questions about a job need its partition; a given plan needs no search.
Result<void> check_preflight(const Options& options) {
  const bool named = !options.positional("PLAN").empty();
  if (!options.flag("preflight")) {
    if (named)
      return conflict(
          fmt::format("PLAN '{}' is named, but nothing is to be done with it", options.positional("PLAN").front()),
          "check it with --preflight, compare it with --why-not, or predict it with sailor-simulate");
    for (const char* option : options_of_preflight)
      if (options.typed(option))
        return conflict(fmt::format("--{} is about the checks before a job is submitted", option), "add --preflight");
    return {};
  }
  if (!options.has("partition"))
    return conflict("--preflight needs the partition of the job", "name it with --partition NAME");
  for (const char* option : {"availability-trace", "pareto"})
    if (options.given(option))
      return conflict(fmt::format("--{} does not go with --preflight, which checks one plan", option),
                      "leave out one of them");
  if (const std::string format = options.text("format"); format != "table" && format != "json")
    return conflict(fmt::format("--format {} writes a plan, but --preflight says what would go wrong with it", format),
                    "use --format table or json, and --output for the plan");
  if (!named) return {};
  for (const char* option : search_options)
    if (options.typed(option))
      return conflict(fmt::format("--{} is about the search for a plan, but a plan is given", option),
                      "leave out one of them");
  return {};
}

}  // namespace

Result<void> check_plan_options(const Options& options) {
  SAILOR_CHECK(check_planner_options(options));
  SAILOR_CHECK(check_preflight(options));
  if (!options.positional("PLAN").empty()) return {};
  SAILOR_CHECK(required(options, "model"));
  SAILOR_CHECK(required(options, "global-batch"));
  SAILOR_CHECK(check_training_length(options));
  SAILOR_CHECK(check_cost_model(options));
  SAILOR_CHECK(check_trace(options));
  SAILOR_CHECK(check_watch(options));
  if (const std::string format = options.text("format");
      format == "toml" || format == "sailor-json" || is_handover_format(format))
    for (const char* option : {"pareto", "explain", "why-not", "placement"})
      if (options.given(option))
        return conflict(fmt::format("--format {} writes the best plan alone, without what --{} says", format, option),
                        "use --format table or json");
  return {};
}

Result<planner::Request> read_request(const Options& options, const Model& model, const Profile& profile,
                                      const GpuCatalogue& gpus) {
  planner::Request request;
  request.job.model = model.name;
  request.job.global_batch = static_cast<int>(options.integer("global-batch"));
  request.job.sequence_length =
      options.has("sequence-length") ? static_cast<int>(options.integer("sequence-length")) : model.max_sequence_length;
  const auto precision = read_precision(options);
  if (!precision) return fail(precision.error());
  // Without devices: for searches that cannot try several precisions (precision_choice.hpp).
  request.job.precision = precision_candidates(*precision, profile, model.name, nullptr, gpus, {}).precisions.front();

  const std::string objective = options.text("objective");
  for (const auto known :
       {planner::Objective::throughput, planner::Objective::cost, planner::Objective::throughput_per_usd})
    if (objective == to_string(known)) request.objective = known;
  request.space = options.text("space") == "paper" ? planner::Space::paper : planner::Space::full;

  planner::Limits& limits = request.limits;
  if (options.has("max-cost")) limits.cost = Usd(options.number("max-cost"));
  if (options.has("min-throughput")) limits.throughput = options.number("min-throughput");
  if (options.has("max-gpus")) limits.gpus = static_cast<int>(options.integer("max-gpus"));
  if (options.has("max-nodes")) limits.nodes = static_cast<int>(options.integer("max-nodes"));
  if (options.has("max-node-hours")) limits.node_hours = options.number("max-node-hours");
  if (options.has("within")) {
    const auto time = slurm::parse_time_limit(options.text("within"));
    if (!time) return fail(ErrorCode::usage, "--within: " + time.error().what, time.error().hint);
    limits.wall_time = *time;
  }
  if (options.has("iterations")) request.iterations = options.number("iterations");
  if (options.has("tokens")) request.iterations = std::ceil(options.number("tokens") / request.job.tokens());
  if (options.has("max-total-cost")) limits.cost = Usd(options.number("max-total-cost") / *request.iterations);

  SAILOR_CHECK(check_pins(options.texts("pin")));
  for (const std::string& pin : options.texts("pin")) SAILOR_CHECK(planner::add_pin(pin, request.pins));
  for (std::string& name : request.pins.gpus) {
    const auto type = gpus.find(name);
    if (!type)
      return fail(ErrorCode::usage, fmt::format("--pin gpu={}: {}", name, type.error().what), type.error().hint);
    name = type->name;
  }
  if (options.has("max-tensor-parallel"))
    request.pins.max_tensor_parallel = static_cast<int>(options.integer("max-tensor-parallel"));
  if (const planner::Pins& pins = request.pins;
      pins.tensor_parallel && pins.max_tensor_parallel && *pins.tensor_parallel > *pins.max_tensor_parallel)
    return conflict(fmt::format("--pin tensor_parallel={} is over --max-tensor-parallel {}", *pins.tensor_parallel,
                                *pins.max_tensor_parallel),
                    "leave out one of them");
  if (by_artifact(options)) {
    const auto known = profile.precisions(model.name);
    if (!known.empty() && std::find(known.begin(), known.end(), request.job.precision) == known.end())
      return conflict(fmt::format("--precision {}: the profile has no such times of {}, and the artifact's cost model "
                                  "estimates none",
                                  to_string(request.job.precision), model.name),
                      "leave out --precision or --cost-model artifact");
    const planner::Pins& pins = request.pins;
    const char* beyond = pins.schedule.value_or(Schedule::one_f_one_b) != Schedule::one_f_one_b ? "schedule"
                         : pins.recompute.value_or(Recompute::none) != Recompute::none          ? "recompute"
                         : pins.optimizer_sharding.value_or(OptimizerSharding::none) != OptimizerSharding::none
                             ? "optimizer_sharding"
                         : pins.sharding_degree ? "sharding_degree"
                                                : nullptr;
    if (beyond != nullptr)
      return conflict(fmt::format("--pin {}: the artifact's cost model knows only 1f1b, no recompute and no optimizer "
                                  "sharding",
                                  beyond),
                      "leave out the pin or --cost-model artifact");
  }
  if (options.has("exclude")) {
    auto nodes = expand_host_list(options.text("exclude"));
    if (!nodes) return fail(ErrorCode::usage, "--exclude: " + nodes.error().what, nodes.error().hint);
    request.pins.excluded_nodes = *std::move(nodes);
  }

  if (options.has("time-limit")) request.effort.time = Seconds(options.number("time-limit"));
  if (options.has("work-limit")) request.effort.work = static_cast<std::uint64_t>(options.integer("work-limit"));
  request.effort.threads = static_cast<int>(options.integer("threads"));
  request.effort.prove = options.flag("prove");
  for (const std::string& name : options.texts("without")) {
    const auto heuristic = planner::parse_heuristic(name);
    if (!heuristic) return fail(heuristic.error());
    request.effort.without.insert(*heuristic);
  }
  request.partitions = partitions_of(options);
  request.availability = availability_of(options);
  const bool artifact_rule = by_artifact(options) && !options.given("memory-margin");
  request.memory_margin = artifact_rule ? 0.0 : options.number("memory-margin");
  request.max_plans = static_cast<std::size_t>(options.integer("top"));
  request.pareto = options.flag("pareto");
  return request;
}

Availability availability_of(const Options& options) {
  const std::string wanted = options.text("availability");
  for (const auto known : {Availability::idle, Availability::all})
    if (wanted == to_string(known)) return known;
  return Availability::up;
}

Result<void> check_excluded_nodes(const planner::Request& request, const Cluster& cluster) {
  std::set<std::string> known;
  for (const NodeGroup& group : cluster.groups) known.insert(group.nodes.begin(), group.nodes.end());
  for (const std::string& node : request.pins.excluded_nodes) {
    if (known.contains(node)) continue;
    return fail(ErrorCode::not_found, fmt::format("--exclude: the cluster has no node '{}'", node),
                did_you_mean(node, {known.begin(), known.end()}, "name nodes as Slurm or the cluster file does"));
  }
  return {};
}

}  // namespace sailor::apps
