// How a published planner is asked and its plans are judged, as the harness of the artifact does it
// (simulations/simulator.py): plans are taken in the planner's own order, those that do not fit are skipped and
// counted, limits are applied after the search, and the first plan that is left is the result.
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

/// What of a cluster a planner can use.
enum class Scope {
  everything,  ///< several GPU types and zones: Sailor, DTFM
  one_zone,    ///< GPU types of one zone: AMP, FlashFlex, Metis
  one_type,    ///< zones with one GPU type: Atlas
  one_offer,   ///< one GPU type in one zone: Aceso, Galvatron, Oobleck, Piper, Varuna
};
/// Of a planner by name; everything where it is not known.
Scope scope_of(std::string_view planner);

/// What a planner is given, once for each time that it is asked.
///
/// kept: once, what the artifact gives it: those of one zone get of each GPU type the last zone that has it, under the
/// name of the last zone of all; those of one type or offer get the first. fixed: each zone, type or offer by itself,
/// so that the best of all that it can use counts.
std::vector<std::vector<Offer>> offer_sets(Scope scope, const std::vector<Offer>& offers, Faults faults);

/// The devices of a cluster's nodes, in its order.
std::vector<Offer> offers_of(const std::vector<NodeGroup>& groups);
/// The devices of a list, as the artifact's validation counts them: every machine in full.
std::vector<Offer> offers_of(const PlanList& list);

/// What says whether a plan fits, how long an iteration takes, and what it costs.
enum class Judge { simulator, artifact };

struct Judging {
  const simulator::Environment& simulated;
  Judge judge = Judge::simulator;
  double memory_margin = 0.0;  ///< share of each device's memory to leave free, with Judge::simulator
  std::size_t max_plans = 10;  ///< how many to accept
  /// Nodes that a job may have, which planners do not know.
  std::optional<int> max_nodes = std::nullopt;
};

struct JudgedPlan {
  Proposal proposal;
  std::optional<Plan> plan;  ///< nothing where a Plan cannot say it
  std::string why_no_plan;
  Result<EvaluatorScore> artifact = EvaluatorScore{};
  Result<SimulatorVerdict> simulator = SimulatorVerdict{};
  // By the judge.
  Seconds iteration_time{};
  Usd cost{};
  Bytes peak_memory{};
  bool is_bound = false;
};

struct HarnessAnswer {
  std::vector<JudgedPlan> plans;  ///< accepted, in the planner's own order
  std::vector<Offer> offers;      ///< that they are for
  std::size_t proposed = 0;
  // Of the plans before the first that is accepted, or of all:
  std::size_t did_not_fit = 0;
  std::size_t rejected_by_limits = 0;
  std::size_t not_available =
      0;                       ///< take more devices than are offered; with Faults::kept they are judged all the same
  std::size_t not_judged = 0;  ///< the judge lacks times, sizes or links
  Seconds search_time{};       ///< wall clock of the planner, all sets of offers together
  bool out_of_time = false;
  std::vector<std::string> notes;
};

/// Asks a planner and judges what it proposes. Problem::time_limit is for all sets of offers together. Where nothing is
/// accepted there are no plans, but counts and notes; that the planner has no plan (infeasible) is a note, too. Errors:
/// others of Baseline::plan().
Result<HarnessAnswer> ask(const Baseline& baseline, const Problem& problem, const Judging& judging);

}  // namespace sailor::planner::baselines
