#include "core/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sailor {

double quantile(std::span<const double> values, double q) {
  if (values.empty()) return 0.0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

TimeStatistics summarize(std::span<const double> seconds) {
  return {.median = Seconds(quantile(seconds, 0.5)),
          .p10 = Seconds(quantile(seconds, 0.1)),
          .p90 = Seconds(quantile(seconds, 0.9)),
          .samples = static_cast<std::int64_t>(seconds.size())};
}

}  // namespace sailor
