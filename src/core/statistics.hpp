// Order statistics of repeated measurements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/units.hpp"

namespace sailor {

/// Statistics of repeated measurements of one time: the median and the spread around it.
struct TimeStatistics {
  Seconds median{};
  Seconds p10{};  ///< 10th percentile
  Seconds p90{};  ///< 90th percentile
  Seconds low{};  ///< a repetition of the whole measurement has its median in [low, high] (95%)
  Seconds high{};
  std::int64_t samples = 0;  ///< 0: unknown (published means: all five times equal; estimates: low and high wide)

  /// A time without a spread, as papers give them.
  static TimeStatistics single(Seconds time) { return {time, time, time, time, time, 0}; }
  bool operator==(const TimeStatistics&) const = default;

  /// (p90 - p10) / median; 0 for a time of zero.
  [[nodiscard]] double relative_spread() const { return median.value() > 0 ? (p90 - p10) / median : 0.0; }
  /// Standard deviation of the median as a share of it, were it normally distributed with 95% in [low, high].
  [[nodiscard]] double relative_error() const {
    return median.value() > 0 ? (high - low) / median / (2.0 * 1.96) : 0.0;
  }
  /// How far [low, high] reaches from the median, the longer side, in medians: 0.03 = "+-3%". 0 for a time of zero.
  [[nodiscard]] double relative_interval() const {
    return median.value() > 0 ? (high - median > median - low ? high - median : median - low) / median : 0.0;
  }
};

/// All of the times multiplied; the number of samples stays.
TimeStatistics scaled(TimeStatistics times, double factor);

/// The 95th percentile of a normal distribution, in standard deviations.
inline constexpr double percentile_95 = 1.645;

/// The q-quantile (0 to 1) with linear interpolation between order statistics (Hyndman & Fan, type 7).
/// `values` need not be sorted; 0 when empty.
double quantile(std::span<const double> values, double q);

/// Statistics of times in seconds. [low, high] is right only when the samples are independent of one another.
TimeStatistics summarize(std::span<const double> seconds);

/// Statistics of times in seconds that were taken in batches, each set up anew. Samples of a batch share its conditions
/// (placement in memory, clock, neighbours); batches are independent. [low, high] holds the median of one more batch
/// with 95%, and that of a repetition of all of them with at least as much: what happens to a batch may happen to a
/// whole repetition. With one batch: as if its samples were independent. Empty batches are ignored.
TimeStatistics summarize_batches(std::span<const std::vector<double>> batches);

/// The value that |t| of Student's distribution exceeds with probability 5%; degrees_of_freedom > 0.
double student_t_95(int degrees_of_freedom);

}  // namespace sailor
