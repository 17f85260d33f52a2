// The file of `sailor-train --metrics`: one line of JSON per iteration, written by rank 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/line_file.hpp"
#include "core/units.hpp"
#include "runtime/timeline.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

struct IterationMetrics {
  std::int64_t iteration = 0;
  runtime::IterationResult result{};
  std::optional<runtime::IterationSummary> summary{};  ///< std::nullopt: the rank that knew it is gone
  double tokens = 0.0;                                 ///< summed over all ranks
  std::optional<int> epoch{};                          ///< epoch of an elastic training
  std::optional<double> utilization;  ///< model FLOP over peak of the devices; std::nullopt if the catalogue has none
};

/// One line, without the newline. Numbers that are not finite are null. `timestamp`: ISO 8601.
std::string metrics_line(const IterationMetrics& metrics, const std::string& timestamp);

class MetricsFile {
 public:
  /// Opens or creates the file. Errors: io; invalid_input if the file is not a metrics file.
  static Result<MetricsFile> open(const std::filesystem::path& path);
  /// Errors: io.
  Result<void> add(const IterationMetrics& metrics);
  /// Iteration of the last line that the file had when it was opened; -1 if it had none or the line names none.
  [[nodiscard]] std::int64_t last_iteration() const;

 private:
  explicit MetricsFile(LineFile lines) : lines_(std::move(lines)) {}
  LineFile lines_;
};

}  // namespace sailor::apps
