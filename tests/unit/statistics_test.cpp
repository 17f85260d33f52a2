// Guarantees of summarize() and summarize_batches() about [low, high], on noise of a known distribution.
#include "core/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace sailor::statistics_test {
namespace {

using Batches = std::vector<std::vector<double>>;

/// Share of `trials` in which a repetition of the whole measurement has its median in the first one's interval.
double coverage(int trials, const std::function<Batches(std::mt19937_64&)>& measure) {
  std::mt19937_64 random(20261121);
  int inside = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const TimeStatistics first = summarize_batches(measure(random));
    const TimeStatistics second = summarize_batches(measure(random));
    inside += first.low <= second.median && second.median <= first.high ? 1 : 0;
  }
  return static_cast<double>(inside) / trials;
}

/// `between` is the deviation that all samples of a batch share, `run` that of the whole repetition, `within` of each.
Batches batches(std::mt19937_64& random, int count, double run, double between, double within) {
  std::normal_distribution<double> normal;
  const double shift = run * normal(random);
  Batches result;
  for (int batch = 0; batch < count; ++batch) {
    const double mean = 1.0 + shift + between * normal(random);
    result.emplace_back();
    for (int i = 0; i < 8; ++i) result.back().push_back(mean + within * normal(random));
  }
  return result;
}

TEST(Statistics, IntervalOfIndependentSamplesHoldsAtLeast95Percent) {
  EXPECT_GE(coverage(4000, [](auto& random) { return batches(random, 5, 0.0, 0.0, 0.02); }), 0.94);
  EXPECT_GE(coverage(4000, [](auto& random) { return batches(random, 12, 0.0, 0.0, 0.02); }), 0.94);
  // Skewed, as times are: mostly fast, sometimes far slower.
  EXPECT_GE(coverage(4000,
                     [](auto& random) {
                       std::exponential_distribution<double> delay(20.0);
                       Batches result(6, std::vector<double>(8));
                       for (auto& batch : result)
                         for (double& sample : batch) sample = 1.0 + delay(random);
                       return result;
                     }),
            0.94);
}

TEST(Statistics, IntervalKnowsThatSamplesOfABatchDependOnOneAnother) {
  for (const int count : {3, 5, 12})
    EXPECT_GE(coverage(4000, [&](auto& random) { return batches(random, count, 0.0, 0.05, 0.01); }), 0.94) << count;
  // As if they were independent, the interval would miss most repetitions.
  std::mt19937_64 random(1);
  int inside = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<double> all;
    for (const auto& batch : batches(random, 5, 0.0, 0.05, 0.005)) all.insert(all.end(), batch.begin(), batch.end());
    const double next = summarize_batches(batches(random, 5, 0.0, 0.05, 0.005)).median.value();
    const double reach = 1.96 * 1.2533 * std::sqrt((0.05 * 0.05 + 0.005 * 0.005) / 40.0);  // of a median of 40
    inside += std::abs(next - quantile(all, 0.5)) <= reach ? 1 : 0;
  }
  EXPECT_LT(inside, 600);
}

TEST(Statistics, IntervalHoldsTheMedianOfOneMoreBatchWith95Percent) {
  // The law of the prediction interval, exactly: batches of one sample that are normal.
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(1.0, 0.01);
  int inside = 0;
  constexpr int trials = 10000;
  for (int trial = 0; trial < trials; ++trial) {
    const Batches first{{normal(random)}, {normal(random)}, {normal(random)}, {normal(random)}, {normal(random)}};
    const TimeStatistics statistics = summarize_batches(first);
    const double next = normal(random);
    inside += statistics.low.value() <= next && next <= statistics.high.value() ? 1 : 0;
  }
  // Around the median instead of the mean, of five: sqrt((1 + 0.287) / (1 + 0.2)) = 1.04 times as far off, so a little
  // less than 95%.
  EXPECT_GT(static_cast<double>(inside) / trials, 0.935);
  EXPECT_LT(static_cast<double>(inside) / trials, 0.965);
}

TEST(Statistics, IntervalHoldsARepetitionThatIsOffAsAWholeAsFarAsItsBatchesAre) {
  // The machine as a whole drifts between two repetitions as much as within one.
  EXPECT_GE(coverage(4000, [](auto& random) { return batches(random, 6, 0.01, 0.02, 0.005); }), 0.94);
}

TEST(Statistics, BatchesByHand) {
  // Medians 1, 2, 3; all: 1 1 1 2 2 2 3 3 3. t(2) = 4.303, deviation 1: 4.303 sqrt(1 + 1/3) = 4.969.
  const TimeStatistics statistics = summarize_batches(Batches{{1, 1, 1}, {2, 2, 2}, {}, {3, 3, 3}});
  EXPECT_DOUBLE_EQ(statistics.median.value(), 2.0);
  EXPECT_DOUBLE_EQ(statistics.low.value(), 0.0);  // not below nothing
  EXPECT_NEAR(statistics.high.value(), 6.969, 1e-3);
  EXPECT_EQ(statistics.samples, 9);
  EXPECT_NEAR(statistics.relative_interval(), 2.4845, 1e-3);
}

TEST(Statistics, OneBatchAndNoneAreNoErrors) {
  const Batches one{{3, 1, 2}};
  EXPECT_EQ(summarize_batches(one), summarize(one.front()));
  EXPECT_EQ(summarize_batches(Batches{}).samples, 0);
  EXPECT_EQ(summarize_batches(Batches{{5}}),
            (TimeStatistics{Seconds(5), Seconds(5), Seconds(5), Seconds(5), Seconds(5), 1}));
}

TEST(Statistics, StudentsQuantilesAreThoseOfTables) {
  for (const auto& [freedom, value] : std::initializer_list<std::pair<int, double>>{
           {1, 12.706}, {4, 2.776}, {10, 2.228}, {11, 2.201}, {20, 2.086}, {30, 2.042}, {120, 1.980}, {100000, 1.960}})
    EXPECT_NEAR(student_t_95(freedom), value, 1e-3) << freedom;
}

}  // namespace
}  // namespace sailor::statistics_test
