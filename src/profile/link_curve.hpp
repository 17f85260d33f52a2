// Bandwidth of a link as a function of message size: a parabola over the logarithm, and a latency below it.
//
// The form of the published fits (eth-easl/sailor, profiling/networking; see profiles/README.md), with two additions:
// outside the fitted sizes the parabola is clamped, never extrapolated; and short messages have a latency.
#pragma once

#include <span>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor {

/// B(s) = quadratic·x² + linear·x + constant, in GB/s (10^9), x = log2(s in MB of 10^6 bytes): the total bandwidth of
/// all ranks of the sending node when each sends messages of s bytes.
struct LinkCurve {
  double quadratic = 0.0;              ///< GB/s
  double linear = 0.0;                 ///< GB/s
  double constant = 0.0;               ///< GB/s: at 1 MB
  BytesPerSecond largest_bandwidth{};  ///< upper limit of B; 0: not known, no limit
  Bytes smallest_message{};            ///< the parabola holds from here
  Bytes largest_message{};             ///< to here; beyond, the bandwidth is constant
  Seconds latency{};                   ///< of an empty message; 0: not known, then short messages take their share of
                                       ///< the smallest message's time
  bool operator==(const LinkCurve&) const = default;

  /// Clamped to the fitted sizes and to largest_bandwidth. Where the parabola falls so fast towards small sizes that a
  /// larger message would finish earlier (published ones even turn negative), the smaller one takes as long.
  [[nodiscard]] BytesPerSecond bandwidth(Bytes message) const;
  /// Time of one message from each of `ranks` ranks that send at once. Never falls with `message`; below
  /// smallest_message a straight line from the latency. 0 for no ranks or an empty message without latency.
  [[nodiscard]] Seconds time(Bytes message, int ranks = 1) const;
};

struct LinkPoint {
  Bytes message{};
  Seconds time{};
};

struct LinkCurveFit {
  LinkCurve curve;
  double median_error = 0.0;   ///< |LinkCurve::time / time of the point - 1| over all points
  double largest_error = 0.0;  ///< the largest of these errors
  int points = 0;
};

/// Robust fit to messages of which `ranks` are sent at once. Candidates are all ranges between two of the measured
/// sizes, with a parabola (5 sizes or more), a line (3) or a constant over them; the one with the best balance of error
/// and number of parameters (Akaike) is taken. Each is an iteratively reweighted least-squares fit of the bandwidth on
/// relative errors with Huber's weights. Above the range the bandwidth is constant; below it a straight line runs to
/// the latency (Theil-Sen). Single outliers do not matter. The time never falls with the message. largest_bandwidth is
/// the best measured from smallest_message on, without outliers by a factor of two. Errors (invalid_input): fewer than
/// three different messages, a message or time that is not positive and finite, ranks below 1.
Result<LinkCurveFit> fit_link_curve(std::span<const LinkPoint> points, int ranks);

}  // namespace sailor
