// Fits the curve of link_curve.hpp to measurements. The curve has two borders, smallest_message and largest_message:
// every pair of measured sizes is tried, with a parabola, a line and a constant between them, and the best is kept.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <set>
#include <vector>

#include "core/statistics.hpp"
#include "profile/link_curve.hpp"

namespace sailor {

namespace {

using Polynomial = std::array<double, 3>;  // constant, linear, quadratic

double log_megabytes(double bytes) { return std::log2(bytes / 1e6); }

double value_at(const Polynomial& p, double x) { return (p[2] * x + p[1]) * x + p[0]; }

struct Sample {
  double bytes = 0.0;
  double seconds = 0.0;
  double gb_per_s = 0.0;
};

/// Minimises Σ weight_i (p(x_i) - y_i)² over polynomials of the degree: Gaussian elimination of the normal equations.
/// std::nullopt if the x do not determine it.
std::optional<Polynomial> least_squares(const std::vector<double>& x, const std::vector<double>& y,
                                        const std::vector<double>& weight, std::size_t degree) {
  const std::size_t n = degree + 1;
  std::array<std::array<double, 4>, 3> a{};  // [matrix | right side] in the first n rows, right side in column n
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::array<double, 3> powers{1.0, x[i], x[i] * x[i]};
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t column = 0; column < n; ++column) a[row][column] += weight[i] * powers[row] * powers[column];
      a[row][n] += weight[i] * powers[row] * y[i];
    }
  }
  for (std::size_t pivot = 0; pivot < n; ++pivot) {
    const double diagonal = a[pivot][pivot];  // positive definite: no exchange of rows is needed
    if (!(diagonal > 1e-12 * weight[0])) return std::nullopt;
    for (std::size_t row = pivot + 1; row < n; ++row) {
      const double factor = a[row][pivot] / diagonal;
      for (std::size_t column = pivot; column <= n; ++column) a[row][column] -= factor * a[pivot][column];
    }
  }
  Polynomial p{};
  for (std::size_t row = n; row-- > 0;) {
    double rest = a[row][n];
    for (std::size_t column = row + 1; column < n; ++column) rest -= a[row][column] * p[column];
    p[row] = rest / a[row][row];
    if (!std::isfinite(p[row])) return std::nullopt;
  }
  return p;
}

/// Iteratively reweighted least squares with Huber's weights (Huber & Ronchetti, Robust Statistics, section 7.8) on
/// residuals relative to `scale`, which must be positive.
std::optional<Polynomial> huber(const std::vector<double>& x, const std::vector<double>& y,
                                const std::vector<double>& scale, std::size_t degree) {
  constexpr double tuning = 1.345;  // 95% efficiency for normally distributed errors
  constexpr int iterations = 50;
  std::vector<double> weight(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) weight[i] = 1.0 / (scale[i] * scale[i]);
  auto p = least_squares(x, y, weight, degree);
  std::vector<double> residual(x.size());
  for (int iteration = 0; p && iteration < iterations; ++iteration) {
    for (std::size_t i = 0; i < x.size(); ++i) residual[i] = std::abs(y[i] - value_at(*p, x[i])) / scale[i];
    const double spread = std::max(quantile(residual, 0.5) / 0.6745, 1e-12);  // MAD; 0.6745 makes it a deviation
    for (std::size_t i = 0; i < x.size(); ++i)
      weight[i] = std::min(1.0, tuning * spread / std::max(residual[i], 1e-300)) / (scale[i] * scale[i]);
    const auto next = least_squares(x, y, weight, degree);
    if (!next || next == p) break;
    p = next;
  }
  return p;
}

/// Running median, robust against outliers: for each value, the median of it and two neighbours on each side.
std::vector<double> running_median(const std::vector<Sample>& samples, double Sample::*value) {
  std::vector<double> medians;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::vector<double> near;
    for (std::size_t j = i < 2 ? 0 : i - 2; j < std::min(i + 3, samples.size()); ++j) near.push_back(samples[j].*value);
    medians.push_back(quantile(near, 0.5));
  }
  return medians;
}

/// Time is s / B(s): it does not fall where B' <= ln 2 · B, derived by x = log2(s).
bool is_monotone(const Polynomial& p, double from, double to) {
  const Polynomial slack{std::numbers::ln2 * p[0] - p[1], std::numbers::ln2 * p[1] - 2.0 * p[2],
                         std::numbers::ln2 * p[2]};
  std::vector<double> extremes{from, to};
  auto add_vertex = [&](const Polynomial& q) {
    if (q[2] == 0.0) return;
    const double vertex = -q[1] / (2.0 * q[2]);
    if (vertex > from && vertex < to) extremes.push_back(vertex);
  };
  add_vertex(slack);
  add_vertex(p);
  return std::all_of(extremes.begin(), extremes.end(),
                     [&](double x) { return value_at(p, x) > 0.0 && value_at(slack, x) >= 0.0; });
}

/// The latency of the straight line to the curve's smallest message: a weighted median of the latencies that each
/// shorter message implies (Theil-Sen with one end fixed). It minimises the sum of errors relative to `usual_seconds`.
Seconds latency_of(const LinkCurve& curve, const std::vector<Sample>& samples, const std::vector<double>& usual_seconds,
                   int ranks) {
  const double smallest = curve.smallest_message.value();
  const double longest = curve.time(curve.smallest_message, ranks).value();
  struct Wish {
    double latency;
    double weight;
  };
  std::vector<Wish> wishes;
  double all = 0.0;
  for (std::size_t i = 0; i < samples.size() && samples[i].bytes < smallest; ++i) {
    const double share = samples[i].bytes / smallest;
    wishes.push_back({(samples[i].seconds - longest * share) / (1.0 - share), (1.0 - share) / usual_seconds[i]});
    all += wishes.back().weight;
  }
  std::sort(wishes.begin(), wishes.end(), [](const Wish& a, const Wish& b) { return a.latency < b.latency; });
  double below = 0.0;
  for (const Wish& wish : wishes) {
    below += wish.weight;
    if (2.0 * below >= all) return Seconds(std::clamp(wish.latency, 0.0, longest));
  }
  return Seconds(0.0);
}

/// The best bandwidth that was measured in the curve's range, without outliers by a factor of two or more.
BytesPerSecond best_measured(const LinkCurve& curve, const std::vector<Sample>& samples) {
  double best = 0.0;
  for (const Sample& sample : samples) {
    const double expected = curve.bandwidth(Bytes(sample.bytes)).value() / 1e9;
    const bool likely = sample.gb_per_s < 2.0 * expected && expected < 2.0 * sample.gb_per_s;
    if (likely && sample.bytes >= curve.smallest_message.value()) best = std::max(best, sample.gb_per_s);
  }
  return BytesPerSecond(best * 1e9);
}

/// |time of the curve / measured time - 1| of a sample.
double error_at(const LinkCurve& curve, const Sample& sample, int ranks) {
  return std::abs(curve.time(Bytes(sample.bytes), ranks).value() / sample.seconds - 1.0);
}

/// Smaller is better: Akaike's criterion for errors of a Laplace distribution; a single error counts as a factor of
/// four at most.
double score(const LinkCurve& curve, const std::vector<Sample>& samples, int ranks, std::size_t parameters) {
  double sum = 0.0;
  for (const Sample& sample : samples) {
    const double factor = curve.time(Bytes(sample.bytes), ranks).value() / sample.seconds;
    sum += std::min(std::abs(std::log(factor)), 2.0 * std::numbers::ln2);
  }
  const double n = static_cast<double>(samples.size());
  return n * std::log(sum / n + 1e-9) + static_cast<double>(parameters);
}

}  // namespace

Result<LinkCurveFit> fit_link_curve(std::span<const LinkPoint> points, int ranks) {
  if (ranks < 1) return fail(ErrorCode::invalid_input, fmt::format("a link curve of {} ranks cannot be fitted", ranks));
  std::vector<Sample> samples;
  std::set<double> sizes;
  for (const LinkPoint& point : points) {
    const double bytes = point.message.value();
    const double seconds = point.time.value();
    if (!(bytes > 0.0) || !std::isfinite(bytes) || !(seconds > 0.0) || !std::isfinite(seconds))
      return fail(ErrorCode::invalid_input,
                  fmt::format("a link curve cannot be fitted to a message of {} bytes in {} s", bytes, seconds),
                  "both must be positive");
    samples.push_back({bytes, seconds, ranks * bytes / seconds / 1e9});
    sizes.insert(bytes);
  }
  constexpr std::size_t fewest = 3;
  if (sizes.size() < fewest)
    return fail(ErrorCode::invalid_input,
                fmt::format("a link curve needs {} different message sizes but there are {}", fewest, sizes.size()),
                "measure more sizes");
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.bytes < b.bytes; });
  const std::vector<double> usual = running_median(samples, &Sample::gb_per_s);
  const std::vector<double> usual_seconds = running_median(samples, &Sample::seconds);

  std::optional<LinkCurve> best;
  double best_score = std::numeric_limits<double>::infinity();
  for (auto from = sizes.begin(); from != sizes.end(); ++from)
    for (auto to = from; to != sizes.end(); ++to) {
      const std::size_t inside = static_cast<std::size_t>(std::distance(from, to)) + 1;
      std::vector<double> x;  // beyond `to` the bandwidth is constant: those samples count as if they were there
      std::vector<double> y;
      std::vector<double> scale;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        if (samples[i].bytes < *from) continue;
        x.push_back(log_megabytes(std::min(samples[i].bytes, *to)));
        y.push_back(samples[i].gb_per_s);
        scale.push_back(usual[i]);
      }
      // Needs more points than coefficients: a parabola through three points says nothing about its error.
      for (std::size_t degree = 0; degree <= 2 && inside >= 2 * degree + 1; ++degree) {
        if (degree == 0 && inside > 1) continue;  // the same as the constant from `from` on
        const auto p = huber(x, y, scale, degree);
        if (!p || !is_monotone(*p, log_megabytes(*from), log_megabytes(*to))) continue;
        LinkCurve curve{.quadratic = (*p)[2],
                        .linear = (*p)[1],
                        .constant = (*p)[0],
                        .smallest_message = Bytes(*from),
                        .largest_message = Bytes(degree == 0 ? *sizes.rbegin() : *to)};
        curve.largest_bandwidth = best_measured(curve, samples);
        curve.latency = latency_of(curve, samples, usual_seconds, ranks);
        const std::size_t parameters =
            degree + 1 + (from != sizes.begin() ? 2 : 0) + (degree > 0 && std::next(to) != sizes.end() ? 1 : 0);
        const double curve_score = score(curve, samples, ranks, parameters);
        if (curve_score < best_score) {
          best = curve;
          best_score = curve_score;
        }
      }
    }
  if (!best) return fail(ErrorCode::invalid_input, "no link curve fits the measurements", "measure again");

  LinkCurveFit fit{.curve = *best, .points = static_cast<int>(samples.size())};
  std::vector<double> errors;
  for (const Sample& sample : samples) errors.push_back(error_at(*best, sample, ranks));
  fit.median_error = quantile(errors, 0.5);
  fit.largest_error = *std::max_element(errors.begin(), errors.end());
  return fit;
}

}  // namespace sailor
