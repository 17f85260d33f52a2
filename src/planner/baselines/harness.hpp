// How a published planner is called and its plans are judged, following the harness of the artifact
// (simulations/simulator.py): plans are taken in the planner's own order, those that do not fit are skipped and
// counted, limits are applied after the search, and the first remaining plan is the result.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/baselines/list_bound.hpp"
#include "planner/baselines/plan_list.hpp"
#include "simulator/simulator.hpp"

namespace sailor::planner::baselines {

/// The part of a cluster that a planner can use.
enum class Scope {
  everything,  ///< several GPU types and zones: Sailor, DTFM
  one_zone,    ///< GPU types of one zone: AMP, FlashFlex, Metis
  one_type,    ///< zones with one GPU type: Atlas
  one_offer,   ///< one GPU type in one zone: Aceso, Galvatron, Oobleck, Piper, Varuna
};
/// Scope of a planner by name; `everything` if the name is not known.
Scope scope_of(std::string_view planner);

/// The offers that a planner is given, one set for each call.
///
/// kept: one call, with the devices that the artifact passes. Scope::one_zone: for each GPU type its devices in the
/// last zone that has it, all renamed to the last zone of the cluster; planners of one type or offer get the first set
/// only. fixed: one call for each zone, type or offer; the best answer counts.
std::vector<std::vector<Offer>> offer_sets(Scope scope, const std::vector<Offer>& offers, Faults faults);

/// The devices of a cluster's nodes, in the order of the groups.
std::vector<Offer> offers_of(const std::vector<NodeGroup>& groups);
/// The devices of a list, as the artifact's validation counts them: every machine in full.
std::vector<Offer> offers_of(const PlanList& list);

/// The model that decides whether a plan fits, how long an iteration takes, and what it costs.
enum class Judge { simulator, artifact };

struct Judging {
  const simulator::Environment& simulated;
  Judge judge = Judge::simulator;
  double memory_margin = 0.0;  ///< share of each device's memory to leave free, with Judge::simulator
  std::size_t max_plans = 10;  ///< max number of plans to accept
  /// Max number of nodes of a job, which planners do not know.
  std::optional<int> max_nodes = std::nullopt;
};

struct JudgedPlan {
  Proposal proposal;
  std::optional<Plan> plan;  ///< std::nullopt if a Plan cannot express it
  std::string why_no_plan;
  Result<EvaluatorScore> artifact = EvaluatorScore{};
  Result<SimulatorVerdict> simulator = SimulatorVerdict{};
  // Values by the judge.
  Seconds iteration_time{};
  Usd cost{};
  Bytes peak_memory{};
  bool is_bound = false;
};

struct HarnessAnswer {
  std::vector<JudgedPlan> plans;  ///< accepted, in the planner's own order
  std::vector<Offer> offers;      ///< offers that the plans are for
  std::size_t proposed = 0;
  // Numbers of plans before the first that is accepted, or of all if none is:
  std::size_t did_not_fit = 0;
  std::size_t rejected_by_limits = 0;
  std::size_t not_available =
      0;                       ///< need more devices than are offered; with Faults::kept they are judged all the same
  std::size_t not_judged = 0;  ///< the judge lacks times, sizes or links
  Seconds search_time{};       ///< wall clock of the planner, all sets of offers together
  bool out_of_time = false;
  std::vector<std::string> notes;
};

/// Calls a planner and judges its proposals. Problem::time_limit is for all sets of offers together. If no plan is
/// accepted, the answer has counts and notes but no plans; a planner without a plan (infeasible) is also a note.
/// Errors: others of Baseline::plan().
Result<HarnessAnswer> ask(const Baseline& baseline, const Problem& problem, const Judging& judging);

}  // namespace sailor::planner::baselines
