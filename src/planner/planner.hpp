// Finds plans for a training job on a cluster.
//
// The search uses the simulator's closed form; printed times and the check of limits use the event-driven time
// (solution_pool.hpp). The result also says how much better any plan of the space could be (Bound), from a relaxation
// that is solved by branch and bound as far as its work goes (bound/bound.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "planner/request.hpp"
#include "planner/steps.hpp"
#include "profile/profile.hpp"
#include "simulator/simulator.hpp"

namespace sailor::planner {

struct Candidate {
  Plan plan;  ///< carries its prediction
  simulator::Prediction prediction;
  double memory_headroom = 0.0;  ///< smallest share of a device's memory that stays free; 1 when not known
  Steps found_by{};              ///< empty: by no search
};

/// How good the best plan is, by the closed form: the unit is that of the objective (iterations/s; USD; iterations/s
/// per USD).
struct Bound {
  double found = 0.0;  ///< value of the best plan that the search saw
  double bound = 0.0;  ///< no plan of the space is better than this
  double gap = 0.0;    ///< how much better a plan could be at most, as a share of `found`; 0: proven to be the best
};

enum class Stop {
  done,        ///< the search is complete
  work_limit,  ///< the limit Effort::work, or the search's own
  time_limit,  ///< Effort::time: another run may find something else
  interrupted  ///< Effort::is_interrupted: the same
};
std::string_view to_string(Stop stop);

struct SearchResult {
  std::vector<Candidate> plans;  ///< plans that fit, best first; ties: cheapest, then fewest ranks
  Bound bound;
  Stop stop = Stop::done;
  std::uint64_t considered = 0;  ///< plans that were priced
  std::uint64_t did_not_fit = 0;
  std::uint64_t not_priced = 0;  ///< plans that could not be priced, and why the first of them could not
  std::string why_not_priced;
  std::vector<std::string> left_out;  ///< what could not be used and why: "V100-16: the profile has no ..."
  std::vector<NodeGroup> nodes;       ///< nodes that plans were searched for
  /// Degrees of context and expert parallelism and of sharding that were tried, or why they were not: a sentence;
  /// empty: neither matters.
  std::string degrees;
  std::string not_linked;  ///< "60 of 64 GPUs cannot be used together: ..."; empty: all can
};

/// Progress of a search.
struct SearchProgress {
  std::uint64_t considered = 0;  ///< plans that were priced
  std::optional<double> best;    ///< as Bound::found
  std::optional<double> gap;     ///< as Bound::gap, while the bound is proved
};

/// Context and expert parallelism and sharding groups have one degree each for a whole plan. Those that are not pinned
/// are tried, where the framework has them: expert_parallel of models with experts; context_parallel for sequences of
/// at least 8192 tokens, and where nothing fits without it; then, with the best of these and where the framework has
/// ZeRO-3, sharding_degree of 2, 4, 8, ... and of one, two and four nodes. Every degree is first
/// searched briefly; then the best one, and the undivided case, are searched in full. The bound holds only for plans
/// that divide neither sequences nor experts; SearchResult::degrees says so if other plans were tried.
///
/// Errors: not_found (partition, no measurement for any GPU of the cluster), infeasible (no plan fits or keeps the
/// limits; says which limit binds and by how much), usage (pins that contradict the job, the framework or the cluster).
Result<SearchResult> find_plans(const Request& request, const simulator::Environment& environment,
                                const std::function<void(const SearchProgress& progress)>& progress = {});

/// A plan's value under the objective: greater is better for throughput and throughput_per_usd, smaller for cost.
double objective_value(Objective objective, const simulator::Prediction& prediction);

}  // namespace sailor::planner
