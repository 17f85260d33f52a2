// How plans and predictions are shown: tables for people, JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "planner/planner.hpp"
#include "profile/run_file.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

nlohmann::ordered_json plan_to_json(const Plan& plan);
/// Keys iteration_time_s, peak_memory_bytes, cost_usd_per_iteration, fits, the parts of the time, and `stages`.
nlohmann::ordered_json prediction_to_json(const simulator::Prediction& prediction);

/// Time and its parts, money, and a row per stage with its times and memory.
std::string prediction_report(const Plan& plan, const simulator::Prediction& prediction);

/// A row per plan, best first. When a plan stands on more than measurements a column says so, and lines below say what
/// was interpolated or estimated.
std::string plans_table(const planner::SearchResult& result);

/// "estimated: layer times of opt-350m on H200-141 (...)", a line for each of the first few; "" when there are none.
std::string estimates_text(const std::vector<simulator::EstimatedInput>& inputs);

/// What was predicted beside what a run measured, with the error in per cent and the spread of the measurement.
std::string comparison_report(const simulator::Prediction& prediction, const RunRecord& run);
nlohmann::ordered_json comparison_to_json(const simulator::Prediction& prediction, const RunRecord& run);

}  // namespace sailor::apps
