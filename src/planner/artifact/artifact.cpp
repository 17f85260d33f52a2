#include "planner/artifact/artifact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/text.hpp"
#include "planner/artifact/evaluator.hpp"
#include "planner/artifact/space.hpp"
#include "planner/considered_nodes.hpp"

namespace sailor::planner {

namespace {

using artifact::Goal;
using artifact::Inputs;
using artifact::Pipelines;
using artifact::Pool;
using artifact::Ranked;
using artifact::Run;
using artifact::Tables;
using artifact::unlimited;

constexpr double seconds_per_hour = 3600.0;

int index_of(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin());
}

int index_or_add(std::vector<std::string>& names, const std::string& name) {
  const int index = index_of(names, name);
  if (index == static_cast<int>(names.size())) names.push_back(name);
  return index;
}

/// The devices that the request may use, by type, zone and size of node.
struct Supply {
  std::vector<std::string> gpus;
  std::vector<std::string> zones;
  std::vector<Pool> pools;
};

Result<Supply> supply_of(const Request& request, const Cluster& cluster, const GpuCatalogue& catalogue) {
  SAILOR_CHECK(check_places(request, cluster));
  std::set<std::string> gpus;
  for (const std::string& name : request.pins.gpus) {
    auto type = catalogue.find(name);
    if (!type) return fail(type.error());
    gpus.insert(type->name);
  }
  const auto& zones = request.pins.zones;
  const auto& excluded = request.pins.excluded_nodes;
  // In the order of their names, whatever else the cluster has: a cluster is searched as if it were part of a larger
  // one.
  std::map<std::tuple<std::string, std::string, int>, std::int64_t> devices;
  for (const NodeGroup& group : cluster.usable(request.partitions, request.availability)) {
    if (!gpus.empty() && !gpus.contains(group.gpu)) continue;
    if (!zones.empty() && std::find(zones.begin(), zones.end(), group.zone) == zones.end()) continue;
    std::int64_t count = group.count;
    for (const std::string& node : group.nodes)
      if (std::find(excluded.begin(), excluded.end(), node) != excluded.end()) --count;
    if (count <= 0 || group.gpus_per_node <= 0) continue;
    // Groups of 2^n devices fill a node of any size as they fill its binary digits.
    for (int chunk = 1; chunk <= group.gpus_per_node; chunk *= 2)
      if ((group.gpus_per_node & chunk) != 0) devices[{group.gpu, group.zone, chunk}] += count * chunk;
  }
  Supply supply;
  std::set<std::string> names;
  for (const auto& [key, count] : devices) {
    index_or_add(supply.gpus, std::get<0>(key));
    names.insert(std::get<1>(key));
  }
  supply.zones.assign(names.begin(), names.end());
  for (const auto& [key, count] : devices)
    supply.pools.push_back(
        {index_of(supply.gpus, std::get<0>(key)), index_of(supply.zones, std::get<1>(key)), std::get<2>(key), count});
  if (supply.pools.empty())
    return fail(ErrorCode::infeasible, "the cluster has no device that the request may use",
                "check the partition, the states of the nodes (--availability), and the pins of GPU types and zones");
  return supply;
}

Result<Goal> goal_of(const Request& request, const Cluster& cluster) {
  Goal goal;
  goal.objective = request.objective;
  const Limits& limits = request.limits;
  if ((limits.node_hours || limits.wall_time) && !request.iterations)
    return fail(ErrorCode::usage, "limits on node-hours and wall-clock time need the number of iterations",
                "say how many iterations the training takes");
  if (limits.cost) goal.max_cost = limits.cost->value();
  if (limits.throughput && *limits.throughput > 0.0) goal.max_time = 1.0 / *limits.throughput;
  if (limits.wall_time) goal.max_time = std::min(goal.max_time, limits.wall_time->value() / *request.iterations);
  if (limits.gpus) goal.max_devices = *limits.gpus;
  if (limits.nodes) goal.most_nodes = *limits.nodes;
  const auto partitions = partitions_of(request, cluster);
  SAILOR_CHECK(partitions);
  if (const auto most = max_nodes_of(*partitions)) goal.most_nodes = std::min<std::int64_t>(goal.most_nodes, *most);
  if (limits.node_hours) goal.max_node_time = *limits.node_hours * seconds_per_hour / *request.iterations;
  return goal;
}

Result<void> check_pins(const Pins& pins) {
  const auto refuse = [](std::string_view key, std::string_view value, std::string_view only) {
    return fail(ErrorCode::invalid_input,
                fmt::format("{} is pinned to {}, but the artifact knows {} only", key, value, only),
                "leave out the pin or use Sailor's own cost model");
  };
  if (pins.schedule && *pins.schedule != Schedule::one_f_one_b)
    return refuse("schedule", to_string(*pins.schedule), to_string(Schedule::one_f_one_b));
  if (pins.recompute && *pins.recompute != Recompute::none)
    return refuse("recompute", to_string(*pins.recompute), to_string(Recompute::none));
  if (pins.sharding_degree) return refuse("sharding_degree", fmt::to_string(*pins.sharding_degree), "plans without it");
  if (pins.optimizer_sharding && *pins.optimizer_sharding != OptimizerSharding::none)
    return refuse("optimizer_sharding", to_string(*pins.optimizer_sharding), to_string(OptimizerSharding::none));
  return {};
}

/// Makes replica i of every stage a pipeline. The first pipelines take the micro-batches that are left over.
Plan plan_of(const Ranked& ranked, const TrainingJob& job, const Tables& tables) {
  const Pipelines& pipelines = ranked.pipelines;
  Plan plan;
  plan.job = job;
  plan.micro_batch = pipelines.micro_batch;
  const int batches = job.global_batch / pipelines.micro_batch;
  const int longer = batches % pipelines.replicas;
  std::set<int> cuts{0, longer, pipelines.replicas};
  for (const auto& stage : pipelines.stages) {
    int replica = 0;
    for (const Run& run : stage.runs) cuts.insert(replica += run.count);
  }
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    Pipeline pipeline;
    pipeline.count = *std::next(cut) - *cut;
    pipeline.micro_batches = batches / pipelines.replicas + (*cut < longer ? 1 : 0);
    for (const auto& stage : pipelines.stages) {
      int replica = 0;
      std::size_t r = 0;
      while ((replica += stage.runs[r].count) <= *cut) ++r;
      const Run& run = stage.runs[r];
      pipeline.stages.push_back({.layers = stage.layers,
                                 .gpu = tables.gpus()[run.gpu],
                                 .tensor_parallel = run.tensor_parallel,
                                 .zone = tables.zones()[run.zone]});
    }
    plan.pipelines.push_back(std::move(pipeline));
  }
  PlanPrediction prediction;
  prediction.iteration_time = ranked.score.iteration_time;
  prediction.pipeline_time = ranked.score.pipeline_time;
  prediction.synchronization_time = ranked.score.synchronization_time;
  prediction.peak_memory = ranked.score.peak_memory;
  prediction.cost_per_iteration = ranked.score.cost_per_iteration;
  prediction.origin = "published";
  plan.prediction = prediction;
  return plan;
}

std::string so_much_more(double wanted, double reached) {
  if (wanted > 3.0 * reached) return fmt::format("{:.1f} times as much", wanted / reached);
  return fmt::format("{:.2g}% more", (wanted / reached - 1.0) * 100.0);
}

std::string so_much_less(double wanted, double reached) {
  if (reached > 3.0 * wanted) return fmt::format("{:.1f} times less", reached / wanted);
  return fmt::format("{:.2g}% less", (1.0 - wanted / reached) * 100.0);
}

/// Why there is no plan: tries each limit on its own.
Error why_infeasible(const Request& request, const Inputs& inputs, const std::vector<int>& micro_batches) {
  const int replicas = request.pins.data_parallel.value_or(0);
  const artifact::SearchLimits effort{.seconds = std::nullopt, .work = std::uint64_t{20'000'000}, .threads = 0};
  const auto best = [&](Objective objective, const auto& change) -> std::optional<Ranked> {
    Inputs other = inputs;
    other.goal.objective = objective;
    change(other.goal);
    auto outcome = artifact::search_space(other, micro_batches, replicas, effort);
    if (outcome.plans.empty()) return std::nullopt;
    return outcome.plans.front();
  };
  const Goal& goal = inputs.goal;
  std::vector<std::string> reasons;
  if (goal.max_time < unlimited)
    if (const auto fastest = best(Objective::throughput, [](Goal& other) { other.max_time = unlimited; })) {
      const double reached = 1.0 / fastest->score.iteration_time.value();
      const double wanted = 1.0 / goal.max_time;
      reasons.push_back(fmt::format("the fastest plan {}reaches {:.4g} iterations/s, the limit asks for {:.4g}: {}",
                                    goal.max_cost < unlimited ? "within the cost " : "", reached, wanted,
                                    so_much_more(wanted, reached)));
    }
  if (goal.max_cost < unlimited)
    if (const auto cheapest = best(Objective::cost, [](Goal& other) { other.max_cost = unlimited; })) {
      const double reached = cheapest->score.cost_per_iteration.value();
      reasons.push_back(fmt::format("the cheapest plan {}costs {:.4g} USD per iteration, the limit is {:.4g}: {}",
                                    goal.max_time < unlimited ? "that is fast enough " : "", reached, goal.max_cost,
                                    so_much_less(goal.max_cost, reached)));
    }
  if (request.limits.gpus || goal.counts_nodes())
    if (best(goal.objective, [](Goal& other) {
          other.max_devices = Goal{}.max_devices;
          other.most_nodes = Goal{}.most_nodes;
          other.max_node_time = unlimited;
        }))
      reasons.push_back("without the limit on devices, nodes or node-hours there is a plan");
  if (reasons.empty()) {
    std::string how_far;
    for (const double times : {1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0}) {
      Inputs larger = inputs;
      larger.goal = {};
      larger.memory_share *= times;
      if (artifact::search_space(larger, micro_batches, replicas, effort).plans.empty()) continue;
      how_far = fmt::format("; with {:g} times the memory one would", times);
      break;
    }
    return {ErrorCode::infeasible, "no plan fits into the memory of the devices by the rule of the artifact" + how_far,
            "use more or larger devices, a smaller memory margin, or fewer pins"};
  }
  return {ErrorCode::infeasible, fmt::format("no plan keeps the limits: {}", join(reasons, "; ")),
          "relax the limit that is named"};
}

double reported(Objective objective, double value) { return objective == Objective::cost ? value : 1.0 / value; }

/// Plans of which none is at once as fast, as cheap and as small as another.
std::vector<Ranked> front_of(std::vector<Ranked> plans) {
  const auto no_worse = [](const Ranked& a, const Ranked& b) {
    return a.score.iteration_time <= b.score.iteration_time &&
           a.score.cost_per_iteration <= b.score.cost_per_iteration &&
           artifact::devices_of(a.pipelines) <= artifact::devices_of(b.pipelines);
  };
  std::vector<Ranked> front;
  for (Ranked& plan : plans) {
    if (std::any_of(front.begin(), front.end(), [&](const Ranked& other) { return no_worse(other, plan); })) continue;
    std::erase_if(front, [&](const Ranked& other) { return no_worse(plan, other); });
    front.push_back(std::move(plan));
  }
  std::stable_sort(front.begin(), front.end(),
                   [](const Ranked& a, const Ranked& b) { return a.score.iteration_time < b.score.iteration_time; });
  return front;
}

}  // namespace

Result<ArtifactResult> find_artifact_plans(const Request& request, const Model& model, const Profile& profile,
                                           const Cluster& cluster, const GpuCatalogue& gpus) {
  SAILOR_CHECK(check_pins(request.pins));
  if (request.job.global_batch < 1)
    return fail(ErrorCode::invalid_input, fmt::format("the global batch is {}", request.job.global_batch),
                "give at least one sequence");
  auto goal = goal_of(request, cluster);
  SAILOR_CHECK(goal);
  auto supply = supply_of(request, cluster, gpus);
  SAILOR_CHECK(supply);
  auto tables = Tables::build(request.job, model, profile, gpus, supply->gpus, supply->zones);
  SAILOR_CHECK(tables);

  ArtifactResult result;
  std::vector<int> micro_batches;
  for (const int micro_batch : tables->micro_batches()) {
    if (request.pins.micro_batch && micro_batch != *request.pins.micro_batch) continue;
    if (request.job.global_batch % micro_batch == 0)
      micro_batches.push_back(micro_batch);
    else
      result.left_out.push_back(fmt::format("micro-batch {}: the global batch of {} is no multiple of it", micro_batch,
                                            request.job.global_batch));
  }
  std::set<int> used;
  for (int gpu = 0; gpu < static_cast<int>(supply->gpus.size()); ++gpu) {
    for (const int micro_batch : tables->micro_batches())
      if (!tables->degrees(gpu, micro_batch).empty()) used.insert(gpu);
    if (!used.contains(gpu))
      result.left_out.push_back(fmt::format("{}: the profile has no times of {} with sequence length {} on it",
                                            supply->gpus[gpu], model.name, request.job.sequence_length));
  }
  if (used.empty())
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no times of {} with sequence length {} on {}", model.name,
                            request.job.sequence_length, join(supply->gpus, ", ")),
                "import the published profiles or profile the model");
  std::erase_if(supply->pools, [&](const Pool& pool) { return !used.contains(pool.gpu); });
  for (const int gpu : used) {
    const auto linked = [&](const Pool& a) {
      return std::any_of(supply->pools.begin(), supply->pools.end(), [&](const Pool& b) {
        return a.gpu == gpu && tables->link(a.gpu, a.zone, 1, b.gpu, b.zone, 1) != nullptr;
      });
    };
    if (std::none_of(supply->pools.begin(), supply->pools.end(), linked))
      result.left_out.push_back(fmt::format(
          "{}: the artifact's network data have no link of it, so it can be one group at most", supply->gpus[gpu]));
  }
  if (micro_batches.empty())
    return fail(ErrorCode::infeasible,
                request.pins.micro_batch
                    ? fmt::format("micro-batch {} was not profiled or does not divide the batch of {}",
                                  *request.pins.micro_batch, request.job.global_batch)
                    : fmt::format("no micro-batch that was profiled divides the batch of {}", request.job.global_batch),
                "the cost model of the artifact does not interpolate");

  const Inputs inputs{*tables,
                      supply->pools,
                      *goal,
                      1.0 - request.memory_margin,
                      request.pins.pipeline_parallel,
                      request.space == Space::paper,
                      request.pins.tensor_parallel,
                      request.pins.max_tensor_parallel};
  artifact::SearchLimits effort{
      .seconds = std::nullopt, .work = request.effort.work, .threads = request.effort.threads};
  if (request.effort.time) effort.seconds = request.effort.time->value();
  const int replicas = request.pins.data_parallel.value_or(0);
  artifact::Outcome outcome = artifact::search_space(inputs, micro_batches, replicas, effort);
  if (outcome.plans.empty()) {
    if (outcome.stop != Stop::done)
      return fail(ErrorCode::infeasible, fmt::format("no plan was found before the {}", to_string(outcome.stop)),
                  "let it search longer");
    return tl::unexpected<Error>(why_infeasible(request, inputs, micro_batches));
  }
  result.bound.found = reported(request.objective, outcome.plans.front().value);
  result.bound.bound = reported(request.objective, outcome.bound);
  result.bound.gap = std::max(0.0, std::abs(result.bound.bound - result.bound.found) / result.bound.found);
  result.stop = outcome.stop;
  result.considered = outcome.counters.considered;
  result.did_not_fit = outcome.counters.did_not_fit;
  std::vector<Ranked> plans = std::move(outcome.plans);
  if (request.pareto) {
    // Between the fastest and the cheapest plan, in equal ratios of cost.
    const auto more = [&](Objective objective, double max_cost) {
      Inputs other = inputs;
      other.goal.objective = objective;
      other.goal.max_cost = std::min(other.goal.max_cost, max_cost);
      auto found = artifact::search_space(other, micro_batches, replicas, effort);
      plans.insert(plans.end(), found.plans.begin(), found.plans.end());
      return found.plans.empty() ? unlimited : found.plans.front().score.cost_per_iteration.value();
    };
    const double dearest = more(Objective::throughput, unlimited);
    const double cheapest = more(Objective::cost, unlimited);
    const auto steps = static_cast<double>(std::clamp<std::size_t>(request.max_plans, 2, 20));
    for (double step = 1.0; step < steps && dearest < unlimited && cheapest < unlimited; ++step)
      more(Objective::throughput, dearest * std::pow(cheapest / dearest, step / steps));
    plans = front_of(std::move(plans));
  }
  if (plans.size() > request.max_plans) plans.resize(std::max<std::size_t>(1, request.max_plans));
  for (const Ranked& ranked : plans)
    result.plans.push_back(
        {plan_of(ranked, request.job, *tables), ranked.score, artifact::memory_headroom(ranked.pipelines, *tables)});
  return result;
}

Result<ArtifactScore> artifact_score(const Plan& plan, const Model& model, const Profile& profile,
                                     const GpuCatalogue& gpus) {
  const auto refuse = [](const std::string& what) {
    return fail(ErrorCode::invalid_input, what + ", which the artifact's format cannot say",
                "use Sailor's own cost model");
  };
  if (plan.pipelines.empty() || plan.pipelines.front().stages.empty())
    return fail(ErrorCode::invalid_input, "the plan has no stages");
  if (plan.schedule != Schedule::one_f_one_b || plan.optimizer_sharding != OptimizerSharding::none)
    return refuse(fmt::format("the plan has schedule {} and optimizer sharding {}", to_string(plan.schedule),
                              to_string(plan.optimizer_sharding)));
  Pipelines pipelines;
  pipelines.micro_batch = plan.micro_batch;
  pipelines.replicas = plan.data_parallel();
  const auto& first = plan.pipelines.front().stages;
  for (const Stage& stage : first) pipelines.stages.push_back({stage.layers, {}});
  std::vector<std::string> types;
  std::vector<std::string> zones;
  for (const Pipeline& pipeline : plan.pipelines) {
    if (pipeline.stages.size() != first.size())
      return refuse(fmt::format("the plan has pipelines of {} and of {} stages", first.size(), pipeline.stages.size()));
    for (std::size_t i = 0; i < first.size(); ++i) {
      const Stage& stage = pipeline.stages[i];
      if (stage.layers != first[i].layers)
        return refuse(fmt::format("stage {} holds other layers in some pipelines than in others", i));
      if (stage.recompute != Recompute::none) return refuse(fmt::format("stage {} recomputes", i));
      auto type = gpus.find(stage.gpu);
      if (!type) return fail(type.error());
      const Run run{index_or_add(types, type->name), index_or_add(zones, stage.zone), stage.tensor_parallel,
                    pipeline.count};
      auto& runs = pipelines.stages[i].runs;
      if (!runs.empty() && Run{run.gpu, run.zone, run.tensor_parallel, runs.back().count} == runs.back())
        runs.back().count += run.count;
      else
        runs.push_back(run);
    }
  }
  auto tables = Tables::build(plan.job, model, profile, gpus, types, zones);
  SAILOR_CHECK(tables);
  return artifact::evaluate(pipelines, *tables);
}

}  // namespace sailor::planner
