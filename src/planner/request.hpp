// What is asked of the planner: the job, the goal, limits, what is fixed, and how long to search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"

namespace sailor::planner {

enum class Objective {
  throughput,          ///< most iterations per second
  cost,                ///< least USD per iteration
  throughput_per_usd,  ///< most iterations per second for each USD that an iteration costs
};
std::string_view to_string(Objective objective);

/// full: pipelines may differ in everything. paper: what the planner of the Sailor paper searches (search_space.hpp).
enum class Space { full, paper };
std::string_view to_string(Space space);

/// Limits on the plan. None that is not set.
struct Limits {
  std::optional<Usd> cost;           ///< per iteration, at most
  std::optional<double> throughput;  ///< iterations per second, at least
  std::optional<int> gpus;           ///< devices, at most
  std::optional<int> nodes;          ///< at most
  std::optional<double> node_hours;  ///< nodes x time of the whole training, at most; needs Request::iterations
  std::optional<Seconds> wall_time;  ///< of the whole training, at most; needs Request::iterations
};

/// Parts of the plan that are given; the rest is searched.
struct Pins {
  std::optional<int> pipeline_parallel;  ///< stages of every pipeline
  std::optional<int> data_parallel;      ///< number of pipelines
  std::optional<int> tensor_parallel;    ///< of every stage
  std::optional<int> max_tensor_parallel;
  std::optional<int> micro_batch;  ///< of every pipeline
  std::optional<Schedule> schedule;
  std::optional<Recompute> recompute;  ///< of every stage
  std::optional<OptimizerSharding> optimizer_sharding;
  std::vector<std::string> gpus;            ///< only these types; empty: all
  std::vector<std::string> zones;           ///< only these; empty: all
  std::vector<std::string> excluded_nodes;  ///< names of nodes
};

/// What the full search does beyond what is proved, by the simulator's cost model. experiments/planner_ablation.py
/// measures what each is worth.
enum class Heuristic {
  one_kind,         ///< plans of one kind of pipeline, in every number
  gradient_levels,  ///< whole pipelines of small stages only, whose gradients are summed quickly
  pool_sets,        ///< some of the pools only, not just all of them or one
  single_pipeline,  ///< stages that fit only where there are no replicas to sum gradients with
  mixed,            ///< pipelines whose first stages are in one pool and the others in another
  spanning,         ///< pipelines over several pools, where nothing fits into one
  alike,            ///< plans of one kind of pipeline, its stages anywhere, by when all gradients are summed
  hints,            ///< the pipelines across pools that the bound's relaxation would use
  divide_again,     ///< the batch by when gradients are ready, not only by when passes end
  leave_out,        ///< making the best plans better: groups left out,
  change_count,     ///< a few pipelines more or less,
  exchange,         ///< other pipelines in their place,
  add_group,        ///< more pipelines on free devices,
  move_layers,      ///< layers moved to the next stage,
  change_sharding,  ///< the optimizer sharded or not
  refine_printed,   ///< all of that once more, by the event-driven time
};
std::string_view to_string(Heuristic heuristic);
/// The names of all of them, for options.
std::vector<std::string> heuristic_choices();
Result<Heuristic> parse_heuristic(std::string_view text);

/// When to stop searching. Without `time` and an interruption the result depends on the request alone, whatever the
/// number of threads.
struct Effort {
  std::optional<Seconds> time;        ///< wall clock
  std::optional<std::uint64_t> work;  ///< plans and pipelines looked at
  int threads = 0;                    ///< 0: as many as the machine has
  /// Only what is likely, and no bound: for a plan that is nearly the best in a fraction of the time.
  bool brief = false;
  /// A hundred times the work on the bound: minutes instead of seconds.
  bool prove = false;
  std::set<Heuristic> without;  ///< are left out: to see what they are worth
  /// Asked now and then, by several threads; once it says so the search ends with what it has.
  std::function<bool()> is_interrupted{};

  [[nodiscard]] bool uses(Heuristic heuristic) const { return !without.contains(heuristic); }
};

struct Request {
  TrainingJob job;
  Objective objective = Objective::throughput;
  Space space = Space::full;
  Limits limits;
  Pins pins;
  Effort effort;
  /// Of the whole training; with Limits::wall_time and Limits::node_hours.
  std::optional<double> iterations;
  std::vector<std::string> partitions;  ///< only nodes of one of them; empty: all nodes
  Availability availability = Availability::up;
  double memory_margin = 0.0;  ///< share of each device's memory to leave free, 0 to 0.9
  std::size_t max_plans = 10;  ///< how many to return
  bool pareto = false;         ///< return the front of time, money and devices instead of the best
};

/// Whether the limits on time and money allow what a plan takes by the event-driven time, which is the one that is
/// printed; what is over by rounding (1e-9) is allowed. `nodes`: nothing while they are not counted.
bool keeps_limits(const Request& request, Seconds time, Usd cost, std::optional<int> nodes);
/// Whether keeps_limits() may depend on the time.
bool limits_time(const Request& request);

/// "the cluster", "partition 'normal'", "partitions 'normal', 'mixed'"
std::string where_of(const Request& request);

/// A pin in words, "pipeline_parallel=4", added to `pins`. Keys: pipeline_parallel, data_parallel, tensor_parallel,
/// micro_batch, schedule, recompute, optimizer_sharding, gpu, zone (the last two may be given several times). Errors:
/// usage, with the known keys or values.
Result<void> add_pin(std::string_view text, Pins& pins);

}  // namespace sailor::planner
