// The answer of sailor-plan for a point: kept in a file of its own, and read as a row of the sweep's tables.
#pragma once

#include <string>

#include "apps/sweep/experiment.hpp"
#include "core/error.hpp"
#include "core/process.hpp"
#include "core/units.hpp"
#include "profile/sweep_file.hpp"

namespace sailor::apps::sweep {

struct Outcome {
  SweepStatus status = SweepStatus::failed;
  std::string why{};     ///< reason if there is no plan
  std::string inputs{};  ///< hash of program and measurements: others may answer differently
  Seconds wall_time{};
  Seconds processor_time{};
  Bytes peak_resident_memory{};
  std::string answer{};  ///< the JSON of sailor-plan, with the best plan only; empty where there is none

  [[nodiscard]] bool is_finished() const { return status != SweepStatus::failed; }
};

/// The outcome of a sailor-plan process that has ended. `wall_time` was measured by the caller.
Outcome outcome_of(const ProcessOutcome& ended, Seconds wall_time, std::string inputs);

/// The content of a point's file.
std::string outcome_to_json(const Point& point, const Outcome& outcome);
/// Errors: invalid_input, naming the file `name`.
Result<Outcome> parse_outcome(const std::string& text, const std::string& name);

/// Errors: invalid_input (the answer is not what sailor-plan writes).
Result<SweepRow> row_of(const Experiment& experiment, const Point& point, const Outcome& outcome);

}  // namespace sailor::apps::sweep
