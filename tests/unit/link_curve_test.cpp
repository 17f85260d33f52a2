// Curves of bandwidth over message size: interpolation, extrapolation, and fits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "profile/link_curve.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor::link_curve_test {
namespace {

/// 1 KiB, 2 KiB, ... 1 GiB.
std::vector<double> all_sizes() {
  std::vector<double> sizes;
  for (double bytes = 1024.0; bytes <= gib.value(); bytes *= 2.0) sizes.push_back(bytes);
  return sizes;
}

std::vector<LinkPoint> points_of(const LinkCurve& curve, const std::vector<double>& sizes, int ranks) {
  std::vector<LinkPoint> points;
  for (const double bytes : sizes) points.push_back({Bytes(bytes), curve.time(Bytes(bytes), ranks)});
  return points;
}

/// Rises from 5.8 GB/s at 64 KiB to 21.6 GB/s at 1 GiB: x is -3.93 and 10.07, B = -0.03 x² + 1.3125 x + 11.4.
const LinkCurve network{.quadratic = -0.03,
                        .linear = 1.3125,
                        .constant = 11.4,
                        .largest_bandwidth = BytesPerSecond(25e9),
                        .smallest_message = 64.0 * kib,
                        .largest_message = gib,
                        .latency = Seconds(4e-6)};

TEST(LinkCurve, SmallMessagesNeverTakeLongerThanLargerOnes) {
  // Two GH200 inside a node, as published: negative below 160 kB. s / B(s) has its minimum where
  // a x² + (b - 2a/ln 2) x + (c - b/ln 2) = 0: x = -1.4305, s = 371.0 kB, B = 22.68 GB/s, 16.36 us.
  const LinkCurve curve{.quadratic = -0.52312685,
                        .linear = 14.22563803,
                        .constant = 44.10217959,
                        .largest_bandwidth = BytesPerSecond(125460726312.0),
                        .smallest_message = Bytes(65536),
                        .largest_message = Bytes(1073741824.0)};
  EXPECT_NEAR(curve.time(Bytes(65536)).value(), 16.36e-6, 0.01e-6);
  EXPECT_NEAR(curve.time(Bytes(371e3)).value(), 16.36e-6, 0.01e-6);
  EXPECT_NEAR(curve.time(Bytes(1e6)).value(), 1e6 / 44.10217959e9, 1e-12);  // x = 0: the parabola itself
  double last = 0.0;
  for (double bytes = 1; bytes < 4e9; bytes *= 1.3) {
    EXPECT_GE(curve.time(Bytes(bytes)).value(), last * (1 - 1e-12));
    last = curve.time(Bytes(bytes)).value();
  }
}

TEST(LinkCurve, FollowsTheParabolaAndNeverLeavesItsRange) {
  EXPECT_DOUBLE_EQ(network.bandwidth(Bytes(1e6)).value(), 11.4e9);                        // x = 0
  EXPECT_DOUBLE_EQ(network.bandwidth(Bytes(16e6)).value(), (-0.48 + 5.25 + 11.4) * 1e9);  // x = 4
  EXPECT_EQ(network.bandwidth(64.0 * gib), network.bandwidth(gib));
  // Four ranks send 1 MB each at 11.4 GB/s together.
  EXPECT_DOUBLE_EQ(network.time(Bytes(1e6), 4).value(), 4e6 / 11.4e9);
  // Half of 64 KiB: half-way between the latency and the time of 64 KiB.
  EXPECT_DOUBLE_EQ(network.time(32.0 * kib).value(), (4e-6 + network.time(64.0 * kib).value()) / 2.0);
}

TEST(LinkCurveFit, FindsTheCurveThatMadeThePoints) {
  for (const int ranks : {1, 4}) {
    const auto fit = fit_link_curve(points_of(network, all_sizes(), ranks), ranks);
    ASSERT_TRUE(fit) << fit.error().message();
    EXPECT_NEAR(fit->curve.quadratic, network.quadratic, 1e-6);
    EXPECT_NEAR(fit->curve.linear, network.linear, 1e-6);
    EXPECT_NEAR(fit->curve.constant, network.constant, 1e-6);
    EXPECT_NEAR(fit->curve.latency.value(), 4e-6, 1e-12);
    EXPECT_EQ(fit->curve.smallest_message, 64.0 * kib);
    EXPECT_EQ(fit->curve.largest_message, gib);
    EXPECT_NEAR(fit->curve.largest_bandwidth.value() / network.bandwidth(gib).value(), 1.0, 1e-9);  // best measured
    EXPECT_LT(fit->largest_error, 1e-6);
    EXPECT_EQ(fit->points, 21);
  }
}

TEST(LinkCurveFit, LatencyAndConstantBandwidthGiveAStraightLine) {
  // Hockney's model: 20 us + s / 10 GB/s.
  std::vector<LinkPoint> points;
  for (const double bytes : all_sizes()) points.push_back({Bytes(bytes), Seconds(20e-6 + bytes / 10e9)});
  const auto fit = fit_link_curve(points, 1);
  ASSERT_TRUE(fit) << fit.error().message();
  EXPECT_NEAR(fit->curve.latency.value(), 20e-6, 1e-6);
  EXPECT_LT(fit->largest_error, 0.05);
  EXPECT_NEAR(fit->curve.time(Bytes(3e8)).value(), 0.03002, 0.0003);
}

TEST(LinkCurveFit, ShortMessagesWithoutLatencyHaveNone) {
  LinkCurve curve = network;
  curve.latency = Seconds(0.0);
  const auto fit = fit_link_curve(points_of(curve, all_sizes(), 1), 1);
  ASSERT_TRUE(fit) << fit.error().message();
  EXPECT_NEAR(fit->curve.latency.value(), 0.0, 1e-12);
}

TEST(LinkCurveFit, OneInFivePointsMayBeTenTimesOff) {
  // 4 of 21, slow and fast by turns, in several patterns; the rest is off by up to 3%.
  for (const std::vector<std::size_t>& bad : {std::vector<std::size_t>{1, 7, 12, 18}, {0, 5, 10, 20}, {3, 8, 9, 15}})
    for (const double first : {10.0, 0.1}) {
      std::vector<LinkPoint> points = points_of(network, all_sizes(), 1);
      for (std::size_t i = 0; i < points.size(); ++i)
        points[i].time *= 1.0 + 0.03 * std::sin(static_cast<double>(7 * i));
      for (std::size_t i = 0; i < bad.size(); ++i) points[bad[i]].time *= i % 2 == 0 ? first : 1.0 / first;
      const auto fit = fit_link_curve(points, 1);
      ASSERT_TRUE(fit) << fit.error().message();
      for (const double bytes : all_sizes())
        EXPECT_NEAR(fit->curve.time(Bytes(bytes)) / network.time(Bytes(bytes)), 1.0, 0.15)
            << bytes << " bytes, bad from " << bad[0] << ", factor " << first;
      EXPECT_LT(fit->median_error, 0.05);
      EXPECT_GT(fit->largest_error, 0.85);  // of all points, so the bad ones are told
    }
}

TEST(LinkCurveFit, ThreePointsAreEnoughForASensibleCurve) {
  // 1, 10 and 100 MB at 1 GB/s.
  const auto fit = fit_link_curve(
      std::vector<LinkPoint>{{Bytes(1e6), Seconds(1e-3)}, {Bytes(1e7), Seconds(1e-2)}, {Bytes(1e8), Seconds(1e-1)}}, 1);
  ASSERT_TRUE(fit) << fit.error().message();
  EXPECT_NEAR(fit->curve.time(Bytes(5e7)).value(), 5e-2, 1e-9);
  EXPECT_NEAR(fit->curve.time(Bytes(1e9)).value(), 1.0, 1e-6);
  EXPECT_LT(fit->largest_error, 1e-9);
  EXPECT_EQ(fit->points, 3);
}

TEST(LinkCurveFit, OrderAndRepetitionOfPointsDoNotMatter) {
  std::vector<LinkPoint> points = points_of(network, all_sizes(), 1);
  for (std::size_t i = 0; i < points.size(); ++i) points[i].time *= 1.0 + 0.02 * std::cos(static_cast<double>(5 * i));
  const auto rising = fit_link_curve(points, 1);
  std::reverse(points.begin(), points.end());
  const auto falling = fit_link_curve(points, 1);
  ASSERT_TRUE(rising && falling);
  EXPECT_NEAR(rising->curve.time(mib) / falling->curve.time(mib), 1.0, 1e-9);
  std::vector<LinkPoint> twice = points;
  twice.insert(twice.end(), points.begin(), points.end());
  EXPECT_NEAR(fit_link_curve(twice, 1)->curve.time(mib) / falling->curve.time(mib), 1.0, 0.02);
}

TEST(LinkCurveFit, TimesThatFallWithTheMessageStillGiveARisingCurve) {
  // Noise that no parabola without falling time can follow: 64 KiB takes longer than 1 MiB.
  std::vector<LinkPoint> points;
  for (const double bytes : all_sizes()) points.push_back({Bytes(bytes), Seconds(1e-3 + bytes / 1e11)});
  points[6].time = Seconds(5e-3);
  points[7].time = Seconds(4e-3);
  const auto fit = fit_link_curve(points, 1);
  ASSERT_TRUE(fit) << fit.error().message();
  Seconds before{};
  for (double bytes = 1.0; bytes < 4e9; bytes *= 1.1) {
    const Seconds time = fit->curve.time(Bytes(bytes));
    EXPECT_GE(time, before * (1.0 - 1e-12)) << bytes;
    before = time;
  }
}

TEST(LinkCurveFit, RefusesWhatCannotBeFitted) {
  auto error = [](const std::vector<LinkPoint>& points, int ranks = 1) {
    return fit_link_curve(points, ranks).error().message();
  };
  const LinkPoint a{Bytes(1024), Seconds(1e-6)};
  const LinkPoint b{Bytes(2048), Seconds(2e-6)};
  EXPECT_EQ(error({}), "a link curve needs 3 different message sizes but there are 0; measure more sizes");
  EXPECT_EQ(error({a, b, b, a}), "a link curve needs 3 different message sizes but there are 2; measure more sizes");
  EXPECT_EQ(error({a, b, {Bytes(4096), Seconds(0.0)}}),
            "a link curve cannot be fitted to a message of 4096 bytes in 0 s; both must be positive");
  EXPECT_EQ(error({a, b, {Bytes(0), Seconds(1.0)}}),
            "a link curve cannot be fitted to a message of 0 bytes in 1 s; both must be positive");
  EXPECT_EQ(error({a, b, {Bytes(4096), Seconds(NAN)}}),
            "a link curve cannot be fitted to a message of 4096 bytes in nan s; both must be positive");
  EXPECT_EQ(error({a, b, {Bytes(4096), Seconds(1.0)}}, 0), "a link curve of 0 ranks cannot be fitted");
}

#ifdef SAILOR_HAVE_RAPIDCHECK

RC_GTEST_PROP(LinkCurveFitProperty, TimeNeverFallsWithTheMessage, ()) {
  std::vector<LinkPoint> points;
  const int sizes = *rc::gen::inRange(3, 22);
  const int noise = *rc::gen::inRange(0, 100);  // percent
  const double bandwidth = *rc::gen::inRange(1, 100) * 1e8;
  const double latency = *rc::gen::inRange(0, 1000) * 1e-7;
  for (int i = 0; i < sizes; ++i) {
    const double bytes = 1024.0 * std::pow(2.0, i);
    const double factor = 1.0 + 0.01 * *rc::gen::inRange(-noise, noise + 1);
    points.push_back({Bytes(bytes), Seconds((latency + bytes / bandwidth) * std::max(factor, 0.01))});
  }
  const int ranks = *rc::gen::inRange(1, 9);
  const auto fit = fit_link_curve(points, ranks);
  RC_ASSERT(fit.has_value());
  RC_ASSERT(fit->median_error <= fit->largest_error);
  Seconds before{};
  for (double bytes = 1.0; bytes < 8e9; bytes *= 1.07) {
    const Seconds time = fit->curve.time(Bytes(bytes), ranks);
    RC_ASSERT(std::isfinite(time.value()));
    RC_ASSERT(time.value() >= before.value() * (1.0 - 1e-9));
    before = time;
  }
}

#endif

}  // namespace
}  // namespace sailor::link_curve_test
