#include "apps/plan/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
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

bool by_artifact(const PlanOptions& options) { return *options.cost_model == "artifact"; }

Result<void> check_training_length(const PlanOptions& options) {
  if (options.tokens.has() && options.iterations.has())
    return conflict("--tokens and --iterations both say how long the training is", "give one of them");
  const bool length = options.tokens.has() || options.iterations.has();
  if (options.max_cost.has() && options.max_total_cost.has())
    return conflict("--max-cost and --max-total-cost are both budgets", "give one of them");
  for (const auto* limit : OptionList{&options.within, &options.max_node_hours, &options.max_total_cost})
    if (limit->has() && !length)
      return conflict(fmt::format("--{} limits the whole training, but its length is not known", limit->name()),
                      "say it with --tokens N or --iterations N");
  for (const auto* amount : {&options.tokens, &options.iterations})
    if (std::trunc(**amount) != **amount)
      return conflict(fmt::format("--{} {:.17g} is no whole number", amount->name(), **amount),
                      fmt::format("write --{} 1e6, for example", amount->name()));
  return {};
}

/// Refuses options that the artifact's evaluator does not support.
Result<void> check_cost_model(const PlanOptions& options) {
  if (!by_artifact(options)) return {};
  for (const auto* option :
       OptionList{&options.explain, &options.why_not, &options.placement, &options.pareto, &options.availability_trace,
                  &options.measured_only, &options.without, &options.prove, &options.no_proof})
    if (option->given())
      return conflict(fmt::format("--{} does not go with --cost-model artifact", option->name()),
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

Result<void> check_trace(const PlanOptions& options) {
  if (!options.availability_trace.has()) {
    for (const auto* option : OptionList{&options.reconfiguration_time, &options.last_step})
      if (option->given())
        return conflict(fmt::format("--{} is about a trace, but none is named", option->name()),
                        "name it with --availability-trace FILE");
    return {};
  }
  for (const auto* option : OptionList{&options.pareto, &options.explain, &options.why_not, &options.placement,
                                       &options.partition, &options.save_cluster, &options.output, &options.exclude,
                                       &options.top, &options.availability, &options.reservation})
    if (option->given())
      return conflict(fmt::format("--{} does not go with --availability-trace", option->name()),
                      "leave out one of them: a trace is answered with one plan for each step");
  if (const std::string format = *options.format; format != "table" && format != "json")
    return conflict(fmt::format("--format {} writes one plan, but --availability-trace has one for each step", format),
                    "use --format json, which has all of them");
  return {};
}

/// Refuses options that do not go with --watch, which prints changes and not the plans of one moment.
Result<void> check_watch(const PlanOptions& options) {
  if (!*options.watch) {
    for (const auto* option : OptionList{&options.interval, &options.watch_count, &options.against,
                                         &options.switch_cost, &options.horizon, &options.elastic})
      if (option->typed())
        return conflict(fmt::format("--{} is about watching the cluster", option->name()), "add --watch");
    return {};
  }
  for (const auto* option : OptionList{&options.availability_trace, &options.preflight, &options.pareto,
                                       &options.explain, &options.why_not, &options.placement, &options.planner,
                                       &options.save_cluster, &options.top, &options.prove, &options.no_proof})
    if (option->given())
      return conflict(fmt::format("--{} does not go with --watch, which says what changes", option->name()),
                      "leave out one of them");
  if (!options.partition.has() && !options.cluster.has())
    return conflict("--watch needs a cluster that may change", "name --partition NAME or --cluster FILE");
  if (by_artifact(options))
    return conflict("--cost-model artifact does not go with --watch, which judges plans by Sailor's simulator",
                    "leave out one of them");
  if (const std::string format = *options.format; format != "table" && format != "json")
    return conflict(fmt::format("--format {} writes one plan, but --watch has a line for each change", format),
                    "use --format table or json, and --output for the best plan");
  return {};
}

/// Checks the options of --preflight: questions about a job need its partition; a given plan needs no search.
Result<void> check_preflight(const PlanOptions& options) {
  const bool named = options.plan.has();
  if (!*options.preflight) {
    if (named)
      return conflict(fmt::format("PLAN '{}' is named, but nothing is to be done with it", *options.plan),
                      "check it with --preflight, compare it with --why-not, or predict it with sailor-simulate");
    // Options that only --preflight reads.
    for (const auto* option :
         OptionList{&options.account, &options.qos, &options.time, &options.data, &options.checkpoints, &options.mpi,
                    &options.program, &options.train_option, &options.licenses})
      if (option->typed())
        return conflict(fmt::format("--{} is about the checks before a job is submitted", option->name()),
                        "add --preflight");
    return {};
  }
  if (!options.partition.has())
    return conflict("--preflight needs the partition of the job", "name it with --partition NAME");
  for (const auto* option : OptionList{&options.availability_trace, &options.pareto})
    if (option->given())
      return conflict(fmt::format("--{} does not go with --preflight, which checks one plan", option->name()),
                      "leave out one of them");
  if (const std::string format = *options.format; format != "table" && format != "json")
    return conflict(fmt::format("--format {} writes a plan, but --preflight says what would go wrong with it", format),
                    "use --format table or json, and --output for the plan");
  if (!named) return {};
  // Options that make no sense when --preflight is given a plan.
  for (const auto* option : OptionList{&options.model,
                                       &options.global_batch,
                                       &options.sequence_length,
                                       &options.precision,
                                       &options.objective,
                                       &options.max_cost,
                                       &options.max_total_cost,
                                       &options.min_throughput,
                                       &options.max_gpus,
                                       &options.max_nodes,
                                       &options.max_node_hours,
                                       &options.within,
                                       &options.pin,
                                       &options.max_tensor_parallel,
                                       &options.exclude,
                                       &options.space,
                                       &options.cost_model,
                                       &options.time_limit,
                                       &options.work_limit,
                                       &options.top,
                                       &options.explain,
                                       &options.why_not,
                                       &options.placement,
                                       &options.planner,
                                       &options.planner_faults,
                                       &options.judge,
                                       &options.planner_seed,
                                       &options.output})
    if (option->typed())
      return conflict(fmt::format("--{} is about the search for a plan, but a plan is given", option->name()),
                      "leave out one of them");
  return {};
}

}  // namespace

Result<void> check_plan_options(const PlanOptions& options) {
  SAILOR_CHECK(check_planner_options(options));
  SAILOR_CHECK(check_preflight(options));
  if (options.plan.has()) return {};
  SAILOR_CHECK(required(options.model));
  SAILOR_CHECK(required(options.global_batch));
  SAILOR_CHECK(check_training_length(options));
  SAILOR_CHECK(check_cost_model(options));
  SAILOR_CHECK(check_trace(options));
  SAILOR_CHECK(check_watch(options));
  if (const std::string format = *options.format;
      format == "toml" || format == "sailor-json" || is_handover_format(format))
    for (const auto* option : OptionList{&options.pareto, &options.explain, &options.why_not, &options.placement})
      if (option->given())
        return conflict(
            fmt::format("--format {} writes the best plan alone, without what --{} says", format, option->name()),
            "use --format table or json");
  return {};
}

Result<planner::Request> read_request(const PlanOptions& options, const Model& model, const Profile& profile,
                                      const GpuCatalogue& gpus) {
  planner::Request request;
  request.job.model = model.name;
  request.job.global_batch = *options.global_batch;
  request.job.sequence_length = options.sequence_length.has() ? *options.sequence_length : model.max_sequence_length;
  const auto precision = read_precision(options.precision);
  if (!precision) return fail(precision.error());
  // Without devices: for searches that cannot try several precisions (precision_choice.hpp).
  request.job.precision = precision_candidates(*precision, profile, model.name, nullptr, gpus, {}).precisions.front();

  const std::string objective = *options.objective;
  for (const auto known :
       {planner::Objective::throughput, planner::Objective::cost, planner::Objective::throughput_per_usd})
    if (objective == to_string(known)) request.objective = known;
  request.space = *options.space == "paper" ? planner::Space::paper : planner::Space::full;

  planner::Limits& limits = request.limits;
  if (options.max_cost.has()) limits.cost = Usd(*options.max_cost);
  if (options.min_throughput.has()) limits.throughput = *options.min_throughput;
  if (options.max_gpus.has()) limits.gpus = *options.max_gpus;
  if (options.max_nodes.has()) limits.nodes = *options.max_nodes;
  if (options.max_node_hours.has()) limits.node_hours = *options.max_node_hours;
  if (options.within.has()) {
    const auto time = slurm::parse_time_limit(*options.within);
    if (!time) return fail(ErrorCode::usage, "--within: " + time.error().what, time.error().hint);
    limits.wall_time = *time;
  }
  if (options.iterations.has()) request.iterations = *options.iterations;
  if (options.tokens.has()) request.iterations = std::ceil(*options.tokens / request.job.tokens());
  if (options.max_total_cost.has()) limits.cost = Usd(*options.max_total_cost / *request.iterations);

  SAILOR_CHECK(check_pins(*options.pin));
  for (const std::string& pin : *options.pin) SAILOR_CHECK(planner::add_pin(pin, request.pins));
  for (std::string& name : request.pins.gpus) {
    const auto type = gpus.find(name);
    if (!type)
      return fail(ErrorCode::usage, fmt::format("--pin gpu={}: {}", name, type.error().what), type.error().hint);
    name = type->name;
  }
  if (options.max_tensor_parallel.has()) request.pins.max_tensor_parallel = *options.max_tensor_parallel;
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
  if (options.exclude.has()) {
    auto nodes = expand_host_list(*options.exclude);
    if (!nodes) return fail(ErrorCode::usage, "--exclude: " + nodes.error().what, nodes.error().hint);
    request.pins.excluded_nodes = *std::move(nodes);
  }

  if (options.time_limit.has()) request.effort.time = Seconds(*options.time_limit);
  if (options.work_limit.has()) request.effort.work = static_cast<std::uint64_t>(*options.work_limit);
  request.effort.threads = *options.threads;
  if (*options.prove && *options.no_proof)
    return conflict("--prove and --no-proof contradict each other", "leave out one of them");
  if (*options.prove) request.effort.proof = planner::Proof::thorough;
  if (*options.no_proof) request.effort.proof = planner::Proof::none;
  request.effort.explains_limits = true;
  for (const std::string& name : *options.without) {
    const auto heuristic = planner::parse_heuristic(name);
    if (!heuristic) return fail(heuristic.error());
    request.effort.without.insert(*heuristic);
  }
  request.partitions = partitions_of(options.partition);
  request.availability = availability_of(options);
  const bool artifact_rule = by_artifact(options) && !options.memory_margin.given();
  request.memory_margin = artifact_rule ? 0.0 : *options.memory_margin;
  request.max_plans = static_cast<std::size_t>(*options.top);
  request.pareto = *options.pareto;
  return request;
}

Availability availability_of(const PlanOptions& options) {
  const std::string wanted = *options.availability;
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
