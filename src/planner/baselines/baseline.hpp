// The planners that the Sailor paper compares with, each with its own search and its own cost model, as the artifact
// (github.com/eth-easl/sailor, SOSP'25) adapts them. `ae_scripts/README.md` lists what each ignores and which
// faults of the adaptations are kept or fixed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/inputs.hpp"
#include "planner/baselines/plan_list.hpp"
#include "planner/request.hpp"

namespace sailor::planner::baselines {

/// Offered devices: a column of the artifact's availability traces. Their order matters to some planners.
struct Offer {
  std::string gpu;
  std::string zone;
  int gpus = 0;
  int gpus_per_node = 1;
};

struct Problem {
  const Inputs& inputs;
  TrainingJob job;
  std::vector<Offer> offers;
  Objective objective = Objective::throughput;  ///< throughput or cost
  std::optional<Usd> max_cost;                  ///< USD per iteration
  std::optional<double> min_throughput;         ///< iterations per second
  /// kept: as published, so that the figures of the artifact are reproduced; fixed: obvious faults of the adaptations
  /// are repaired.
  Faults faults = Faults::fixed;
  std::uint64_t seed = 0;             ///< of random searches
  std::uint64_t work_limit = 0;       ///< of searches that the original limits by time; 0: the planner's default
  std::optional<Seconds> time_limit;  ///< of the search, wall clock; the answer says when it was reached
  /// Whether the time is up, or the user interrupted.
  std::function<bool()> is_over = [] { return false; };
};

struct Proposal {
  PlanList plan;
  std::optional<double> throughput;  ///< iterations/s that the planner itself expects
  std::optional<Usd> cost;           ///< USD per iteration that the planner itself expects
  /// Score by the planner's own evaluator, if the artifact judges it by that instead of evaluate(). Aceso: of
  /// operators.
  std::optional<EvaluatorScore> own_score{};
};

struct Proposals {
  std::vector<Proposal> plans;     ///< in the planner's own order, best first
  std::vector<std::string> notes;  ///< what was left out, for users
  bool out_of_time = false;
};

/// A planner's prediction for a given plan, for figures 5a and 5b. std::nullopt if it does not model the value.
struct Estimate {
  std::optional<Seconds> iteration_time;
  std::optional<Bytes> peak_memory;  ///< per device
};

class Baseline {
 public:
  Baseline() = default;
  Baseline(const Baseline&) = delete;
  Baseline& operator=(const Baseline&) = delete;
  virtual ~Baseline() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;      ///< "amp": for options
  [[nodiscard]] virtual std::string_view title() const = 0;     ///< "AMP"
  [[nodiscard]] virtual std::string_view citation() const = 0;  ///< "Li et al., NeurIPS 2022"
  /// One line: what it searches and what it ignores.
  [[nodiscard]] virtual std::string_view summary() const = 0;
  /// Errors: not_found (missing measurements), infeasible (it has no plan), invalid_input (unsupported input).
  [[nodiscard]] virtual Result<Proposals> plan(const Problem& problem) const = 0;
  /// The prediction of the planner's own cost model for a given plan, as the artifact's validation asks for it. Errors
  /// as plan(); unavailable if it has none.
  [[nodiscard]] virtual Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const = 0;
};

/// All planners, by name.
const std::vector<const Baseline*>& all_baselines();
/// Errors: not_found with the known names.
Result<const Baseline*> find_baseline(std::string_view name);

// Each planner is in its own file.
const Baseline& aceso();
const Baseline& amp();
const Baseline& artifact_sailor();  ///< the authors' own planner
const Baseline& atlas();
const Baseline& dtfm();
const Baseline& flashflex();
const Baseline& galvatron();
const Baseline& metis();
const Baseline& oobleck();
const Baseline& piper();
const Baseline& varuna();

}  // namespace sailor::planner::baselines
