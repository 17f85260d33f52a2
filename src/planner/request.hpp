// A request to the planner: the job, the goal, limits, pins, and how long to search.
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
  throughput,          ///< max iterations per second
  cost,                ///< min USD per iteration
  throughput_per_usd,  ///< max iterations per second for each USD that an iteration costs
};
std::string_view to_string(Objective objective);

/// full: pipelines may differ in everything. paper: what the planner of the Sailor paper searches (search_space.hpp).
enum class Space { full, paper };
std::string_view to_string(Space space);

/// Limits on the plan; std::nullopt: no limit.
struct Limits {
  std::optional<Usd> cost;           ///< max USD per iteration
  std::optional<double> throughput;  ///< min iterations per second
  std::optional<int> gpus;           ///< max number of devices
  std::optional<int> nodes;          ///< max number of nodes
  std::optional<double> node_hours;  ///< max nodes x time of the whole training; needs Request::iterations
  std::optional<Seconds> wall_time;  ///< max time of the whole training; needs Request::iterations
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
  std::optional<int> context_parallel;      ///< Plan::context_parallel
  std::optional<int> expert_parallel;       ///< Plan::expert_parallel
  std::optional<int> sharding_degree;       ///< Plan::sharding_degree
  std::vector<std::string> gpus;            ///< only these types; empty: all
  std::vector<std::string> zones;           ///< only these; empty: all
  std::vector<std::string> excluded_nodes;  ///< names of nodes
};

/// Heuristics of the full search under the simulator's cost model, beyond what is proved.
/// experiments/planner_ablation.py measures the gain of each.
enum class Heuristic {
  one_kind,         ///< plans of one template, with the fewest pipelines for each number of micro-batches
  gradient_levels,  ///< whole pipelines of small stages only, whose gradients are all-reduced quickly
  pool_sets,        ///< subsets of the pools, not just one pool or all of them
  single_pipeline,  ///< stages that fit only without replicas to all-reduce gradients with
  mixed,            ///< pipelines over two pools, and stages that fill pools in turn
  spanning,         ///< pipelines over several pools, where nothing fits into one
  alike,            ///< plans of one kind of pipeline with stages anywhere, by the end of all gradient reductions
  hints,            ///< the pipelines that the bound's relaxation would use
  divide_again,     ///< division of the batch by the time gradients are ready, not only by the end of the passes
  leave_out,        ///< local search: leave groups out
  change_count,     ///< local search: a few pipelines more or less
  exchange,         ///< local search: other pipelines in their place
  add_group,        ///< local search: more pipelines on free devices
  move_layers,      ///< local search: layers moved to the next stage
  change_sharding,  ///< local search: another sharding
  refine_printed,   ///< the local search once more, by the event-driven time
  parts,            ///< parts of the cluster searched on their own
};
std::string_view to_string(Heuristic heuristic);
/// The names of all of them, for options.
std::vector<std::string> heuristic_choices();
Result<Heuristic> parse_heuristic(std::string_view text);

/// How much work goes into the bound, which says how much better another plan could be.
enum class Proof {
  none,     ///< none, and plans that the proof hints at are not tried: saves up to nine tenths of a search's time
  usual,    ///< seconds
  thorough  ///< ten to a hundred times as much: minutes
};

/// When to stop searching. Without `time` and without an interruption, the result depends on the request alone, not on
/// the number of threads.
struct Effort {
  std::optional<Seconds> time;        ///< wall clock
  std::optional<std::uint64_t> work;  ///< number of plans and pipelines examined
  int threads = 0;                    ///< 0: as many as the machine has
  /// Tries only what is promising and proves no bound: finds a nearly best plan in a fraction of the time.
  bool brief = false;
  bool gives_up = false;  ///< with `brief`: where nothing promising fits, nothing else is tried
  Proof proof = Proof::usual;
  bool bounds_groups = false;    ///< the bound holds for plans with sharding groups, too: it counts no reductions
  bool explains_limits = false;  ///< where no plan keeps the limits: searches what the best reach without them
  std::set<Heuristic> without;   ///< heuristics that are left out, to measure their gain
  /// Polled by several threads; once it returns true, the search ends with what it has.
  std::function<bool()> is_interrupted{};

  [[nodiscard]] bool uses(Heuristic heuristic) const { return !without.contains(heuristic); }
  /// A brief search of a plan to compare with, which gives up where it finds none.
  [[nodiscard]] Effort for_comparison(std::optional<Seconds> limit) const {
    constexpr std::uint64_t max_plans_tried = 4000;
    return {.time = limit, .work = max_plans_tried, .threads = threads, .brief = true, .gives_up = true};
  }
};

struct Request {
  TrainingJob job;
  Objective objective = Objective::throughput;
  Space space = Space::full;
  Limits limits;
  Pins pins;
  Effort effort;
  /// Iterations of the whole training; used with Limits::wall_time and Limits::node_hours.
  std::optional<double> iterations;
  std::vector<std::string> partitions;  ///< only nodes of one of them; empty: all nodes
  Availability availability = Availability::up;
  double memory_margin = 0.0;  ///< share of each device's memory to leave free, 0 to 0.9
  std::size_t max_plans = 10;  ///< how many to return
  bool pareto = false;         ///< return the front of time, money and devices instead of the best
};

/// Whether a plan's event-driven (printed) time and cost keep the limits on time and money; an excess by rounding
/// (1e-9) is allowed. `nodes`: std::nullopt while they are not counted.
bool keeps_limits(const Request& request, Seconds time, Usd cost, std::optional<int> nodes);
/// Whether keeps_limits() may depend on the time.
bool limits_time(const Request& request);

/// "the cluster", "partition 'normal'", "partitions 'normal', 'mixed'"
std::string where_of(const Request& request);

/// Parses a pin, "pipeline_parallel=4", and adds it to `pins`. Keys: pipeline_parallel, data_parallel, tensor_parallel,
/// micro_batch, schedule, recompute, optimizer_sharding, sharding_degree, context_parallel, expert_parallel, gpu, zone
/// (the last two may be given several times). Errors: usage, with the known keys or values.
Result<void> add_pin(std::string_view text, Pins& pins);
/// The error (usage) of a pin that a framework cannot keep.
tl::unexpected<Error> refuse_pin(std::string_view key, std::string_view value, std::string_view framework);

}  // namespace sailor::planner
