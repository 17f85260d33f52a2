#include "profile/link_curve.hpp"

#include <algorithm>
#include <cmath>

namespace sailor {

namespace {

constexpr double bytes_per_mb = 1e6;
constexpr double bytes_per_gb = 1e9;

}  // namespace

BytesPerSecond LinkCurve::bandwidth(Bytes message) const {
  const double bytes = std::clamp(message.value(), std::max(smallest_message.value(), 1.0),
                                  std::max(largest_message.value(), std::max(smallest_message.value(), 1.0)));
  const double x = std::log2(bytes / bytes_per_mb);
  double value = ((quadratic * x + linear) * x + constant) * bytes_per_gb;
  if (largest_bandwidth.value() > 0.0) {
    value = std::min(value, largest_bandwidth.value());
    value = std::max(value, largest_bandwidth.value() * 1e-3);
  }
  return BytesPerSecond(std::max(value, 1.0));
}

Seconds LinkCurve::time(Bytes message, int ranks) const {
  if (ranks < 1) return Seconds(0.0);
  const Bytes all = message * ranks;
  if (message >= smallest_message) return all / bandwidth(message);
  const Seconds at_smallest = smallest_message * ranks / bandwidth(smallest_message);
  const Seconds start = std::min(latency, at_smallest);
  return start + (at_smallest - start) * (message / smallest_message);
}

}  // namespace sailor
