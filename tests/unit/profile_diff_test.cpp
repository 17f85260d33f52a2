// diff_profiles: measurements that two stores have in common, or only one has, and how much common ones differ.
#include "profile/diff.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/fakes/round_numbers.hpp"

namespace sailor::profile_diff_test {
namespace {

TimeStatistics between(double low, double median, double high) {
  return {.median = Seconds(median),
          .p10 = Seconds(low),
          .p90 = Seconds(high),
          .low = Seconds(low),
          .high = Seconds(high),
          .samples = 10};
}

TEST(ProfileDiff, EqualStoresDoNotDiffer) {
  const ProfileData data = testing::round_numbers_profile();
  const auto difference = diff_profiles(data, data);
  EXPECT_TRUE(difference.only_a.empty());
  EXPECT_TRUE(difference.only_b.empty());
  // 6 layers of 3 times and 5 sizes, 4 links, 1 process.
  ASSERT_EQ(difference.common.size(), 6U * 8U + 4U + 1U);
  for (const Difference& row : difference.common) {
    EXPECT_EQ(row.ratio(), 1.0);
    EXPECT_EQ(row.judgement, Judgement::within);
  }
}

TEST(ProfileDiff, RowsOfOneSideAreNamed) {
  const ProfileData a = testing::round_numbers_profile();
  ProfileData b = a;
  b.layer_times.erase(b.layer_times.begin() + 1);
  b.links.push_back(b.links.front());
  b.links.back().message = mib;
  const auto difference = diff_profiles(a, b);
  ASSERT_EQ(difference.only_a.size(), 1U);
  EXPECT_EQ(difference.only_a[0].table, "layer_times");
  EXPECT_EQ(difference.only_a[0].setting, "tiny-gpt on cpu, fp32, sequence 64");
  EXPECT_EQ(difference.only_a[0].entry, "block, tensor parallel 1, micro-batch 1");
  ASSERT_EQ(difference.only_b.size(), 1U);
  EXPECT_EQ(difference.only_b[0].setting, "send_receive cpu -> cpu, inter_node");
  EXPECT_EQ(difference.only_b[0].entry, "1.00 MiB");
}

TEST(ProfileDiff, TheLargestDifferenceStandsFirst) {
  const ProfileData a = testing::round_numbers_profile();
  ProfileData b = a;
  b.layer_times[0].forward = testing::exactly(1.5);  // of 1
  b.layer_times[1].backward = testing::exactly(2);   // of 4: farther off, downwards
  b.processes[0].base_memory = Bytes(1.1e6);
  const auto difference = diff_profiles(a, b);
  EXPECT_EQ(difference.common[0].quantity, "backward");
  EXPECT_EQ(difference.common[0].ratio(), 0.5);
  EXPECT_EQ(difference.common[1].quantity, "forward");
  EXPECT_EQ(difference.common[1].ratio(), 1.5);
  EXPECT_EQ(difference.common[2].quantity, "base memory");
  EXPECT_EQ(difference.common[2].judgement, Judgement::outside);
  EXPECT_EQ(difference.common[3].ratio(), 1.0);
}

TEST(ProfileDiff, NoiseIsToldFromDifference) {
  auto judged = [](const TimeStatistics& left, const TimeStatistics& right) {
    ProfileData a;
    a.links = {{.time = left}};
    ProfileData b;
    b.links = {{.time = right}};
    return diff_profiles(a, b).common.at(0).judgement;
  };
  EXPECT_EQ(judged(between(9, 10, 11), between(10.5, 10.8, 11)), Judgement::within);
  EXPECT_EQ(judged(between(9, 10, 11), between(9, 11.5, 12)), Judgement::within);  // 10 lies in [9, 12]
  EXPECT_EQ(judged(between(9, 10, 11), between(10.5, 11.5, 12)), Judgement::outside);
  EXPECT_EQ(judged(between(9, 10, 11), TimeStatistics::single(Seconds(10.5))), Judgement::within);
  EXPECT_EQ(judged(between(9, 10, 11), TimeStatistics::single(Seconds(12))), Judgement::outside);
  EXPECT_EQ(judged(TimeStatistics::single(Seconds(1)), TimeStatistics::single(Seconds(2))), Judgement::unknown);
}

TEST(ProfileDiff, SummaryHasTheGeometricMean) {
  ProfileData a;
  ProfileData b;
  for (const double bytes : {1024.0, 2048.0, 4096.0}) {
    a.links.push_back(
        {.key = {.from = {.gpu = "x"}, .to = {.gpu = "y"}}, .message = Bytes(bytes), .time = between(1, 1, 1)});
    b.links.push_back(a.links.back());
  }
  b.links[0].time = between(2, 2, 2);
  b.links[1].time = between(4, 4, 4);
  const auto rows = summarize(diff_profiles(a, b));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].setting, "send_receive x -> y, intra_node");
  EXPECT_EQ(rows[0].entries, 3);
  EXPECT_EQ(rows[0].outside, 2);
  EXPECT_NEAR(rows[0].geometric_mean, 2.0, 1e-12);  // (2 · 4 · 1)^(1/3)
  EXPECT_EQ(rows[0].smallest, 1.0);
  EXPECT_EQ(rows[0].largest, 4.0);
}

TEST(ProfileDiff, ZeroOnOneSideIsInfinite) {
  Difference row{.a = 0.0, .b = 2.0};
  EXPECT_TRUE(std::isinf(row.ratio()));
  EXPECT_TRUE(std::isinf(row.size()));
  row = {.a = 2.0, .b = 0.0};
  EXPECT_EQ(row.ratio(), 0.0);
  EXPECT_TRUE(std::isinf(row.size()));
  row = {.a = 0.0, .b = 0.0};
  EXPECT_EQ(row.ratio(), 1.0);
}

}  // namespace
}  // namespace sailor::profile_diff_test
