#include <gtest/gtest.h>

#include <filesystem>

#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace sailor {
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

Plan parsed() {
  auto plan = parse_plan(example, "p.toml");
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message());
  return plan.value_or(Plan{});
}

std::string error_with(const std::string& from, const std::string& to) {
  std::string text = example;
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
                 .cluster_hash = "0",
                 .profile_hash = "1"};
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
  // GH group of 2 | A100 | GH group of 2 | A100 | GH: a change of type starts a new node.
  EXPECT_EQ(*nodes, (std::vector<int>{0, 0, 1, 2, 2, 3, 4}));
  EXPECT_FALSE(nodes_of_ranks(parsed(), {{"GH200-96", 1}}).has_value());
}

}  // namespace
}  // namespace sailor
