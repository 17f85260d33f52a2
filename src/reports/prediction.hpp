// How plans and predictions are shown: tables for people, JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "profile/run_file.hpp"
#include "simulator/simulator.hpp"

namespace sailor::reports {

nlohmann::ordered_json plan_to_json(const Plan& plan);
/// Keys iteration_time_s, peak_memory_bytes, cost_usd_per_iteration, fits, all other values of a prediction, and
/// `stages`.
nlohmann::ordered_json prediction_to_json(const simulator::Prediction& prediction);

/// Time and its parts, what bounds it, cost by device type and zone, and two tables: the times and the memory of every
/// stage. Consecutive equal stages share a row; of very many rows the first and last are shown.
std::string prediction_report(const Plan& plan, const simulator::Prediction& prediction);

/// "estimated: layer times of opt-350m on H200-141 (...)", a line for each of the first few; "" if there are none.
std::string estimates_text(const std::vector<simulator::EstimatedInput>& inputs);
/// The line below a prediction whose numbers are Origin::published.
std::string published_text();

/// Predicted and measured values of a run side by side, with the error in per cent and the spread of the measurement.
std::string comparison_report(const simulator::Prediction& prediction, const RunRecord& run);
nlohmann::ordered_json comparison_to_json(const simulator::Prediction& prediction, const RunRecord& run);
/// The same for single values; one that was not measured has no row, and is null.
std::string comparison_report(const simulator::Prediction& prediction, std::optional<Seconds> time,
                              std::optional<Bytes> memory);
nlohmann::ordered_json comparison_to_json(const simulator::Prediction& prediction, std::optional<Seconds> time,
                                          std::optional<Bytes> memory);

}  // namespace sailor::reports
