// Closed-form and event-driven time of a pipeline and of an iteration, on cases worked out by hand.
#include "simulator/event_driven.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "simulator/closed_form.hpp"
#include "simulator/iteration.hpp"
#include "tests/fakes/owned_pipeline.hpp"

namespace sailor::simulator::event_driven_test {
namespace {

using testing::OwnedPipeline;

/// Stages alike: a forward and a backward pass for each chunk, and messages of as long each way.
OwnedPipeline equal(Schedule schedule, int stages, int micro_batches, double forward, double backward, double link,
                    int chunks = 1) {
  const auto all = static_cast<std::size_t>(stages * chunks);
  return {.schedule = schedule,
          .overlaps = false,
          .stages = stages,
          .chunks = chunks,
          .micro_batches = micro_batches,
          .passes = std::vector(all, PassTimes{Seconds(forward), Seconds(backward)}),
          .boundaries = std::vector(all - 1, BoundaryTimes{Seconds(link), Seconds(link)})};
}

/// Two stages, F = 2 and 3 s, B = 4 and 5 s, 1 s each way, two micro-batches.
OwnedPipeline two_stages(Schedule schedule, bool overlaps) {
  OwnedPipeline pipeline = equal(schedule, 2, 2, 2, 4, 1);
  pipeline.passes[1] = {Seconds(3), Seconds(5)};
  pipeline.overlaps = overlaps;
  return pipeline;
}

using Row = std::tuple<Activity, int, double, double>;  // activity, micro-batch, start, end

/// In order of start, then of Activity.
std::vector<Row> rows_of(const OwnedPipeline& pipeline, int stage) {
  std::vector<TimelineEvent> events;
  run_pipeline(pipeline.times(), &events);
  std::vector<Row> rows;
  for (const TimelineEvent& event : events)
    if (event.stage == stage)
      rows.emplace_back(event.activity, event.micro_batch, event.start.value(), event.end.value());
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(std::get<2>(a), std::get<0>(a)) < std::pair(std::get<2>(b), std::get<0>(b));
  });
  return rows;
}

TEST(EventDriven, BlockingOneFOneBExchangesMessages) {
  const OwnedPipeline pipeline = two_stages(Schedule::one_f_one_b, false);
  // Stage 1 takes until 11 for F0 and B0; then the activation of F1 and the gradient of B0 go over the link in turn.
  using enum Activity;
  EXPECT_EQ(rows_of(pipeline, 0), (std::vector<Row>{{forward, 0, 0, 2},
                                                    {send, 0, 2, 3},
                                                    {forward, 1, 3, 5},
                                                    {send, 1, 11, 12},
                                                    {receive, 0, 12, 13},
                                                    {backward, 0, 13, 17},
                                                    {receive, 1, 21, 22},
                                                    {backward, 1, 22, 26}}));
  EXPECT_EQ(rows_of(pipeline, 1), (std::vector<Row>{{receive, 0, 2, 3},
                                                    {forward, 0, 3, 6},
                                                    {backward, 0, 6, 11},
                                                    {receive, 1, 11, 12},
                                                    {send, 0, 12, 13},
                                                    {forward, 1, 13, 16},
                                                    {backward, 1, 16, 21},
                                                    {send, 1, 21, 22}}));
  EXPECT_EQ(pipeline.ends(), (std::vector<double>{26, 22}));
  const auto ends = run_pipeline(pipeline.times());
  EXPECT_EQ(ends[0].last_backward, std::vector{Seconds(22)});
  EXPECT_EQ(ends[1].last_backward, std::vector{Seconds(16)});
  // 6 + 8 + 2 + max(6 + 2, 8 + 2).
  EXPECT_EQ(pipeline.closed(), 26);
}

TEST(EventDriven, OverlappedTransfersHoldNobody) {
  const OwnedPipeline pipeline = two_stages(Schedule::one_f_one_b, true);
  // Stage 0: F0 0-2, F1 2-4, B0 12-16, B1 20-24. Stage 1: F0 3-6, B0 6-11, F1 11-14, B1 14-19.
  using enum Activity;
  EXPECT_EQ(rows_of(pipeline, 0), (std::vector<Row>{{forward, 0, 0, 2},
                                                    {forward, 1, 2, 4},
                                                    {send, 0, 2, 3},
                                                    {send, 1, 4, 5},
                                                    {receive, 0, 11, 12},
                                                    {backward, 0, 12, 16},
                                                    {receive, 1, 19, 20},
                                                    {backward, 1, 20, 24}}));
  EXPECT_EQ(pipeline.ends(), (std::vector<double>{24, 19}));
  // 6 + 8 + 2 + max(6, 8, (6 + 2 + 8)/2).
  EXPECT_EQ(pipeline.closed(), 24);
}

TEST(EventDriven, BlockingGpipeSendsOneByOne) {
  const OwnedPipeline pipeline = two_stages(Schedule::gpipe, false);
  // Stage 0: F0 0-2, send 3, F1 3-5, send 6-7, receive 15-16, B0 -20, receive 21-22, B1 -26.
  // Stage 1: F0 3-6, F1 7-10, B0 -15, send 16, B1 16-21, send 22.
  EXPECT_EQ(pipeline.ends(), (std::vector<double>{26, 22}));
  // Forward 2 + 3 + 1 + max(2 + 1, 3 + 1), backward 4 + 5 + 1 + max(4 + 1, 5 + 1).
  EXPECT_EQ(pipeline.closed(), 26);
}

TEST(EventDriven, OverlappedGpipe) {
  // Stage 0: F0 0-2, F1 2-4, B0 15-19, B1 20-24. Stage 1: F0 3-6, F1 6-9, B0 9-14, B1 14-19.
  EXPECT_EQ(two_stages(Schedule::gpipe, true).ends(), (std::vector<double>{24, 19}));
  // 2 + 3 + 1 + max(2, 3, 1), 4 + 5 + 1 + max(4, 5, 1).
  EXPECT_EQ(two_stages(Schedule::gpipe, true).closed(), 24);
}

TEST(EventDriven, InterleavedChunksTakeTurns) {
  const OwnedPipeline pipeline = equal(Schedule::interleaved_1f1b, 2, 2, 1, 1, 0, 2);
  // Stage 0: F 0-2 of its first chunk, 2-4 of its second; B 6-8 of the second, 8-10 of the first.
  // Stage 1: F 1-3, 3-5; B 5-7, 7-9.
  EXPECT_EQ(pipeline.ends(), (std::vector<double>{10, 9}));
  EXPECT_EQ(run_pipeline(pipeline.times())[0].last_backward, (std::vector{Seconds(9), Seconds(7)}));
  // max(2·4 + (8 - 4)/2, 8 + 0 + 1·2).
  EXPECT_EQ(pipeline.closed(), 10);
}

TEST(EventDriven, InterleavedMessagesTravelBesideThePasses) {
  OwnedPipeline pipeline = equal(Schedule::interleaved_1f1b, 2, 2, 2, 2, 1, 2);
  // Stage 0: F0 0-2, F1 2-4, second chunk F0 6-8, F1 8-10. Stage 1: F0 3-5, F1 5-7, second chunk F0 9-11, F1 11-13, B0
  // -15, B1 -17; first chunk B0 19-21, B1 21-23. Stage 0: second chunk B0 16-18, B1 18-20; first chunk B0 22-24, B1
  // 24-26.
  EXPECT_EQ(pipeline.ends(), (std::vector<double>{26, 23}));
  // 16 + 6 + 1·4.
  EXPECT_EQ(pipeline.closed(), 26);
}

TEST(EventDriven, FewerMicroBatchesThanStages) {
  // Three stages, all times 1 s, two micro-batches. Stage 0 never exchanges: it sends F1 before any gradient is there.
  //   stage 0: F0 0-1, send 2, F1 2-3, send 4-5, receive 9-10, B0 -11, receive 12-13, B1 -14
  //   stage 1: F0 2-3, send 4, receive 5, F1 5-6, exchange 6-8, B0 8-9, send 10, receive 10-11, B1 -12, send 13
  //   stage 2: F0 4-5, B0 -6, exchange 6-8, F1 8-9, B1 -10, send 11
  EXPECT_EQ(equal(Schedule::one_f_one_b, 3, 2, 1, 1, 1).ends(), (std::vector<double>{14, 13, 11}));
  // One micro-batch passes everything once: 3·2 + 2·2.
  EXPECT_EQ(equal(Schedule::one_f_one_b, 3, 1, 1, 1, 1).ends()[0], 10);
  EXPECT_EQ(equal(Schedule::one_f_one_b, 3, 1, 1, 1, 1).closed(), 10);
}

TEST(EventDriven, EqualStagesWithoutLinksTakeWhatEverybodyKnows) {
  // (m + P - 1)(F + B); interleaved with chunks of a v-th: m(F + B) + (P - 1)(F + B)/v.
  for (int stages = 1; stages <= 6; ++stages)
    for (const int micro_batches : {1, 2, 3, 5, 6, 12}) {
      const double expected = (micro_batches + stages - 1) * (2.0 + 4.0);
      for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::gpipe})
        for (const bool overlaps : {false, true}) {
          OwnedPipeline pipeline = equal(schedule, stages, micro_batches, 2, 4, 0);
          pipeline.overlaps = overlaps;
          EXPECT_DOUBLE_EQ(pipeline.ends()[0], expected) << stages << " " << micro_batches;
          EXPECT_DOUBLE_EQ(pipeline.closed(), expected) << stages << " " << micro_batches;
        }
      if (stages < 2 || micro_batches % stages != 0) continue;
      const OwnedPipeline pipeline = equal(Schedule::interleaved_1f1b, stages, micro_batches, 1, 2, 0, 2);
      EXPECT_DOUBLE_EQ(pipeline.ends()[0], micro_batches * 6.0 + (stages - 1) * 6.0 / 2);
      EXPECT_DOUBLE_EQ(pipeline.closed(), micro_batches * 6.0 + (stages - 1) * 6.0 / 2);
    }
}

TEST(EventDriven, MessagesQueueBehindOneAnotherOnABusyLink) {
  OwnedPipeline pipeline = equal(Schedule::one_f_one_b, 2, 2, 1, 1, 10);
  pipeline.boundaries[0].backward = Seconds(12);
  pipeline.overlaps = true;
  // Activations are made at 1 and 2 and travel 1-11, 11-21. Stage 1: F0 11-12, B0 -13, F1 21-22, B1 -23. Gradients are
  // made at 13 and 23 and travel 13-25, 25-37. Stage 0: B0 25-26, B1 37-38.
  EXPECT_EQ(pipeline.ends(), (std::vector<double>{38, 23}));
  using enum Activity;
  EXPECT_EQ(rows_of(pipeline, 1), (std::vector<Row>{{receive, 0, 1, 11},
                                                    {forward, 0, 11, 12},
                                                    {receive, 1, 11, 21},
                                                    {backward, 0, 12, 13},
                                                    {send, 0, 13, 25},
                                                    {forward, 1, 21, 22},
                                                    {backward, 1, 22, 23},
                                                    {send, 1, 25, 37}}));
}

/// Pipelines of one stage each, which pass `micro_batches` through layers [0, layers) of 1 s forward and 2 s backward.
class Replicas {
 public:
  Replicas(int layers, const std::vector<int>& micro_batches) {
    for (int i = 0; i <= layers; ++i) table_.times.push_back({Seconds(i), Seconds(2.0 * i)});
    for (const int count : micro_batches) {
      costs.pipelines.push_back({.stages = 1,
                                 .chunks = 1,
                                 .micro_batches = count,
                                 .first_stage = costs.stages.size(),
                                 .first_pass = costs.passes.size(),
                                 .first_boundary = 0});
      costs.stages.push_back({.entry = static_cast<int>(costs.stages.size()),
                              .stage = 0,
                              .table = &table_,
                              .forward = Seconds(layers),
                              .backward = Seconds(2.0 * layers),
                              .update = Seconds(0.5),
                              .memory = {},
                              .capacity = {}});
      costs.passes.push_back({Seconds(layers), Seconds(2.0 * layers)});
      costs.layers.push_back({0, layers});
    }
    layers_ = layers;
    for (int i = 0; i <= layers; ++i) parameters_.push_back(i);  // as many in every layer
    costs.layer_parameters = &parameters_;
  }
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  void reduce(const std::vector<std::size_t>& holders, double amount, double seconds, bool tied = false) {
    costs.reductions.push_back({.first_holder = costs.holders.size(),
                                .holders = holders.size(),
                                .replicas = static_cast<int>(holders.size()),
                                .first_layer = 0,
                                .last_layer = tied ? 1 : layers_,
                                .tied = tied,
                                .amount = Bytes(amount),
                                .time = Seconds(seconds)});
    costs.holders.insert(costs.holders.end(), holders.begin(), holders.end());
  }

  /// Starts of the reductions of a replica. What the closed form says of the ends must be the same: with one stage
  /// there is nothing that it leaves out.
  std::vector<double> starts(std::size_t replica) {
    Timeline timeline;
    times = event_driven_iteration(costs, &timeline);
    IterationScratch scratch;
    const IterationTimes closed = closed_iteration(costs, scratch);
    EXPECT_EQ(closed.pipelines, times.pipelines);
    EXPECT_EQ(closed.reduced, times.reduced);
    EXPECT_EQ(closed.end, times.end);
    EXPECT_EQ(timeline.length, times.end);
    std::vector<double> starts;
    for (const TimelineEvent& event : timeline.events) {
      if (event.activity != Activity::reduce || event.pipeline_entry != static_cast<int>(replica)) continue;
      starts.push_back(event.start.value());
    }
    return starts;
  }

  PlanCosts costs;
  IterationTimes times;

 private:
  LayerTable table_;
  std::vector<double> parameters_;
  int layers_ = 0;
};

TEST(Iteration, ReductionsWaitForTheirHoldersInAFixedOrder) {
  Replicas replicas(1, {4, 1, 2});  // done at 12, 3 and 6
  replicas.reduce({0, 1}, 1, 2);    // 12-14
  replicas.reduce({1, 2}, 1, 3);    // replica 1 has come from the first: 14-17
  replicas.reduce({0, 2}, 1, 1);    // 17-18
  replicas.reduce({0, 1}, 1, 1);    // 18-19
  EXPECT_EQ(replicas.starts(0), (std::vector<double>{12, 17, 18}));
  EXPECT_EQ(replicas.starts(1), (std::vector<double>{12, 14, 18}));
  EXPECT_EQ(replicas.starts(2), (std::vector<double>{14, 17}));
  EXPECT_EQ(replicas.times.pipelines, Seconds(12));
  EXPECT_EQ(replicas.times.reduced, Seconds(19));
  EXPECT_EQ(replicas.times.end, Seconds(19.5));
  EXPECT_EQ(replicas.times.slowest_pipeline, 0U);
}

TEST(Iteration, OverlappedBucketsHideBehindTheLastBackwardPass) {
  Replicas replicas(4, {2, 2});  // the last backward pass 16-24, 2 s for each of four layers, the last layer first
  replicas.costs.overlaps_reduction = true;
  replicas.costs.reduction_bucket = Bytes(100);
  replicas.reduce({0, 1}, 400, 4);  // four buckets of a layer and 1 s each
  EXPECT_EQ(replicas.starts(0), (std::vector<double>{18, 20, 22, 24}));
  EXPECT_EQ(replicas.times.reduced, Seconds(25));
  replicas.costs.reductions[0].time = Seconds(12);  // 3 s each: they queue
  EXPECT_EQ(replicas.starts(1), (std::vector<double>{18, 21, 24, 27}));
  EXPECT_EQ(replicas.times.reduced, Seconds(30));
  EXPECT_EQ(replicas.times.end, Seconds(30.5));
  replicas.costs.reduction_bucket = Bytes(300);  // two halves of 6 s each
  EXPECT_EQ(replicas.starts(0), (std::vector<double>{20, 26}));
  replicas.costs.reduction_bucket = Bytes(0);  // all at once
  EXPECT_EQ(replicas.starts(0), std::vector<double>{24});
  EXPECT_EQ(replicas.times.reduced, Seconds(36));
}

TEST(Iteration, BucketsMayEndInsideALayer) {
  Replicas replicas(1, {2, 2});  // the last backward pass 4-6
  replicas.costs.overlaps_reduction = true;
  replicas.costs.reduction_bucket = Bytes(25);
  replicas.reduce({0, 1}, 100, 1);  // quarters of the layer: after 0.5, 1, 1.5 and 2 s of the 2
  EXPECT_EQ(replicas.starts(0), (std::vector<double>{4.5, 5, 5.5, 6}));
  EXPECT_EQ(replicas.times.reduced, Seconds(6.25));
}

TEST(Iteration, BucketsHoldAsManyBytesWhereverTheyAre) {
  Replicas replicas(2, {2, 2});                         // the last backward pass 8-12, layer 1 until 10
  const std::vector<double> embedding_heavy{0, 9, 10};  // nine of ten parameters are in layer 0
  replicas.costs.layer_parameters = &embedding_heavy;
  replicas.costs.overlaps_reduction = true;
  replicas.costs.reduction_bucket = Bytes(50);
  replicas.reduce({0, 1}, 100, 1);
  // The first half of the bytes: all of layer 1, and four ninths of layer 0.
  EXPECT_DOUBLE_EQ(replicas.starts(0)[0], 10 + 2 * 4.0 / 9);
  EXPECT_DOUBLE_EQ(replicas.starts(0)[1], 12);
}

TEST(Iteration, AnOverlappedTiedEmbeddingWaitsForTheWholePass) {
  Replicas replicas(4, {2, 1});  // done at 24 and 12
  replicas.costs.overlaps_reduction = true;
  replicas.reduce({0, 1}, 400, 1, true);
  EXPECT_EQ(replicas.starts(1), std::vector<double>{24});
}

TEST(Iteration, ShardedOptimizerScattersBeforeTheStepAndGathersAfterIt) {
  Replicas replicas(1, {2, 2});
  replicas.costs.shards_optimizer = true;
  replicas.reduce({0, 1}, 1, 4);
  replicas.costs.reductions[0].gather = Seconds(2);
  EXPECT_EQ(replicas.starts(0), (std::vector<double>{6, 8.5}));  // 6-8, step until 8.5, 8.5-10.5
  EXPECT_EQ(replicas.times.reduced, Seconds(8));
  EXPECT_EQ(replicas.times.end, Seconds(10.5));
  replicas.costs.overlaps_reduction = true;
  replicas.costs.reduction_bucket = Bytes(0.5);
  EXPECT_EQ(replicas.starts(0), (std::vector<double>{5, 6, 7.5}));  // 5-6, 6-7, step, 7.5-9.5
}

}  // namespace
}  // namespace sailor::simulator::event_driven_test
