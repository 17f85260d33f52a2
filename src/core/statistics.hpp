// Order statistics of repeated measurements.
#pragma once

#include <cstdint>
#include <span>

#include "core/units.hpp"

namespace sailor {

/// What repeated measurements of one time say: the median and the spread around it.
struct TimeStatistics {
  Seconds median{};
  Seconds p10{};  ///< 10th percentile
  Seconds p90{};  ///< 90th percentile
  std::int64_t samples = 0;

  /// (p90 - p10) / median; 0 for a time of zero.
  [[nodiscard]] double relative_spread() const { return median.value() > 0 ? (p90 - p10) / median : 0.0; }
};

/// The q-quantile (0 to 1) with linear interpolation between order statistics (Hyndman & Fan, type 7).
/// `values` need not be sorted; 0 when empty.
double quantile(std::span<const double> values, double q);

/// Statistics of times in seconds.
TimeStatistics summarize(std::span<const double> seconds);

}  // namespace sailor
