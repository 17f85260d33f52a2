// The search of the full space with the published measurements, on inputs too large to enumerate all plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cluster/gpu_counts.hpp"
#include "planner/planner.hpp"
#include "planner/search_space.hpp"
#include "planner/stage_prices.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::large_search_test {
namespace {

using testing::cluster_of;
using testing::Part;
using testing::published;

const simulator::Framework& framework() {
  static const simulator::Framework framework =
      simulator::load_framework(testing::published_folder / "frameworks" / "megatron-deepspeed.toml").value();
  return framework;
}

const simulator::Framework& own_framework() {
  static const simulator::Framework framework =
      simulator::load_framework(testing::published_folder / "frameworks" / "sailor.toml").value();
  return framework;
}

void link_zones(Cluster& cluster, const std::vector<std::string>& zones, BytesPerSecond bandwidth) {
  for (std::size_t a = 0; a < zones.size(); ++a) {
    cluster.zones.push_back({.name = zones[a], .region = "us-central1"});
    for (std::size_t b = a + 1; b < zones.size(); ++b)
      cluster.links.push_back({.from = zones[a],
                               .to = zones[b],
                               .bandwidth = bandwidth,
                               .latency = Seconds(0.5e-3),
                               .egress_usd_per_byte = 0.01e-9});
  }
}

/// A search on some nodes, for plans alone.
struct Question {
  Question(const std::string& name, int batch, const std::vector<Part>& parts)
      : model(testing::published_model(name)), cluster(cluster_of(parts)) {
    request.job = testing::published_job(name, batch);
    request.memory_margin = 0.05;
    request.effort.proof = Proof::none;  // most of the time
  }
  [[nodiscard]] simulator::Environment environment() const {
    return {.model = model,
            .profile = published(),
            .gpus = testing::published_gpus(),
            .framework = framework(),
            .cluster = &cluster};
  }
  [[nodiscard]] Result<SearchResult> answer() const { return find_plans(request, environment()); }

  Model model;
  Cluster cluster;
  Request request;
};

// Event by event the best plan of the paper's space was 2.7 % faster than what was found in the full space, by the
// closed form it is not (random cluster 0 of experiments/planner_laws.py --zones 5).
TEST(LargeSearch, TheFullSpaceHasNoWorsePlanThanThePapersEventByEvent) {
  Question question(
      "OPT-350", 256,
      {{"V100-16", 64}, {"GH200-96", 16}, {"GH200-96", 32, "us-central1-b"}, {"V100-16", 32, "us-central1-c"}});
  question.request.job.precision = Precision::fp16;
  link_zones(question.cluster, {"us-central1-a", "us-central1-b", "us-central1-c"}, BytesPerSecond(12.5e9));
  const auto answer = [&](Space space) {
    question.request.space = space;
    return find_plans(question.request, {.model = question.model,
                                         .profile = published(),
                                         .gpus = testing::published_gpus(),
                                         .framework = own_framework(),
                                         .cluster = &question.cluster});
  };
  const auto full = answer(Space::full);
  const auto paper = answer(Space::paper);
  ASSERT_TRUE(full.has_value() && paper.has_value());
  EXPECT_LE(full->plans.front().prediction.iteration_time.value(),
            paper->plans.front().prediction.iteration_time.value() * (1.0 + 1e-6));
}

// Without the second zone 25 % less was paid (34 % more per USD): of pipelines over two types only the cheapest were
// looked at, and all of those were below the limit.
TEST(LargeSearch, ALimitIsKeptByPipelinesOverTwoTypesAlsoBesideAnotherZone) {
  Question question("OPT-350", 256, {{"A100-40", 8}, {"GH200-96", 8}, {"GH200-96", 16, "us-central1-b"}});
  question.request.job.precision = Precision::fp16;
  link_zones(question.cluster, {"us-central1-a", "us-central1-b"}, BytesPerSecond(12.5e9));
  question.request.objective = Objective::cost;
  question.request.limits.throughput = 0.585;
  const auto both = question.answer();
  question.request.pins.zones = {"us-central1-a"};
  const auto one = question.answer();
  ASSERT_TRUE(both.has_value() && one.has_value());
  EXPECT_LE(both->plans.front().prediction.cost_per_iteration.value(),
            one->plans.front().prediction.cost_per_iteration.value() * (1.0 + 1e-6));
}

// The search of the whole alone finds a plan that is 7 % slower than without the A100s (planner_laws.py --small --goal
// throughput, input 21).
TEST(LargeSearch, ASmallClusterHasNoWorsePlanThanWithoutOneOfItsTypesOrZones) {
  std::vector<Part> parts{
      {"GH200-96", 12}, {"A100-40", 8}, {"GH200-96", 4, "us-central1-b"}, {"V100-16", 12, "us-central1-b"}};
  const auto seconds = [](const std::vector<Part>& of) {
    Question question("OPT-350", 64, of);
    question.request.job.precision = Precision::fp16;
    link_zones(question.cluster, {"us-central1-a", "us-central1-b"}, BytesPerSecond(5e9));
    const auto found = find_plans(question.request, {.model = question.model,
                                                     .profile = published(),
                                                     .gpus = testing::published_gpus(),
                                                     .framework = own_framework(),
                                                     .cluster = &question.cluster});
    return found ? found->plans.front().prediction.iteration_time.value() : std::numeric_limits<double>::infinity();
  };
  const double whole = seconds(parts);
  for (const char* without : {"A100-40", "V100-16", "us-central1-b"}) {
    std::vector<Part> fewer = parts;
    std::erase_if(fewer, [&](const Part& part) { return part.gpu == without || part.zone == without; });
    EXPECT_LE(whole, seconds(fewer) * (1.0 + 1e-6)) << "without " << without;
  }
}

TEST(LargeSearch, AModelThatFitsIntoNoPlaceRunsOverSeveral) {
  // 16 A100-40 have 640 GB and 64 V100-16 a terabyte; weights, gradients and optimizer of 30 billion parameters take
  // 480 GB, and the activations the rest.
  const std::vector<std::vector<Part>> clusters{{{"A100-40", 16}, {"V100-16", 64}},
                                                {{"A100-40", 12}, {"A100-40", 12, "us-central1-b"}}};
  for (const std::vector<Part>& parts : clusters) {
    for (const Part& part : parts) EXPECT_FALSE(Question("OPT-30", 512, {part}).answer().has_value());
    const auto found = Question("OPT-30", 512, parts).answer();
    ASSERT_TRUE(found.has_value()) << found.error().message();
    const Pipeline& pipeline = found->plans.front().plan.pipelines.front();
    std::set<std::string> places;
    for (const Stage& stage : pipeline.stages) places.insert(stage.gpu + stage.zone);
    EXPECT_EQ(places.size(), 2U);
  }
}

TEST(LargeSearch, ANumberOfPipelinesIsKeptOverSeveralTypes) {
  const Part a100{"A100-40", 32};
  const Part v100{"V100-16", 96};
  for (const int pipelines : {12, 20, 40}) {
    const auto value = [&](const std::vector<Part>& parts) {
      Question question("OPT-350", 1024, parts);
      question.request.pins.data_parallel = pipelines;
      const auto found = question.answer();
      if (!found) return 0.0;
      for (const Candidate& candidate : found->plans) EXPECT_EQ(candidate.plan.data_parallel(), pipelines);
      return found->bound.found;
    };
    EXPECT_GT(value({a100, v100}), 1.2 * std::max(value({a100}), value({v100}))) << pipelines;
  }
}

TEST(LargeSearch, WhatIsReachedWithoutALimitIsReachedUnderIt) {
  Question question("OPT-350", 1024, {{"A100-40", 32}, {"V100-16", 96}});
  const auto fastest = question.answer();
  ASSERT_TRUE(fastest.has_value()) << fastest.error().message();
  question.request.objective = Objective::cost;
  question.request.limits.throughput = fastest->bound.found * 0.999;
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_LE(found->bound.found, fastest->plans.front().prediction.cost_per_iteration.value() * 1.02);
}

TEST(LargeSearch, ListedPlansKeepTheLimitsEventByEvent) {
  Question question("OPT-350", 1024, {{"A100-40", 32}, {"V100-16", 96}});
  question.request.objective = Objective::cost;
  for (const double limit : {0.12, 0.17}) {
    question.request.limits.throughput = limit;
    const auto found = question.answer();
    ASSERT_TRUE(found.has_value()) << found.error().message();
    for (const Candidate& candidate : found->plans)
      EXPECT_LE(candidate.prediction.iteration_time.value() * limit, 1.0) << limit;
  }
}

// 26.5 % where the bound knew no memory, and not that the reductions of the first stages have to end, too. With up to
// four chunks in a stage the best plan was slower.
TEST(LargeSearch, InterleavedPlansAreKnownToBeNearlyTheBest) {
  const Model model = load_model(SAILOR_SOURCE_DIR "/profiles/models/llama-3-8b.toml").value();
  const simulator::Framework megatron =
      simulator::load_framework(testing::published_folder / "frameworks" / "megatron-core.toml").value();
  const Cluster cluster = cluster_of_gpu_counts("16x4:GH200", testing::published_gpus()).value();
  Request request;
  request.job = {.model = model.name, .global_batch = 256, .sequence_length = 4096, .precision = Precision::bf16};
  const auto found = find_plans(request, {.model = model,
                                          .profile = published(),
                                          .gpus = testing::published_gpus(),
                                          .framework = megatron,
                                          .cluster = &cluster});
  ASSERT_TRUE(found.has_value()) << found.error().message();
  const Plan& best = found->plans.front().plan;
  EXPECT_EQ(best.schedule, Schedule::interleaved_1f1b);
  EXPECT_GT(best.pipelines.front().stages.front().chunks(), 4);
  EXPECT_LT(found->bound.gap, 0.08);
}

// It said that plans were found, of which none keeps all limits and pins together.
TEST(LargeSearch, ALimitThatLeavesTooLittleMemoryIsNamed) {
  const Model model = load_model(SAILOR_SOURCE_DIR "/profiles/models/llama-3-8b.toml").value();
  const Cluster cluster = cluster_of_gpu_counts("4x4:GH200", testing::published_gpus()).value();
  Request request;
  request.job = {.model = model.name, .global_batch = 64, .sequence_length = 2048, .precision = Precision::bf16};
  request.limits.gpus = 1;
  const auto refused = find_plans(request, {.model = model,
                                            .profile = published(),
                                            .gpus = testing::published_gpus(),
                                            .framework = own_framework(),
                                            .cluster = &cluster});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().what, "none of the plans that fit into memory takes as few as 1 device (--max-gpus)");
}

TEST(LargeSearch, LimitsOnDevicesAndNodesHoldUnderTheInterleavedSchedule) {
  Question question("OPT-350", 256, {{"A100-40", 64}});
  simulator::Framework interleaving = framework();
  interleaving.schedules = {Schedule::interleaved_1f1b};
  question.request.pins.schedule = Schedule::interleaved_1f1b;
  for (const bool by_nodes : {false, true}) {
    question.request.limits = {};
    if (by_nodes)
      question.request.limits.nodes = 3;
    else
      question.request.limits.gpus = 12;
    const auto found = find_plans(question.request, {.model = question.model,
                                                     .profile = published(),
                                                     .gpus = testing::published_gpus(),
                                                     .framework = interleaving,
                                                     .cluster = &question.cluster});
    ASSERT_TRUE(found.has_value()) << found.error().message();
    for (const Candidate& candidate : found->plans) EXPECT_LE(candidate.plan.ranks(), 12);
  }
}

// 128 pipelines of two stages take all GH200. With the embedding on devices of another zone, which stand idle
// otherwise, its gradients are summed there meanwhile: 0.263 s instead of 0.275 s event by event, found by hand.
TEST(LargeSearch, AFewLayersMayRunInAnotherZone) {
  Question question("OPT-350", 1024, {{"GH200-96", 1024}, {"A100-80", 512, "us-central1-f"}});
  question.cluster.links = {{.from = "us-central1-a",
                             .to = "us-central1-f",
                             .bandwidth = BytesPerSecond(12.5e9),
                             .latency = Seconds(0.5e-3)}};
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_LT(found->plans.front().prediction.iteration_time.value(), 0.2630);
}

// By the closed form the first start was exchanged for another template before its layers were moved: 0.385 s event by
// event, and it was said to be the best. A start is polished first, and the plans that are printed go through it again.
TEST(LargeSearch, PlansAreImprovedByTheTimeThatIsPrintedToo) {
  Question question("OPT-350", 1024, {{"A100-40", 10000}});
  question.request.job.precision = Precision::fp32;
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  const Seconds time = found->plans.front().prediction.iteration_time;
  EXPECT_LT(time.value(), 0.375);  // 0.3699
  question.request.effort.without = {Heuristic::refine_printed};
  const auto without = question.answer();
  ASSERT_TRUE(without.has_value()) << without.error().message();
  EXPECT_LE(time, without->plans.front().prediction.iteration_time);
}

TEST(LargeSearch, TheNumberOfThreadsChangesNothing) {
  Question question("OPT-350", 1024, {{"A100-40", 16}, {"V100-16", 48}, {"A100-40", 8, "us-central1-b"}});
  question.request.effort.proof = Proof::usual;
  const auto expect_equal_answers = [&](const std::string& what, const std::vector<int>& numbers) {
    question.request.effort.threads = 1;
    const auto first = question.answer();
    ASSERT_TRUE(first.has_value()) << first.error().message();
    EXPECT_GT(first->bound.gap, 0.0);  // else nothing would be proved by threads
    for (const int threads : numbers) {
      question.request.effort.threads = threads;
      const auto found = question.answer();
      ASSERT_TRUE(found.has_value()) << found.error().message();
      EXPECT_EQ(found->bound.bound, first->bound.bound) << what << threads;
      EXPECT_EQ(found->considered, first->considered) << what << threads;
      EXPECT_EQ(found->did_not_fit, first->did_not_fit) << what << threads;
      ASSERT_EQ(found->plans.size(), first->plans.size());
      for (std::size_t i = 0; i < found->plans.size(); ++i) {
        EXPECT_EQ(plan_fingerprint(found->plans[i].plan), plan_fingerprint(first->plans[i].plan)) << what << threads;
        EXPECT_EQ(found->plans[i].found_by, first->plans[i].found_by) << what << threads;
        EXPECT_FALSE(found->plans[i].found_by.empty());
      }
    }
  };
  expect_equal_answers("", {2, 3, 7});
  question.request.effort.work = 9000;  // ends in a local search
  expect_equal_answers("with a work limit ", {3});
  question.request.effort.work.reset();
  question.request.pareto = true;
  expect_equal_answers("Pareto ", {3});
}

// Most of the time is the reduction of gradients, which begins sooner where the first stages have few layers: 0.298 s
// with stages that are balanced and then moved layer by layer. A plan whose pipelines were pinned was faster.
TEST(LargeSearch, FirstStagesOfFewLayersAreFound) {
  Question question("OPT-350", 1024, {{"A100-40", 10000}});
  question.request.effort.proof = Proof::usual;
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_LT(found->plans.front().prediction.iteration_time.value(), 0.265);
  EXPECT_LT(found->bound.gap, 0.09);
  question.request.effort.proof = Proof::none;
  for (const int pipelines : {256, 342, 512}) {
    question.request.pins.data_parallel = pipelines;
    const auto pinned = question.answer();
    ASSERT_TRUE(pinned.has_value()) << pinned.error().message();
    EXPECT_LE(pinned->bound.found, found->bound.found * (1.0 + 1e-9)) << pipelines;
  }
}

// All replicas of a stage, then those of the next, zone by zone: 0.2 % slower where pipelines are in one zone each or
// cross two.
TEST(LargeSearch, StagesFillSeveralZonesOneAfterTheOther) {
  const Question question("OPT-350", 128,
                          {{"A100-40", 24}, {"A100-40", 24, "us-central1-b"}, {"A100-40", 24, "us-central1-c"}});
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_LT(found->plans.front().prediction.iteration_time.value(), 0.9828);
}

TEST(LargeSearch, MoreWorkOnTheBoundProvesMoreOfTheSamePlan) {
  Question question("OPT-350", 256, {{"A100-40", 8}, {"V100-16", 16}});
  question.request.effort.proof = Proof::usual;
  const auto usual = question.answer();
  question.request.effort.proof = Proof::thorough;
  const auto proved = question.answer();
  ASSERT_TRUE(usual.has_value() && proved.has_value());
  EXPECT_LT(proved->bound.gap, 0.08);
  EXPECT_LT(proved->bound.gap, usual->bound.gap);
  EXPECT_GE(proved->bound.bound, proved->bound.found);
  EXPECT_EQ(plan_fingerprint(usual->plans.front().plan), plan_fingerprint(proved->plans.front().plan));
}

// Two thousand of each type: 12 % slower with an eighth of the work for templates whose stages are anywhere.
TEST(LargeSearch, ManyDevicesOfTwoTypesAreUsedWell) {
  Question question("GPT-Neo-2.7", 2048, {{"A100-40", 2048}, {"V100-16", 2048}});
  question.request.effort.proof = Proof::usual;
  question.request.job.precision = Precision::fp16;
  link_zones(question.cluster, {"us-central1-a", "us-central1-b", "us-central1-c"}, BytesPerSecond(12.5e9));
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_LT(found->plans.front().prediction.iteration_time.value(), 1.05);  // 1.024
  EXPECT_LT(found->bound.gap, 0.15);                                        // 0.136
}

// Local searches from the best plans alone, which use GH200 only, end at 0.524 s.
TEST(LargeSearch, PlansThatDifferAreImprovedToo) {
  Question question("OPT-350", 256, {{"GH200-96", 48}, {"A100-40", 96}});
  question.request.job.precision = Precision::fp16;
  link_zones(question.cluster, {"us-central1-a", "us-central1-b", "us-central1-c"}, BytesPerSecond(12.5e9));
  simulator::Environment environment{.model = question.model,
                                     .profile = published(),
                                     .gpus = testing::published_gpus(),
                                     .framework = own_framework(),
                                     .cluster = &question.cluster};
  const auto found = find_plans(question.request, environment);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_LT(found->plans.front().prediction.iteration_time.value(), 0.5);
}

// It ended with a division by zero: nothing fits, and nodes of the second zone hold no group of four ranks.
TEST(LargeSearch, WhatFitsNowhereIsSaidWhereAZoneHasSmallerNodes) {
  Question question("OPT-350", 8, {{"A100-40", 4}, {"A100-40", 4, "us-central1-b"}});
  link_zones(question.cluster, {"us-central1-a", "us-central1-b"}, BytesPerSecond(12.5e9));
  question.cluster.groups.back().gpus_per_node = 1;
  question.request.job.precision = Precision::bf16;
  question.request.memory_margin = 0.99;
  const simulator::Framework fsdp =
      simulator::load_framework(testing::published_folder / "frameworks" / "torch-fsdp.toml").value();
  const auto found = find_plans(question.request, {.model = question.model,
                                                   .profile = published(),
                                                   .gpus = testing::published_gpus(),
                                                   .framework = fsdp,
                                                   .cluster = &question.cluster});
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::infeasible) << found.error().message();
}

// The bound must leave a gap here, or there are no hints.
TEST(LargeSearch, AnInterruptedSearchAnswersWithWhatItHas) {
  Question question("OPT-350", 1024, {{"A100-40", 32}, {"V100-16", 96}});
  question.request.effort.proof = Proof::usual;
  const auto whole = question.answer();
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  std::atomic<bool> interrupted = true;
  question.request.effort.is_interrupted = [&] { return interrupted.load(); };
  const auto nothing = question.answer();
  ASSERT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.error().code, ErrorCode::infeasible);
  EXPECT_EQ(nothing.error().what, "no plan was found before the interruption");
  // In the search, and while the bound is proved.
  for (const bool while_proving : {false, true}) {
    interrupted = false;
    const auto found = find_plans(question.request, question.environment(), [&](const SearchProgress& progress) {
      EXPECT_TRUE(progress.best || !progress.gap);
      if (progress.best && (!while_proving || progress.gap)) interrupted = true;
    });
    ASSERT_TRUE(found.has_value()) << found.error().message();
    EXPECT_EQ(found->stop, Stop::interrupted);
    EXPECT_FALSE(found->plans.empty());
    EXPECT_LE(found->bound.found, whole->bound.found * (1.0 + 1e-12));
    EXPECT_GE(found->bound.bound, whole->bound.found * (1.0 - 1e-12));  // true, if not as tight
    EXPECT_LT(found->considered, whole->considered);                    // the bound's hints are not tried any more
  }
}

// Gradients that every rank of a tensor-parallel group has a copy of are summed only once: taken for more, pipelines of
// more ranks seemed too slow to be priced, and five nodes slower than four.
TEST(LargeSearch, AFurtherNodeIsNeverWorse) {
  double before = 0.0;
  for (int nodes = 1; nodes <= 6; ++nodes) {
    const auto found = Question("OPT-350", 64, {{"A100-40", 4 * nodes}}).answer();
    ASSERT_TRUE(found.has_value()) << found.error().message();
    const double rate = 1.0 / found->plans.front().prediction.iteration_time.value();
    EXPECT_GE(rate, before * (1.0 - 1e-9)) << nodes << " nodes";
    before = rate;
  }
}

TEST(LargeSearch, PinnedStagesAreKeptUnderALimitOnDevices) {
  Question question("OPT-350", 256, {{"A100-40", 32}, {"V100-16", 32}, {"GH200-96", 32}});
  question.request.pins.pipeline_parallel = 8;
  question.request.pins.tensor_parallel = 2;
  question.request.limits.gpus = 64;
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  for (const Candidate& candidate : found->plans)
    for (const Pipeline& pipeline : candidate.plan.pipelines) EXPECT_EQ(pipeline.stages.size(), 8U);
}

TEST(LargeSearch, APinnedSizeThatWasNotMeasuredIsNamed) {
  Question question("OPT-350", 1024, {{"A100-40", 32}});
  question.request.pins.micro_batch = 512;
  const auto found = question.answer();
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(found.error().what.find("--pin micro_batch=512 is over 128, the largest that is estimated"),
            std::string::npos)
      << found.error().what;
}

TEST(LargeSearch, WhatIsShownOfThePapersSpaceIsBestFirst) {
  Question question("OPT-350", 1024, {{"A100-40", 32}, {"V100-16", 32}});
  question.request.space = Space::paper;
  const auto found = question.answer();
  ASSERT_TRUE(found.has_value()) << found.error().message();
  bool optimum = false;
  for (std::size_t i = 0; i < found->plans.size(); ++i) {
    const auto& prediction = found->plans[i].prediction;
    optimum = optimum || std::abs(prediction.closed_form_time.value() * found->bound.found - 1.0) < 1e-9;
    if (i == 0) continue;
    EXPECT_GE(prediction.iteration_time * (1.0 + 1e-6), found->plans[i - 1].prediction.iteration_time);
  }
  EXPECT_TRUE(optimum);
}

TEST(LargeSearch, NoSumIsQuickerThanTheLeast) {
  const Question question("OPT-350", 1024, {{"A100-40", 32}, {"V100-16", 96}});
  simulator::Environment env = question.environment();
  const LayerCosts costs = simulator::layer_costs_for(env);
  env.costs = &costs;
  const auto space = make_search_space(question.request, env);
  ASSERT_TRUE(space.has_value()) << space.error().message();
  StagePrices prices(question.request, *space, env);
  constexpr double amount = 4e8;
  // Two groups of two on a node of four: one alone beside others (four or three sums at once, or two when they idle),
  // or both.
  for (const std::size_t from : {0U, 1U})
    for (const std::size_t to : {0U, 1U}) {
      const double least = prices.min_reduction(from, to, 2, 32, 4, amount);
      for (const int rings : {2, 3, 4}) EXPECT_LE(least, prices.reduction(from, to, 1, rings, 32, false, amount));
      EXPECT_LE(least, prices.reduction(from, to, 2, 2, 32, false, amount));
    }
}

}  // namespace
}  // namespace sailor::planner::large_search_test
