// Traces of available GPUs, and the moments at which a running plan is changed.
#include "planner/availability.hpp"

#include <gtest/gtest.h>

namespace sailor::planner::availability_test {
namespace {

GpuCatalogue catalogue() { return *GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml"); }

constexpr const char* trace =
    ",Timestamp,A100-40_us-central1-a,titan_rtx_b\n"
    "0,1000.5,8,0\n"
    "1,1060.5,8,0\n"
    "2,1100.5,14,6\n";

std::string error_of(const std::string& text) {
  const auto steps = parse_availability_trace(text, "t.csv", catalogue(), Seconds(60));
  return steps ? "" : steps.error().message();
}

TEST(AvailabilityTrace, StepsThatSayTheSameAreOne) {
  const auto steps = parse_availability_trace(trace, "t.csv", catalogue(), Seconds(60));
  ASSERT_TRUE(steps.has_value()) << steps.error().message();
  ASSERT_EQ(steps->size(), 2U);
  EXPECT_DOUBLE_EQ((*steps)[0].start.value(), 0.0);
  EXPECT_DOUBLE_EQ((*steps)[0].duration.value(), 100.0);
  EXPECT_DOUBLE_EQ((*steps)[1].start.value(), 100.0);
  EXPECT_DOUBLE_EQ((*steps)[1].duration.value(), 60.0);
  const AvailableGpus titan{"Titan-RTX", "b", 6};  // an alias with an underscore
  EXPECT_EQ((*steps)[1].gpus[1], titan);
}

TEST(AvailabilityTrace, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_EQ(error_of(""), "t.csv:0: has no step; write a line of titles and one for each step");
  EXPECT_EQ(error_of("Timestamp,H-9000_a\n1,2\n"),
            "t.csv:1: column 'H-9000_a' is no GPU type of the catalogue, an underscore and a zone; name it as "
            "A100-40_us-central1-a, for example");
  EXPECT_EQ(error_of("A100-40_a\n2\n"), "t.csv:1: there is no column Timestamp; add it: seconds");
  EXPECT_EQ(error_of("Timestamp,A100-40_a\n1,2,3\n"), "t.csv:2: 3 fields under 2 titles; give one for each");
  EXPECT_EQ(error_of("Timestamp,A100-40_a\n1,2.5\n"),
            "t.csv:2: '2.5' is no number of GPUs; write a whole number, 0 or more");
  EXPECT_EQ(error_of("Timestamp,A100-40_a\n1,-4\n"),
            "t.csv:2: '-4' is no number of GPUs; write a whole number, 0 or more");
  EXPECT_EQ(error_of("Timestamp,A100-40_a\n2,4\n1,8\n"),
            "t.csv:3: time 1 s is not after that of the line before, 2 s; order the lines by time");
  EXPECT_EQ(error_of("Timestamp,A100-40_a,A100_a\n2,4,4\n"),
            "t.csv:1: A100-40 in zone a has two columns; leave one out");
  EXPECT_EQ(error_of("Timestamp,A100-40_a\nnan,4\n"), "t.csv:2: 'nan' is no number; write a number");
  EXPECT_EQ(error_of("Timestamp,A100-40_a,Timestamp\n1,4,2\n"),
            "t.csv:1: there are two columns Timestamp; leave one out");
  EXPECT_EQ(error_of("Timestamp,A100-40_a\n-1e308,4\n1e308,8\n"),
            "t.csv:2: '-1e308' is no time; write seconds, up to 1e+12");
}

TEST(AvailabilityTrace, MayComeFromASpreadsheet) {
  const auto steps =
      parse_availability_trace("\xEF\xBB\xBFTimestamp,A100-40_a\r\n0,4\r\n60,8\r\n", "t.csv", catalogue(), Seconds(60));
  ASSERT_TRUE(steps.has_value()) << steps.error().message();
  EXPECT_EQ(steps->size(), 2U);
}

TEST(AvailabilityTrace, NodesAreThoseOfTheClusterFileOrOfFour) {
  const auto steps = parse_availability_trace(trace, "t.csv", catalogue(), Seconds(60));
  ASSERT_TRUE(steps.has_value());
  // 14 = 3 x 4 + 2; 6 = 4 + 2.
  const Cluster cluster = cluster_at((*steps)[1], nullptr, catalogue());
  ASSERT_EQ(cluster.groups.size(), 4U);
  EXPECT_EQ(cluster.groups[0].count, 3);
  EXPECT_EQ(cluster.groups[0].gpus_per_node, 4);
  EXPECT_EQ(cluster.groups[1].count, 1);
  EXPECT_EQ(cluster.groups[1].gpus_per_node, 2);
  EXPECT_EQ(cluster.groups[3].gpu, "Titan-RTX");
  ASSERT_EQ(cluster.zones.size(), 2U);
  EXPECT_EQ(cluster.zones[0].region, "us-central1");
  EXPECT_EQ(cluster.zones[1].region, "b");

  const auto like = parse_cluster(R"(schema_version = 1
name = "like"
[[zones]]
name = "us-central1-a"
region = "here"
[[zones.prices]]
gpu = "A100-40"
usd_per_hour = 1.5
[[nodes]]
count = 1
gpu = "A100-40"
gpus_per_node = 8
memory_per_node_bytes = 1e12
zone = "us-central1-a"
)",
                                  "like.toml", catalogue());
  ASSERT_TRUE(like.has_value()) << like.error().message();
  const Cluster eight = cluster_at((*steps)[0], &*like, catalogue());
  ASSERT_EQ(eight.groups.size(), 1U);
  EXPECT_EQ(eight.groups[0].count, 1);
  EXPECT_EQ(eight.groups[0].gpus_per_node, 8);
  EXPECT_DOUBLE_EQ(device_price(eight, *catalogue().find("A100-40"), "us-central1-a").value(), 1.5);
}

/// `count` pipelines of one stage.
Plan groups_of(int tensor_parallel, int count, const std::string& zone = "us-central1-a") {
  Plan plan;
  plan.job = {.model = "m", .global_batch = count, .sequence_length = 8};
  plan.pipelines.push_back(
      {.count = count,
       .micro_batches = 1,
       .stages = {{.layers = {0, 4}, .gpu = "A100-40", .tensor_parallel = tensor_parallel, .zone = zone}}});
  return plan;
}

TEST(AvailabilityTrace, APlanHoldsWhereEveryGroupFindsItsNode) {
  const auto steps = parse_availability_trace(trace, "t.csv", catalogue(), Seconds(60));
  ASSERT_TRUE(steps.has_value());
  const Cluster cluster = cluster_at((*steps)[1], nullptr, catalogue());  // three nodes of 4 A100 and one of 2
  EXPECT_TRUE(holds(cluster, groups_of(4, 3)));
  EXPECT_FALSE(holds(cluster, groups_of(4, 4)));  // 16 of 14, and the small node holds no group of 4
  EXPECT_TRUE(holds(cluster, groups_of(2, 7)));
  EXPECT_FALSE(holds(cluster, groups_of(2, 8)));
  EXPECT_FALSE(holds(cluster, groups_of(1, 1, "b")));  // only Titan-RTX are there
}

PricedPlan priced(double seconds, double usd, int gpus = 1) {
  return {.plan = groups_of(1, gpus), .iteration_time = Seconds(seconds), .cost_per_iteration = Usd(usd)};
}

TEST(ChangePays, WhenMoreIsTrainedInTheStepDespiteTheReconfiguration) {
  // 100 s: 50 iterations of 2 s. With 1.6 s and 12 s lost: 88 / 1.6 = 55. With 1.76 s: 50, no more than before.
  EXPECT_TRUE(change_pays(Objective::throughput, priced(2.0, 1), priced(1.6, 1), Seconds(100), Seconds(12)));
  EXPECT_FALSE(change_pays(Objective::throughput, priced(2.0, 1), priced(1.76, 1), Seconds(100), Seconds(12)));
  EXPECT_FALSE(change_pays(Objective::throughput, priced(2.0, 1), priced(0.1, 1), Seconds(12), Seconds(12)));
  EXPECT_TRUE(change_pays(Objective::throughput, priced(2.0, 1), priced(1.99, 1), Seconds(100), Seconds(0)));
}

TEST(ChangePays, ByMoneyCountsWhatIsPaidWhileNothingTrains) {
  // A step costs 100 / 2 x $1 = $50 for 50 iterations; the new plan 100 / 4 x $0.9 = $22.5 for 88 / 4 = 22: $1.02 each.
  EXPECT_FALSE(change_pays(Objective::cost, priced(2.0, 1.0), priced(4.0, 0.9), Seconds(100), Seconds(12)));
  // $0.8: $20 for 22, $0.91 each.
  EXPECT_TRUE(change_pays(Objective::cost, priced(2.0, 1.0), priced(4.0, 0.8), Seconds(100), Seconds(12)));
  // Iterations per second and USD: 0.5 / 1 against 0.22 / 0.91 = 0.24, and 0.88 / 2.27 = 0.39 of a twice as fast one.
  EXPECT_FALSE(
      change_pays(Objective::throughput_per_usd, priced(2.0, 1.0), priced(4.0, 0.8), Seconds(100), Seconds(12)));
  EXPECT_FALSE(
      change_pays(Objective::throughput_per_usd, priced(2.0, 1.0), priced(1.0, 2.0), Seconds(100), Seconds(12)));
  // 0.88 / (100 x $1.2 / 88 = $1.36) = 0.65.
  EXPECT_TRUE(
      change_pays(Objective::throughput_per_usd, priced(2.0, 1.0), priced(1.0, 1.2), Seconds(100), Seconds(12)));
}

/// A planner whose best plan takes all GPUs and needs 16 s / GPUs for an iteration; below 4 GPUs nothing fits.
TracePlanner all_gpus() {
  const auto price = [](const Plan& plan) {
    return PricedPlan{.plan = plan, .iteration_time = Seconds(16.0 / plan.ranks()), .cost_per_iteration = Usd(1.0)};
  };
  return {.find = [price](const Cluster& cluster) -> Result<PricedPlan> {
            int gpus = 0;
            for (const NodeGroup& group : cluster.groups) gpus += group.count * group.gpus_per_node;
            if (gpus < 4) return fail(ErrorCode::infeasible, "too few");
            return price(groups_of(1, gpus));
          },
          .price = [price](const Plan& plan, const Cluster&) -> Result<PricedPlan> { return price(plan); }};
}

TEST(Replan, ChangesWhenItPaysOrMust) {
  const auto steps = parse_availability_trace(
      "Timestamp,A100-40_us-central1-a\n"
      "0,8\n"     // 100 s: start with 8; 2 s an iteration: 50
      "100,9\n"   // 20 s: 9 GPUs would do 8 / 1.78 = 4.5 iterations, 8 do 10: keep
      "120,16\n"  // 100 s: 88 s of 1 s: change
      "220,8\n"   // 100 s: 16 are gone: forced, 88 / 2 = 44
      "320,2\n"   // 10 s: nothing fits
      "330,4\n",  // 60 s: resume, 48 / 4 = 12
      "t.csv", catalogue(), Seconds(60));
  ASSERT_TRUE(steps.has_value()) << steps.error().message();
  const auto rows = replan(*steps, nullptr, catalogue(), Objective::throughput, Seconds(12), all_gpus());
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  std::vector<Decision> decisions;
  std::vector<double> iterations;
  for (const TraceStep& row : *rows) {
    decisions.push_back(row.decision);
    iterations.push_back(row.outcome.iterations);
  }
  EXPECT_EQ(decisions, (std::vector{Decision::start, Decision::keep, Decision::change, Decision::forced,
                                    Decision::pause, Decision::resume}));
  EXPECT_EQ(iterations, (std::vector<double>{50, 10, 88, 44, 0, 12}));
  ASSERT_TRUE((*rows)[1].gain.has_value());
  EXPECT_NEAR(*(*rows)[1].gain, 9.0 / 8.0 - 1.0, 1e-12);
  EXPECT_FALSE((*rows)[3].gain.has_value());
  EXPECT_EQ((*rows)[4].problem, "too few");
  EXPECT_DOUBLE_EQ((*rows)[3].outcome.cost.value(), 50.0);  // 100 s at $1 for 2 s, trained or not
}

TEST(Replan, OtherErrorsEndIt) {
  const auto steps = parse_availability_trace("Timestamp,A100-40_a\n0,8\n", "t.csv", catalogue(), Seconds(60));
  ASSERT_TRUE(steps.has_value());
  TracePlanner planner = all_gpus();
  planner.find = [](const Cluster&) -> Result<PricedPlan> { return fail(ErrorCode::invalid_input, "pins"); };
  const auto rows = replan(*steps, nullptr, catalogue(), Objective::throughput, Seconds(12), planner);
  ASSERT_FALSE(rows.has_value());
  EXPECT_EQ(rows.error().what, "pins");
}

TEST(AvailabilityTrace, TheGainOfAChangeCountsTheTimeThatTheChangeTakes) {
  const PricedPlan slow{.plan = {}, .iteration_time = Seconds(2.0), .cost_per_iteration = Usd(1.0)};
  const PricedPlan fast{.plan = {}, .iteration_time = Seconds(1.0), .cost_per_iteration = Usd(1.0)};
  // In 100 s: 50 iterations; with 20 s for the change 80 in what is left, paid for 100 s: $100.
  EXPECT_NEAR(gain_of_change(Objective::throughput, slow, fast, Seconds(100), Seconds(20)), 80.0 / 50.0 - 1.0, 1e-12);
  // $1 and $1.25 per iteration.
  EXPECT_NEAR(gain_of_change(Objective::cost, slow, fast, Seconds(100), Seconds(20)), 1.0 / 1.25 - 1.0, 1e-12);
  EXPECT_NEAR(gain_of_change(Objective::throughput_per_usd, slow, fast, Seconds(100), Seconds(20)), 1.6 / 1.25 - 1.0,
              1e-12);
  EXPECT_EQ(gain_of_change(Objective::throughput, slow, fast, Seconds(10), Seconds(20)), -1.0);
  for (const Objective objective : {Objective::throughput, Objective::cost, Objective::throughput_per_usd})
    for (const double duration : {10.0, 30.0, 100.0, 1000.0})
      EXPECT_EQ(gain_of_change(objective, slow, fast, Seconds(duration), Seconds(20)) > 0.0,
                change_pays(objective, slow, fast, Seconds(duration), Seconds(20)))
          << to_string(objective) << ' ' << duration;
}

}  // namespace
}  // namespace sailor::planner::availability_test
