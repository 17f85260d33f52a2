// The file of `sailor-train --metrics`: a line of JSON per iteration. Rank 0 writes it.
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
  std::optional<runtime::IterationSummary> summary{};  ///< nothing: the rank that knew it is gone
  double tokens = 0.0;                                 ///< of all ranks together
  std::optional<int> epoch{};                          ///< of an elastic training
  std::optional<double> utilization;  ///< model FLOP over the devices' peak; nothing where the catalogue has none
};

/// One line, without its end. Numbers that are not finite are null. `timestamp`: ISO 8601.
std::string metrics_line(const IterationMetrics& metrics, const std::string& timestamp);

class MetricsFile {
 public:
  /// Errors: io; invalid_input when there is a file of something else.
  static Result<MetricsFile> open(const std::filesystem::path& path);
  /// Errors: io.
  Result<void> add(const IterationMetrics& metrics);
  /// Of the last line that was there; -1: there is none, or it names none.
  [[nodiscard]] std::int64_t last_iteration() const;

 private:
  explicit MetricsFile(LineFile lines) : lines_(std::move(lines)) {}
  LineFile lines_;
};

}  // namespace sailor::apps
