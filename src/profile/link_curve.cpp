#include "profile/link_curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace sailor {

namespace {

constexpr double bytes_per_mb = 1e6;
constexpr double bytes_per_gb = 1e9;

/// The parabola at one size, limited to possible values. Bytes per second.
double parabola(const LinkCurve& curve, double bytes) {
  const double x = std::log2(bytes / bytes_per_mb);
  double value = ((curve.quadratic * x + curve.linear) * x + curve.constant) * bytes_per_gb;
  if (curve.largest_bandwidth.value() > 0.0)
    value = std::clamp(value, curve.largest_bandwidth.value() * 1e-3, curve.largest_bandwidth.value());
  return std::max(value, 1.0);
}

/// Sizes at which s / B(s) can have a minimum: where B(s) = s dB/ds, that is, with x = log2(s), a x² + (b - 2a/ln 2) x
/// + (c - b/ln 2) = 0. NaN if there is none.
std::array<double, 2> turning_points(const LinkCurve& curve) {
  const double a = curve.quadratic;
  const double b = curve.linear - 2.0 * a / std::numbers::ln2;
  const double c = curve.constant - curve.linear / std::numbers::ln2;
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (a == 0.0) return {b != 0.0 ? std::exp2(-c / b) * bytes_per_mb : none, none};
  const double root = std::sqrt(b * b - 4.0 * a * c);  // NaN when the discriminant is negative
  return {std::exp2((-b - root) / (2.0 * a)) * bytes_per_mb, std::exp2((-b + root) / (2.0 * a)) * bytes_per_mb};
}

}  // namespace

BytesPerSecond LinkCurve::bandwidth(Bytes message) const {
  const double smallest = std::max(smallest_message.value(), 1.0);
  const double largest = std::max(largest_message.value(), smallest);
  const double bytes = std::clamp(message.value(), smallest, largest);
  // A parabola may fall to zero at small sizes, so that a small message would take longer than a large one.
  double time = std::min(bytes / parabola(*this, bytes), largest / parabola(*this, largest));
  for (const double turn : turning_points(*this))
    if (turn > bytes && turn < largest) time = std::min(time, turn / parabola(*this, turn));
  return BytesPerSecond(bytes / time);
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
