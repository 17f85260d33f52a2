// The file of `sailor-train --metrics`: a line of JSON per iteration. Rank 0 writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/timeline.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

struct IterationMetrics {
  std::int64_t iteration = 0;
  runtime::IterationResult result{};
  runtime::IterationSummary summary{};
  double tokens = 0.0;                ///< of all ranks together
  std::optional<int> epoch{};         ///< of an elastic training
  std::optional<double> utilization;  ///< model FLOP over the devices' peak; nothing where the catalogue has none
};

/// One line, without its end. Numbers that are not finite are null. `timestamp`: ISO 8601.
std::string metrics_line(const IterationMetrics& metrics, const std::string& timestamp);

/// Lines are appended and handed to the system one by one: whatever ends the process, those before stay. A line that a
/// full disk or a dying node left unfinished is removed when the file is opened again.
class MetricsFile {
 public:
  /// Errors: io; invalid_input when there is a file of something else.
  static Result<MetricsFile> open(const std::filesystem::path& path);
  MetricsFile(MetricsFile&& other) noexcept;
  MetricsFile& operator=(MetricsFile&&) = delete;
  ~MetricsFile();

  /// Errors: io.
  Result<void> add(const IterationMetrics& metrics);

 private:
  MetricsFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace sailor::apps
