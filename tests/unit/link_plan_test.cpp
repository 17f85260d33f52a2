// Pairs and groups of ranks whose links are measured: plans for jobs written by hand, and fits of their measurements.
#include "profiler/link_plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "profiler/link_profiler.hpp"

namespace sailor::link_plan_test {
namespace {

using profiler::LinkGroup;
using profiler::LinkRank;
using profiler::LinkSeries;
using profiler::plan_link_groups;

/// "inter A*2 > B*2: 0-2 1-3" for messages between world ranks, "inter A*2 > B*2 sums 4: 0 1 2 3" for the three
/// collectives, which always come together.
std::vector<std::string> lines_of(const std::vector<LinkGroup>& groups) {
  std::vector<std::string> lines;
  std::set<LinkKey> keys;
  for (const LinkGroup& group : groups) {
    EXPECT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end()));
    int collectives = 0;
    for (const LinkSeries& series : group.series) {
      EXPECT_TRUE(keys.insert(series.key).second) << "a key is measured twice";
      auto name = [](const LinkEnd& end) {
        return end.gpu + (end.zone.empty() ? "" : "@" + end.zone) + "*" + std::to_string(end.ranks);
      };
      std::string line = fmt::format("{} {} > {}", series.key.scope == LinkScope::intra_node ? "intra" : "inter",
                                     name(series.key.from), name(series.key.to));
      if (series.key.operation == LinkOperation::send_receive) {
        line += ":";
        for (const auto& [from, to] : series.pairs)
          line += fmt::format(" {}-{}", group.ranks[static_cast<std::size_t>(from)],
                              group.ranks[static_cast<std::size_t>(to)]);
      } else {
        ++collectives;
        EXPECT_EQ(series.key.ranks, static_cast<int>(group.ranks.size()));
        if (series.key.operation != LinkOperation::all_reduce) continue;
        line += fmt::format(" sums {}:", series.key.ranks);
        for (const int rank : group.ranks) line += fmt::format(" {}", rank);
      }
      lines.push_back(line);
    }
    EXPECT_EQ(collectives % 3, 0);
  }
  return lines;
}

/// Ranks from "node gpu" or "node gpu zone" for each.
std::vector<LinkRank> job(const std::vector<std::vector<std::string>>& ranks) {
  std::vector<LinkRank> list;
  for (const auto& rank : ranks) list.push_back({rank[0], rank[1], rank.size() > 2 ? rank[2] : ""});
  return list;
}

using Lines = std::vector<std::string>;

TEST(LinkPlan, TwoRanksOfANodeAreOnePair) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"a", "A"}}))),
            (Lines{"intra A*1 > A*1: 0-1", "intra A*2 > A*2 sums 2: 0 1"}));
}

TEST(LinkPlan, AnOddRankOfANodeTakesPartInCollectivesOnly) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"a", "A"}, {"a", "A"}}))),
            (Lines{"intra A*1 > A*1: 0-1", "intra A*2 > A*2 sums 2: 0 1", "intra A*3 > A*3 sums 3: 0 1 2"}));
}

TEST(LinkPlan, OneRankPerNodeHasNothingInside) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"b", "A"}}))),
            (Lines{"inter A*1 > A*1: 0-1", "inter A*1 > A*1 sums 2: 0 1"}));
}

TEST(LinkPlan, TwoNodesAreMeasuredWithOneAndWithAllRanksAtOnce) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"a", "A"}, {"b", "A"}, {"b", "A"}}))),
            (Lines{"intra A*1 > A*1: 0-1", "intra A*2 > A*2 sums 2: 0 1", "inter A*1 > A*1: 0-2",
                   "inter A*1 > A*1 sums 2: 0 2", "inter A*2 > A*2: 0-2 1-3", "inter A*2 > A*2 sums 4: 0 1 2 3"}));
}

TEST(LinkPlan, CyclicPlacementFindsTheRanksOfANode) {
  // Ranks 0 and 3 share node a.
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"b", "A"}, {"c", "A"}, {"a", "A"}}))),
            (Lines{"intra A*1 > A*1: 0-3", "intra A*2 > A*2 sums 2: 0 3", "inter A*1 > A*1: 0-1",
                   "inter A*1 > A*1 sums 2: 0 1", "inter A*1 > A*1 sums 3: 0 1 2"}));
}

TEST(LinkPlan, TwoTypesAreMeasuredInBothDirectionsWithAsManyRanksAsBothHave) {
  // Node a has two ranks, b one: only one pair between them.
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"a", "A"}, {"b", "B"}}))),
            (Lines{"intra A*1 > A*1: 0-1", "intra A*2 > A*2 sums 2: 0 1", "inter A*1 > B*1: 0-2",
                   "inter B*1 > A*1: 2-0", "inter A*1 > B*1 sums 2: 0 2"}));
}

TEST(LinkPlan, EveryPairOfThreeTypesIsMeasured) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"b", "B"}, {"c", "C"}}))),
            (Lines{"inter A*1 > B*1: 0-1", "inter B*1 > A*1: 1-0", "inter A*1 > B*1 sums 2: 0 1",
                   "inter A*1 > C*1: 0-2", "inter C*1 > A*1: 2-0", "inter A*1 > C*1 sums 2: 0 2",
                   "inter B*1 > C*1: 1-2", "inter C*1 > B*1: 2-1", "inter B*1 > C*1 sums 2: 1 2"}));
}

TEST(LinkPlan, ZonesAreKeptApart) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A", "east"}, {"b", "A", "west"}}))),
            (Lines{"inter A@east*1 > A@west*1: 0-1", "inter A@west*1 > A@east*1: 1-0",
                   "inter A@east*1 > A@west*1 sums 2: 0 1"}));
}

TEST(LinkPlan, TypesOnOneNodeAreMeasuredInsideIt) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"a", "B"}}))),
            (Lines{"intra A*1 > B*1: 0-1", "intra B*1 > A*1: 1-0", "intra A*1 > B*1 sums 2: 0 1"}));
}

TEST(LinkPlan, NodesWithMostRanksStandForTheirType) {
  // b and c have two ranks each.
  const auto lines = lines_of(plan_link_groups(job({{"a", "A"}, {"b", "A"}, {"b", "A"}, {"c", "A"}, {"c", "A"}})));
  EXPECT_EQ(lines[0], "intra A*1 > A*1: 1-2");
  EXPECT_NE(std::find(lines.begin(), lines.end(), "inter A*2 > A*2: 1-3 2-4"), lines.end());
  EXPECT_EQ(lines.back(), "inter A*1 > A*1 sums 3: 0 1 3");  // one of each: a has no second
}

TEST(LinkPlan, NumberOfCurvesGrowsWithTypesAndNotWithNodes) {
  // 4 ranks on each of 16 nodes: 1 and 2 pairs inside; collectives of 2 and 4 inside; 1, 2 and 4 between, messages and
  // collectives; all 16 nodes with 1 and 4: 2 + 2·3 + 3·4 + 2·3 curves.
  std::vector<LinkRank> ranks;
  for (int node = 0; node < 16; ++node)
    for (int i = 0; i < 4; ++i) ranks.push_back({std::to_string(node), "A", ""});
  std::size_t curves = 0;
  for (const LinkGroup& group : plan_link_groups(ranks)) curves += group.series.size();
  EXPECT_EQ(curves, 26U);
}

TEST(LinkPlan, GivenScopeOverridesTheNodes) {
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"a", "A"}}), LinkScope::inter_node)),
            (Lines{"inter A*1 > A*1: 0-1", "inter A*1 > A*1 sums 2: 0 1"}));
  EXPECT_EQ(lines_of(plan_link_groups(job({{"a", "A"}, {"b", "A"}}), LinkScope::intra_node)),
            (Lines{"intra A*1 > A*1: 0-1", "intra A*2 > A*2 sums 2: 0 1"}));
  EXPECT_TRUE(plan_link_groups(job({{"a", "A"}})).empty());
}

TEST(LinkSizes, RiseByFourUpToTheLargest) {
  EXPECT_EQ(profiler::message_sizes(20.0 * kib), (std::vector<std::size_t>{1024, 4096, 16384}));
  EXPECT_EQ(profiler::message_sizes(kib), (std::vector<std::size_t>{1024}));
  EXPECT_EQ(profiler::message_sizes(gib).size(), 11U);
}

TEST(LinkFits, AreMadeForKeysWithThreeSizes) {
  std::vector<LinkMeasurement> links;
  auto add = [&](int senders, double bytes, double seconds) {
    links.push_back({.key = {.from = {.gpu = "A", .ranks = senders}, .to = {.gpu = "A", .ranks = senders}},
                     .message = Bytes(bytes),
                     .time = TimeStatistics::single(Seconds(seconds))});
  };
  // Two at once, each 1 GB/s: together 2 GB/s.
  for (const double bytes : {1e6, 1e7, 1e8}) add(2, bytes, bytes / 1e9);
  for (const double bytes : {1e6, 1e7}) add(1, bytes, bytes / 1e9);
  const auto fits = profiler::fit_links(links);
  ASSERT_EQ(fits.size(), 1U);
  EXPECT_EQ(fits[0].key.from.ranks, 2);
  EXPECT_EQ(fits[0].points, 3);
  EXPECT_NEAR(fits[0].curve.bandwidth(Bytes(1e7)).value(), 2e9, 1.0);
  EXPECT_NEAR(fits[0].curve.time(Bytes(1e7), 2).value(), 1e-2, 1e-9);
}

}  // namespace
}  // namespace sailor::link_plan_test
