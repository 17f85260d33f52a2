// Errors of predictions against measured iterations: a table, statistics, a box plot.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "reports/plot.hpp"

namespace sailor::reports {

/// A measured run and its prediction.
struct CaseOutcome {
  std::string name{};
  bool artefact = false;  ///< known not to measure what is predicted
  std::string note{};
  Seconds measured_time{};
  std::optional<Seconds> measured_low{};  ///< 95% interval for the time of a repetition; both ends or neither
  std::optional<Seconds> measured_high{};
  Seconds predicted_time{};
  Seconds predicted_p5{};  ///< 5th and 95th percentile of the prediction
  Seconds predicted_p95{};
  std::optional<Bytes> measured_memory{};
  Bytes predicted_memory{};

  /// predicted / measured - 1.
  [[nodiscard]] double time_error() const;
  [[nodiscard]] std::optional<double> memory_error() const;
};

/// A row per case; below, the errors with and without the artefacts, if there are any, and why these cases are
/// artefacts.
std::string accuracy_report(const std::string& title, std::span<const CaseOutcome> cases);
nlohmann::ordered_json accuracy_to_json(const std::string& title, std::span<const CaseOutcome> cases);
/// Signed errors of time and memory as box plots, with the single cases beside them.
Plot accuracy_plot(const std::string& title, std::span<const CaseOutcome> cases);

}  // namespace sailor::reports
