#include "core/statistics.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace sailor {

namespace {

double quantile_of_sorted(std::span<const double> sorted, double q) {
  if (sorted.empty()) return 0.0;
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

/// `widening` scales [low, high], which is a confidence interval of the median when `widening` is 1.
TimeStatistics summarize(std::span<const double> seconds, double widening) {
  std::vector<double> sorted(seconds.begin(), seconds.end());
  std::sort(sorted.begin(), sorted.end());
  // Distribution-free: the median lies between the order statistics n/2 -+ 1.96 sqrt(n)/2 with 95% (David & Nagaraja,
  // Order Statistics, section 7.1).
  const double n = static_cast<double>(sorted.size());
  const double reach = n > 1 ? widening * 0.98 * std::sqrt(n) / (n - 1) : 0.0;
  return {.median = Seconds(quantile_of_sorted(sorted, 0.5)),
          .p10 = Seconds(quantile_of_sorted(sorted, 0.1)),
          .p90 = Seconds(quantile_of_sorted(sorted, 0.9)),
          .low = Seconds(quantile_of_sorted(sorted, 0.5 - reach)),
          .high = Seconds(quantile_of_sorted(sorted, 0.5 + reach)),
          .samples = static_cast<std::int64_t>(sorted.size())};
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return quantile_of_sorted(sorted, q);
}

// The median of a repetition varies as much as the median here: their difference varies sqrt(2) times as much as either
// of them.
TimeStatistics summarize(std::span<const double> seconds) { return summarize(seconds, std::sqrt(2.0)); }

TimeStatistics summarize_batches(std::span<const std::vector<double>> batches) {
  std::vector<double> all;
  std::vector<double> medians;
  for (const std::vector<double>& batch : batches) {
    if (batch.empty()) continue;
    all.insert(all.end(), batch.begin(), batch.end());
    medians.push_back(quantile(batch, 0.5));
  }
  TimeStatistics statistics = summarize(all);
  if (medians.size() < 2) return statistics;
  const double count = static_cast<double>(medians.size());
  double mean = 0.0;
  for (const double median : medians) mean += median / count;
  double squares = 0.0;
  for (const double median : medians) squares += (median - mean) * (median - mean);
  // Prediction interval of one more observation (Hahn & Meeker, Statistical Intervals, section 4.7), here of the median
  // of one more batch, around the median of all samples.
  const double reach =
      student_t_95(static_cast<int>(medians.size()) - 1) * std::sqrt(squares / (count - 1) * (1.0 + 1.0 / count));
  statistics.low = Seconds(std::max(0.0, std::min(statistics.low.value(), statistics.median.value() - reach)));
  statistics.high = Seconds(std::max(statistics.high.value(), statistics.median.value() + reach));
  return statistics;
}

double student_t_95(int degrees_of_freedom) {
  // NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2; above it Abramowitz & Stegun 26.7.5.
  static constexpr std::array<double, 10> table{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  const auto row = static_cast<std::size_t>(std::max(degrees_of_freedom, 1) - 1);
  if (row < table.size()) return table[row];
  const double n = degrees_of_freedom;
  const double z = 1.959964;  // of the normal distribution
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  const double z7 = z5 * z * z;
  return z + (z3 + z) / (4.0 * n) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n) +
         (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n * n * n);
}

TimeStatistics scaled(TimeStatistics times, double factor) {
  for (Seconds TimeStatistics::*member : {&TimeStatistics::median, &TimeStatistics::p10, &TimeStatistics::p90,
                                          &TimeStatistics::low, &TimeStatistics::high})
    times.*member *= factor;
  return times;
}

}  // namespace sailor
