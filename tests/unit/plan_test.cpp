#include <gtest/gtest.h>

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck.h>
#endif

#include <filesystem>
#include <map>

#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace sailor::plan_test {
namespace {

// Two pipelines of 2 stages and one of a single stage that takes more micro-batches: 2·3 + 1·2 = 8 of 2 sequences.
constexpr const char* example = R"(schema_version = 1
micro_batch = 2
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 16
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 3
[[pipelines.stages]]
layers = [0, 3]
gpu = "GH200-96"
tensor_parallel = 2
[[pipelines.stages]]
layers = [3, 6]
gpu = "A100-40"
zone = "b"
recompute = "full"
[[pipelines]]
micro_batches = 2
[[pipelines.stages]]
layers = [0, 6]
gpu = "GH200-96"
)";

// Two chunks in each of two stages: layers 0 and 1, 2 and 3, 4, 5 are on stage 0, 1, 0, 1 in this order.
constexpr const char* interleaved = R"(schema_version = 1
micro_batch = 1
schedule = "interleaved-1f1b"
optimizer_sharding = "zero1"
[job]
model = "tiny-gpt"
global_batch = 8
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 4
[[pipelines.stages]]
layers = [[0, 2], [4, 5]]
gpu = "GH200-96"
[[pipelines.stages]]
layers = [[2, 4], [5, 6]]
gpu = "GH200-96"
)";

Plan parsed(const char* text = example) {
  auto plan = parse_plan(text, "p.toml");
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message());
  return plan.value_or(Plan{});
}

std::string error_with(const std::string& from, const std::string& to, std::string text = example) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto plan = parse_plan(text, "p.toml");
  return plan ? "" : plan.error().message();
}

TEST(Plan, GeneralPipelinesReadAndCount) {
  const Plan plan = parsed();
  EXPECT_EQ(plan.data_parallel(), 3);
  EXPECT_EQ(plan.ranks(), 2 * (2 + 1) + 1);
  EXPECT_EQ(describe(plan),
            "2 pipelines of 2 stages on GH200-96 x2, A100-40 + 1 pipeline of 1 stage on GH200-96, micro-batch 2");
}

TEST(Plan, PipelinesThatDifferOnlyInTheirZoneAreDescribedApart) {
  Plan plan = parsed();
  plan.pipelines.resize(1);
  plan.pipelines[0].count = 1;
  plan.pipelines[0].stages.resize(1);
  plan.pipelines[0].stages[0].zone = "east";
  plan.pipelines.push_back(plan.pipelines[0]);
  EXPECT_EQ(describe(plan),
            "1 pipeline of 1 stage on GH200-96 x2 + 1 pipeline of 1 stage on GH200-96 x2, micro-batch 2");
  plan.pipelines[1].stages[0].zone = "west";
  EXPECT_EQ(
      describe(plan),
      "1 pipeline of 1 stage on GH200-96 x2 in east + 1 pipeline of 1 stage on GH200-96 x2 in west, micro-batch 2");
}

TEST(Plan, RanksAreNumberedPipelineByPipelineStageByStage) {
  const auto roles = rank_roles(parsed());
  ASSERT_EQ(roles.size(), 7U);
  // Pipeline 1 (the second copy of entry 0) starts at rank 3: stage 0 has two members, stage 1 one.
  EXPECT_EQ(roles[4].pipeline, 1);
  EXPECT_EQ(roles[4].stage, 0);
  EXPECT_EQ(roles[4].tensor_parallel_index, 1);
  EXPECT_EQ(roles[5].stage, 1);
  EXPECT_EQ(roles[6].pipeline, 2);
  EXPECT_EQ(roles[6].pipeline_entry, 1);
}

TEST(Plan, WrittenPlanReadsBackTheSame) {
  Plan plan = parsed();
  plan.origin = {.tool = "sailor-plan 0.1.0",
                 .cluster = "a \"quoted\" name",
                 .partition = "normal",
                 .profile_store = "s",
                 .framework = "sailor",
                 .cluster_hash = "0",
                 .profile_hash = "1",
                 .model_file = "/models/mine.toml"};
  plan.prediction = PlanPrediction{.iteration_time = Seconds(0.1),
                                   .pipeline_time = Seconds(1),
                                   .synchronization_time = Seconds(1e-30),
                                   .update_time = Seconds(0),
                                   .peak_memory = Bytes(1e10),
                                   .cost_per_iteration = Usd(1.0 / 3)};
  const std::string text = plan_to_toml(plan);
  const auto again = parse_plan(text, "p.toml");
  ASSERT_TRUE(again.has_value()) << again.error().message() << text;
  EXPECT_EQ(plan_to_toml(*again), text);
  EXPECT_EQ(again->prediction->cost_per_iteration, Usd(1.0 / 3));
  EXPECT_EQ(again->pipelines[0].stages, plan.pipelines[0].stages);
}

TEST(Plan, BadFilesAreRefusedWithLineAndReason) {
  EXPECT_EQ(error_with("layers = [3, 6]", "layers = [4, 6]"),
            "p.toml:18:10: stage 1 starts at layer 4 but stage 0 ends at 3");
  EXPECT_EQ(error_with("layers = [0, 3]", "layers = [1, 3]"), "p.toml:14:10: stage 0 starts at layer 1, not 0");
  EXPECT_EQ(error_with("layers = [3, 6]", "layers = [3, 3]"), "p.toml:18:10: stage 1 holds no layers: [3, 3)");
  EXPECT_EQ(error_with("layers = [0, 3]", "layers = [0]"),
            "p.toml:14:10: 'layers' must be [first, last), two integers, not 1");
  EXPECT_EQ(error_with("global_batch = 16", "global_batch = 15"),
            "p.toml:6:16: 8 micro-batches of 2 make 16 sequences but global_batch is 15; change micro_batches, "
            "micro_batch or "
            "global_batch");
  EXPECT_EQ(error_with("\"full\"", "\"ful\""),
            "p.toml:21:13: 'pipelines[0].stages[1].recompute' is 'ful'; use one of: none, selective, full");
  EXPECT_EQ(error_with("count = 2", "count = 0"), "p.toml:11:9: 'pipelines[0].count' is 0 but must be at least 1");
  EXPECT_EQ(error_with("schedule = \"1f1b\"", "schedule = \"1f1b\"\ncolour = 1"),
            "p.toml:4:10: unknown key 'colour'; check the spelling or remove it");
  EXPECT_TRUE(error_with("[job]", "[job").starts_with("p.toml:4:"));
  EXPECT_EQ(load_plan("/no/such/plan.toml").error().message(), "file '/no/such/plan.toml' does not exist");
}

TEST(Plan, ChunksOfAnInterleavedScheduleAndOptimizerShardingReadAndWrite) {
  const Plan plan = parsed(interleaved);
  EXPECT_EQ(plan.optimizer_sharding, OptimizerSharding::zero1);
  ASSERT_EQ(plan.pipelines.size(), 1U);
  const Pipeline& pipeline = plan.pipelines[0];
  EXPECT_EQ(pipeline.chunks(), 2);
  EXPECT_EQ(pipeline.stages[0].chunk(0), (LayerRange{0, 2}));
  EXPECT_EQ(pipeline.stages[0].chunk(1), (LayerRange{4, 5}));
  EXPECT_EQ(pipeline.stages[1].later_chunks, (std::vector<LayerRange>{{5, 6}}));
  std::vector<bool> held;
  for (int layer = -1; layer <= 6; ++layer) held.push_back(pipeline.stages[0].holds(layer));
  EXPECT_EQ(held, (std::vector<bool>{false, true, true, false, false, true, false, false}));
  EXPECT_EQ(describe(plan), "2 pipelines of 2 stages of 2 chunks on GH200-96, micro-batch 1, zero1");

  const std::string text = plan_to_toml(plan);
  EXPECT_NE(text.find("layers = [[0, 2], [4, 5]]"), std::string::npos) << text;
  const Plan again = parsed(text.c_str());
  EXPECT_EQ(plan_to_toml(again), text);
  EXPECT_EQ(again.pipelines[0].stages, pipeline.stages);
  EXPECT_EQ(plan_fingerprint(again), plan_fingerprint(plan));
}

TEST(Plan, FileWithoutOptimizerShardingMeansNoneAndIsWrittenWithout) {
  const Plan plan = parsed();
  EXPECT_EQ(plan.optimizer_sharding, OptimizerSharding::none);
  EXPECT_EQ(plan_to_toml(plan).find("sharding"), std::string::npos);
  Plan sharded = plan;
  sharded.optimizer_sharding = OptimizerSharding::zero1;
  EXPECT_NE(plan_fingerprint(sharded), plan_fingerprint(plan));
}

TEST(Plan, SaysWhatIsKeptTogetherOnlyWhereItIsNotThePipelines) {
  Plan plan = parsed();
  EXPECT_EQ(plan.keep_together, KeepTogether::pipelines);
  EXPECT_EQ(plan_to_toml(plan).find("keep_together"), std::string::npos);
  const std::string before = plan_fingerprint(plan);
  plan.keep_together = KeepTogether::replicas;
  const auto again = parse_plan(plan_to_toml(plan), "p.toml");
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->keep_together, KeepTogether::replicas);
  EXPECT_NE(plan_fingerprint(*again), before);
}

TEST(Plan, PipelinesMayHaveMicroBatchesOfTheirOwn) {
  // 2 pipelines x 3 x 2 sequences and one of 1 x 4 sequences: 16.
  std::string text = example;
  text.replace(text.find("micro_batches = 2"), 17, "micro_batches = 1\nmicro_batch = 4");
  const Plan plan = parsed(text.c_str());
  EXPECT_EQ(plan.micro_batch_of(plan.pipelines[0]), 2);
  EXPECT_EQ(plan.micro_batch_of(plan.pipelines[1]), 4);
  EXPECT_TRUE(check_plan(plan));
  EXPECT_EQ(describe(plan),
            "2 pipelines of 2 stages on GH200-96 x2, A100-40 with micro-batch 2 + 1 pipeline of 1 stage on GH200-96 "
            "with micro-batch 4");
  EXPECT_EQ(micro_batch_text(plan), "2 to 4");
  const Plan again = parsed(plan_to_toml(plan).c_str());
  EXPECT_EQ(plan_to_toml(again), plan_to_toml(plan));
  EXPECT_EQ(again.pipelines[1].micro_batch, 4);
  EXPECT_NE(plan_fingerprint(plan), plan_fingerprint(parsed()));

  EXPECT_EQ(error_with("micro_batch = 4", "micro_batch = 3", text),
            "p.toml:6:16: 7 micro-batches of 2 to 3 make 15 sequences but global_batch is 16; change micro_batches, "
            "micro_batch or global_batch");
  EXPECT_EQ(error_with("micro_batch = 4", "micro_batch = 0", text),
            "p.toml:24:15: 'pipelines[1].micro_batch' is 0 but must be at least 1");
}

TEST(Plan, OwnMicroBatchThatEqualsThePlansIsNotWritten) {
  std::string text = example;
  text.replace(text.find("micro_batches = 2"), 17, "micro_batches = 2\nmicro_batch = 2");
  const Plan plan = parsed(text.c_str());
  EXPECT_EQ(plan.pipelines[1].micro_batch, 0);
  Plan named = parsed();
  named.pipelines[0].micro_batch = 2;
  EXPECT_EQ(plan_to_toml(named), plan_to_toml(parsed()));
  EXPECT_EQ(plan_fingerprint(named), plan_fingerprint(plan));
}

TEST(Plan, ChunksThatTheScheduleCannotRunAreRefused) {
  const auto error = [](const std::string& from, const std::string& to) { return error_with(from, to, interleaved); };
  EXPECT_EQ(
      error("schedule = \"interleaved-1f1b\"", "schedule = \"gpipe\""),
      "p.toml:15:10: stage 0 holds 2 chunks of layers, which schedule gpipe cannot run; give it one range [first, "
      "last) or use schedule = \"interleaved-1f1b\"");
  EXPECT_EQ(error("layers = [[0, 2], [4, 5]]", "layers = [0, 2]"),
            "p.toml:15:10: stage 0 holds one chunk of layers but schedule interleaved-1f1b needs at least 2; write "
            "layers = [[first, last], [first, last]] or use schedule = \"1f1b\"");
  EXPECT_EQ(error("layers = [[2, 4], [5, 6]]", "layers = [[2, 4], [5, 6], [6, 7]]"),
            "p.toml:18:10: stage 1 holds 3 chunks of layers but stage 0 holds 2; give every stage of the pipeline the "
            "same number");
  EXPECT_EQ(error("micro_batches = 4", "micro_batches = 3"),
            "p.toml:13:17: micro_batches is 3, no multiple of the 2 stages, which schedule interleaved-1f1b needs; "
            "change micro_batches or use schedule = \"1f1b\"");
  EXPECT_EQ(error("[[pipelines.stages]]\nlayers = [[2, 4], [5, 6]]\ngpu = \"GH200-96\"\n", ""),
            "p.toml:14:1: the pipeline has 1 stage but schedule interleaved-1f1b needs at least 2; add stages or use "
            "schedule = \"1f1b\"");
  EXPECT_EQ(error("layers = [[2, 4], [5, 6]]", "layers = [[2, 3], [5, 6]]"),
            "p.toml:15:10: chunk 1 of stage 0 starts at layer 4 but chunk 0 of stage 1 ends at 3");
  EXPECT_EQ(error("layers = [[0, 2], [4, 5]]", "layers = [[1, 2], [4, 5]]"),
            "p.toml:15:10: chunk 0 of stage 0 starts at layer 1, not 0");
  EXPECT_EQ(error("[5, 6]", "[5, 5]"), "p.toml:18:10: chunk 1 of stage 1 holds no layers: [5, 5)");
  EXPECT_EQ(error("[5, 6]", "[5, 6, 7]"), "p.toml:18:10: 'layers' must be [first, last), two integers, not 3");
  EXPECT_EQ(error("[5, 6]", "5"),
            "p.toml:18:19: 'pipelines[0].stages[1].layers' must be an array of arrays, not an integer");
  EXPECT_EQ(error("[5, 6]", "[5, \"6\"]"),
            "p.toml:18:23: 'pipelines[0].stages[1].layers' must be an integer, not a string");
  EXPECT_EQ(error("\"zero1\"", "\"zero4\""),
            "p.toml:4:22: 'optimizer_sharding' is 'zero4'; use one of: none, zero1, zero2, zero3");
}

TEST(Plan, CheckOfAPlanInMemorySaysTheSameAsTheFile) {
  Plan plan = parsed(interleaved);
  plan.pipelines[0].micro_batches = 3;
  plan.job.global_batch = 6;
  EXPECT_EQ(
      check_plan(plan).error().message(),
      "pipeline 0: micro_batches is 3, no multiple of the 2 stages, which schedule interleaved-1f1b needs; change "
      "micro_batches or use schedule = \"1f1b\"");
}

TEST(Plan, LayersOfTheLastChunkAreComparedWithTheModel) {
  Model model;
  model.name = "tiny-gpt";
  model.blocks = 4;  // and embedding and head: 6 layers
  model.max_sequence_length = 64;
  EXPECT_TRUE(check_plan(parsed(interleaved), model).has_value());
  model.blocks = 2;  // the first chunk of the last stage ends at layer 4, too
  EXPECT_EQ(check_plan(parsed(interleaved), model).error().message(),
            "pipeline 0 holds layers [0, 6) but model tiny-gpt has 4 layers; is the plan for another model, or is a "
            "stage missing?");
}

#ifdef SAILOR_HAVE_RAPIDCHECK
TEST(Plan, EveryInterleavedPlanReadsBackTheSame) {
  const bool holds = rc::check("plan_to_toml() and back", [] {
    Plan plan = parsed(interleaved);
    plan.optimizer_sharding = *rc::gen::element(OptimizerSharding::none, OptimizerSharding::zero1,
                                                OptimizerSharding::zero2, OptimizerSharding::zero3);
    plan.job.global_batch = 0;
    plan.pipelines.clear();
    const int pipelines = *rc::gen::inRange(1, 4);
    for (int p = 0; p < pipelines; ++p) {
      Pipeline pipeline;
      pipeline.count = *rc::gen::inRange(1, 4);
      pipeline.stages.resize(static_cast<std::size_t>(*rc::gen::inRange(2, 6)));
      pipeline.micro_batches = static_cast<int>(pipeline.stages.size()) * *rc::gen::inRange(1, 5);
      const int chunks = *rc::gen::inRange(2, 5);
      int layer = 0;
      for (int chunk = 0; chunk < chunks; ++chunk)
        for (Stage& stage : pipeline.stages) {
          const LayerRange range{layer, layer + *rc::gen::inRange(1, 4)};
          layer = range.last;
          stage.gpu = "g";
          if (chunk == 0)
            stage.layers = range;
          else
            stage.later_chunks.push_back(range);
        }
      plan.job.global_batch += pipeline.count * pipeline.micro_batches;
      plan.pipelines.push_back(std::move(pipeline));
    }
    RC_ASSERT(check_plan(plan).has_value());
    const auto again = parse_plan(plan_to_toml(plan), "p.toml");
    RC_ASSERT(again.has_value());
    RC_ASSERT(plan_to_toml(*again) == plan_to_toml(plan));
    for (std::size_t p = 0; p < plan.pipelines.size(); ++p)
      RC_ASSERT(again->pipelines[p].stages == plan.pipelines[p].stages);
  });
  EXPECT_TRUE(holds);
}
#endif

TEST(Plan, OriginOfAPredictionIsKeptAndChecked) {
  Plan plan = parsed();
  plan.prediction = PlanPrediction{.iteration_time = Seconds(1.0), .origin = "estimated"};
  const std::string text = plan_to_toml(plan);
  EXPECT_EQ(parse_plan(text, "plan.toml")->prediction->origin, "estimated");
  std::string guessed = text;
  guessed.replace(guessed.find("\"estimated\""), 11, "\"guessed\"");
  const auto refused = parse_plan(guessed, "plan.toml");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("guessed"), std::string::npos) << refused.error().message();
}

TEST(Plan, PredictionOfAnEditedPlanIsVoid) {
  Plan plan = parsed();
  plan.prediction = PlanPrediction{.iteration_time = Seconds(1.0)};
  std::string text = plan_to_toml(plan);
  const auto same = parse_plan(text, "p.toml");
  ASSERT_TRUE(same.has_value()) << same.error().message();
  EXPECT_TRUE(same->prediction.has_value());
  EXPECT_FALSE(same->prediction_is_stale);
  text.replace(text.find("tensor_parallel = 2"), 19, "tensor_parallel = 4");
  const auto edited = parse_plan(text, "p.toml");
  ASSERT_TRUE(edited.has_value()) << edited.error().message();
  EXPECT_FALSE(edited->prediction.has_value());
  EXPECT_TRUE(edited->prediction_is_stale);
}

TEST(Plan, PlanForAnotherModelIsRefused) {
  Model model;
  model.name = "other";
  model.blocks = 9;
  model.max_sequence_length = 64;
  const auto checked = check_plan(parsed(), model);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().message(),
            "pipeline 0 holds layers [0, 6) but model other has 11 layers; is the plan for another model, or is a "
            "stage missing?");
}

TEST(Placement, RanksFillNodesInOrderAndGroupsStayTogether) {
  const auto nodes = nodes_of_ranks(parsed(), {{"GH200-96", 4}, {"A100-40", 2}});
  ASSERT_TRUE(nodes.has_value());
  // GH groups of 2 and 2 share a node, as do the A100s of zone b; the last GH needs a node of its own.
  EXPECT_EQ(*nodes, (std::vector<int>{0, 0, 1, 0, 0, 1, 2}));
  EXPECT_FALSE(nodes_of_ranks(parsed(), {{"GH200-96", 1}}).has_value());
}

// Pipelines of the given groups, each on a GPU type.
Plan groups_plan(const std::vector<std::pair<int, std::vector<std::pair<std::string, int>>>>& pipelines) {
  Plan plan;
  for (const auto& [count, stages] : pipelines) {
    Pipeline pipeline{.count = count, .micro_batches = 1, .stages = {}};
    for (const auto& [gpu, size] : stages)
      pipeline.stages.push_back({.layers = {}, .gpu = gpu, .tensor_parallel = size});
    plan.pipelines.push_back(pipeline);
  }
  return plan;
}

TEST(Placement, PipelinesThatAlternateBetweenTypesWasteNoNode) {
  const Plan plan = groups_plan({{4, {{"A", 2}, {"V", 1}}}});
  // A: two groups a node; V: four. Nodes are numbered as they come into use.
  EXPECT_EQ(nodes_of_stages(plan, {{"A", 4}, {"V", 4}}).value(), (std::vector<int>{0, 1, 0, 1, 2, 1, 2, 1}));
}

TEST(Placement, GroupsGoToTheFirstNodeWithRoom) {
  const Plan plan = groups_plan({{2, {{"A", 3}}}, {3, {{"A", 1}}}});
  EXPECT_EQ(nodes_of_stages(plan, {{"A", 4}}).value(), (std::vector<int>{0, 1, 0, 1, 2}));
}

TEST(Placement, LargestNodesAreFilledFirstAndZonesHaveTheirOwn) {
  NodeSizes sizes;
  for (const char* zone : {"", "a"}) {
    sizes.add("A", zone, 4, 1);
    sizes.add("A", zone, 8, 1);
  }
  sizes.add("A", "", 2, 1);
  sizes.add("A", "b", 2, 1);
  EXPECT_EQ(sizes.of("A", ""), (std::vector<NodeSizes::Size>{{8, 1}, {4, 1}, {2, 1}}));
  EXPECT_EQ(sizes.of("A", "a"), (std::vector<NodeSizes::Size>{{8, 1}, {4, 1}}));
  EXPECT_EQ(sizes.of("A", "elsewhere"), sizes.of("A", ""));
  Plan plan = groups_plan({{5, {{"A", 4}}}});
  plan.pipelines[0].stages[0].zone = "a";
  // Two groups in the node of 8, one in that of 4; what there is no node for gets more of 4.
  EXPECT_EQ(nodes_of_stages(plan, sizes).value(), (std::vector<int>{0, 0, 1, 2, 3}));
  plan.pipelines[0].stages[0].tensor_parallel = 8;
  EXPECT_EQ(nodes_of_stages(plan, sizes).value(), (std::vector<int>{0, 1, 2, 3, 4}));
  plan.pipelines[0].stages[0].zone = "b";
  EXPECT_EQ(nodes_of_stages(plan, sizes).error().message(), "tensor_parallel 8 needs more A than the 2 of one node");
  // Not known: a node for each group, as large as it.
  EXPECT_EQ(nodes_of_stages(plan, {}).value(), (std::vector<int>{0, 1, 2, 3, 4}));
}

#ifdef SAILOR_HAVE_RAPIDCHECK
TEST(Placement, FoldedUseOfNodesIsThatOfEveryNode) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<std::string> types{"A", "B"};
    NodeSizes sizes;
    const bool powers_of_two = *rc::gen::arbitrary<bool>();
    for (const std::string& type : types)
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
        const int devices = powers_of_two ? 1 << *rc::gen::inRange(2, 5) : *rc::gen::inRange(4, 12);
        sizes.add(type, "", devices, *rc::gen::inRange(0, 20));
      }
    std::vector<std::pair<int, std::vector<std::pair<std::string, int>>>> pipelines;
    for (int i = *rc::gen::inRange(1, 4); i > 0; --i) {
      pipelines.push_back({*rc::gen::inRange(1, 60), {}});
      for (int stage = *rc::gen::inRange(1, 5); stage > 0; --stage)
        pipelines.back().second.emplace_back(*rc::gen::elementOf(types),
                                             powers_of_two ? 1 << *rc::gen::inRange(0, 3) : *rc::gen::inRange(1, 5));
    }
    const Plan plan = groups_plan(pipelines);
    const std::vector<int> nodes = nodes_of_stages(plan, sizes).value();
    NodeUse use;
    RC_ASSERT(use.place(groups_plan({{7, {{"B", 1}, {"A", 2}}}}), {}).has_value());  // leaves nothing behind
    RC_ASSERT(use.place(plan, sizes).has_value());

    using Content = std::map<int, int>;  // groups by stage
    std::map<int, Content> by_node;
    std::vector<bool> with_next;
    std::size_t next = 0;
    int first_stage = 0;
    for (const Pipeline& pipeline : plan.pipelines) {
      const std::size_t stages = pipeline.stages.size();
      with_next.resize(with_next.size() + stages, true);
      for (int copy = 0; copy < pipeline.count; ++copy, next += stages)
        for (std::size_t i = 0; i < stages; ++i) {
          const int stage = first_stage + static_cast<int>(i);
          ++by_node[nodes[next + i]][stage];
          if (nodes[next + i] != nodes[next + (i + 1) % stages]) with_next[static_cast<std::size_t>(stage)] = false;
        }
      first_stage += static_cast<int>(stages);
    }
    std::map<Content, std::int64_t> expected;
    for (const auto& [node, content] : by_node) ++expected[content];
    std::map<Content, std::int64_t> folded;
    for (const NodeUse::Node& node : use.nodes()) {
      Content content;
      for (const NodeUse::Group& group : use.groups_of(node)) content[group.stage] = group.count;
      folded[content] += node.count;
    }
    RC_ASSERT(folded == expected);
    for (std::size_t stage = 0; stage < with_next.size(); ++stage) RC_ASSERT(use.with_next(stage) == with_next[stage]);
  }));
}
#endif

TEST(Plan, ContextAndExpertParallelismAreWrittenAndRead) {
  Plan plan = parsed(interleaved);
  EXPECT_EQ(plan.context_parallel, 1);  // plans of earlier versions
  EXPECT_EQ(plan.expert_parallel, 1);
  EXPECT_EQ(plan_to_toml(plan).find("_parallel = 1  #"), std::string::npos);
  const std::string fingerprint = plan_fingerprint(plan);
  plan.context_parallel = 2;
  plan.expert_parallel = 4;
  ASSERT_TRUE(check_plan(plan).has_value());
  const auto again = parse_plan(plan_to_toml(plan), "p.toml");
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->context_parallel, 2);
  EXPECT_EQ(again->expert_parallel, 4);
  EXPECT_NE(plan_fingerprint(plan), fingerprint);
  EXPECT_EQ(again->ranks(), 8);  // two pipelines of two stages, twice
  EXPECT_EQ(describe(*again),
            "2 pipelines of 2 stages of 2 chunks on GH200-96, micro-batch 1, context parallel 2, expert parallel 4, "
            "zero1");
}

TEST(Plan, ImpossibleDegreesAreRefused) {
  const auto problem = [](const std::string& keys) {
    std::string text = interleaved;
    text.insert(text.find("[job]"), keys);
    const auto plan = parse_plan(text, "p.toml");
    return plan ? std::string("none") : plan.error().message();
  };
  EXPECT_EQ(problem("context_parallel = 4\nexpert_parallel = 8\n"), "none");
  EXPECT_EQ(
      problem("context_parallel = 3\n"),
      "p.toml:5:20: context_parallel 3 divides sequences into 6 parts (two for each rank), and sequence_length 64 "
      "is no multiple of that; change context_parallel or sequence_length");
  EXPECT_EQ(
      problem("expert_parallel = 4\n"),
      "p.toml:5:19: expert_parallel 4 does not divide the 2 ranks of pipeline 0 that hold the same layers (count 2 "
      "x context_parallel 1; other pipelines' ranks do not join them); change expert_parallel, count or "
      "context_parallel");
  EXPECT_NE(problem("context_parallel = 0\n").find("'context_parallel' is 0"), std::string::npos);

  Plan plan = parsed(interleaved);
  plan.expert_parallel = 2;
  Model model = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  EXPECT_EQ(check_plan(plan, model).error().message(),
            "expert_parallel is 2 but model tiny-gpt has no experts; remove expert_parallel");
  model.experts = {.count = 3, .per_token = 1, .feed_forward = 8};
  EXPECT_EQ(check_plan(plan, model).error().message(),
            "expert_parallel 2 does not divide the 3 experts of tiny-gpt; use a degree that does");
  EXPECT_TRUE(check_trainable(plan).has_value());
}

TEST(Plan, ExpertParallelGroupsAreConsecutiveSharersOfAStage) {
  // Two stages, of tensor-parallel degrees 1 and 2; three parts of every sequence; two copies: six ranks share a layer.
  Plan plan;
  plan.context_parallel = 3;
  plan.expert_parallel = 2;
  Stage stage;
  stage.gpu = "cpu";
  stage.layers = {0, 1};
  plan.pipelines = {{.count = 2, .micro_batches = 1, .stages = {stage, stage}}};
  plan.pipelines[0].stages[1].tensor_parallel = 2;
  const std::vector<RankRole> roles = rank_roles(plan);
  ASSERT_EQ(roles.size(), 18U);
  const auto group = [&](int rank) { return expert_group(plan, roles[static_cast<std::size_t>(rank)]); };
  // First stage: ranks 0 to 2 of the first copy, 9 to 11 of the second.
  EXPECT_EQ(group(0), (std::vector{0, 1}));
  EXPECT_EQ(group(2), (std::vector{2, 9}));
  EXPECT_EQ(group(9), (std::vector{2, 9}));
  EXPECT_EQ(group(11), (std::vector{10, 11}));
  // Second stage: ranks 3 to 8, by part, then tensor-parallel index.
  EXPECT_EQ(group(3), (std::vector{3, 5}));
  EXPECT_EQ(group(4), (std::vector{4, 6}));
  EXPECT_EQ(group(8), (std::vector{8, 13}));
  for (const RankRole& role : roles)
    EXPECT_EQ(group(role.rank)[static_cast<std::size_t>(role.expert_parallel_index)], role.rank);
}

}  // namespace
}  // namespace sailor::plan_test
