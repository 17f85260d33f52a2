// What sailor-plan --planner NAME prints: the plans of a published planner, judged.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/units.hpp"
#include "planner/baselines/baseline.hpp"
#include "planner/baselines/harness.hpp"
#include "reports/plans.hpp"

namespace sailor::reports {

/// "amp        AMP (Li et al., NeurIPS 2022): ...": a line for each planner, this project's own first.
std::string planner_list();

/// "4 plans proposed, 2 of them before the first that is accepted: 1 does not fit, 1 misses a limit".
std::string counts_text(const planner::baselines::HarnessAnswer& answer);

std::string published_report(const Heading& heading, const planner::baselines::Baseline& baseline,
                             const planner::baselines::Problem& problem, planner::baselines::Judge judge,
                             const planner::baselines::HarnessAnswer& answer);

/// The keys of the heading, then planner, faults, judge, objective, search_time_s, counts, notes, offers, plans. A plan
/// has the keys of sailor-plan with the judge's values, and `artifact` and `simulator` with the values of each; unknown
/// values are null.
nlohmann::ordered_json published_to_json(const Heading& heading, const planner::baselines::Baseline& baseline,
                                         const planner::baselines::Problem& problem, planner::baselines::Judge judge,
                                         const planner::baselines::HarnessAnswer& answer);

/// Estimate of a plan by a cost model other than this project's.
struct OtherEstimate {
  std::string estimator;  ///< its name as an option: "amp", "artifact"
  std::string title;      ///< "AMP"
  planner::baselines::Estimate estimate;
};
/// A plan's time and memory by this project's simulator; lower bounds where it cannot run the plan.
struct OwnEstimate {
  Seconds iteration_time{};
  Bytes peak_memory{};
  bool is_bound = false;
};

/// A table: both estimates side by side with the measured values, and the errors.
std::string estimate_report(const OwnEstimate& own, const OtherEstimate& other, std::optional<Seconds> measured_time,
                            std::optional<Bytes> measured_memory);
/// Keys estimator, iteration_time_s, peak_memory_bytes (null: not modelled) and, for measured values,
/// iteration_time_error_percent and peak_memory_error_percent.
nlohmann::ordered_json estimate_to_json(const OtherEstimate& other, std::optional<Seconds> measured_time,
                                        std::optional<Bytes> measured_memory);

}  // namespace sailor::reports
