#include "plan/original_plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "core/files.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor::original_plan_test {
namespace {

namespace fs = std::filesystem;

// Two stages of layers [0, 2) and [2, 4), three replicas: the second one differs. 7 micro-batches of 2: 3 + 2 + 2.
constexpr const char* example = R"({
  "zone": "a", "N": 3, "mbs": 2, "gbs": 14, "real": 1.25, "max_mem": 4000000000, "red_grads": 0.1,
  "pipeline_list": [{
    "num_stages": 2,
    "layers_per_stage": [[0, 1], [2, 3]],
    "tmp_per_stage": [
      [[[["GH-96", 4, "a"]], 4], [[["A100", 4, "b"]], 2], [[["GH-96", 4, "a"]], 4]],
      [[[["GH-96", 4, "a"]], 4], [[["GH-96", 1, "a"], ["GH-96", 1, "a"]], 2], [[["GH-96", 4, "a"]], 4]]
    ],
    "dp": [3, 3]
  }]
})";

Model four_layers() {
  Model model;
  model.name = "four";
  model.blocks = 2;
  model.max_sequence_length = 64;
  return model;
}

Result<std::string> gpu_name(std::string_view name) {
  if (name == "GH-96") return "GH200-96";
  if (name == "A100") return "A100-40";
  return fail(ErrorCode::not_found, fmt::format("GPU '{}' is not known", name), "add it");
}

Result<OriginalPlan> parse(const std::string& text) {
  const Model model = four_layers();
  return parse_original_plan(text, "o.json", {.model = model, .precision = Precision::tf32, .gpu_name = gpu_name});
}

std::string error_with(const std::string& from, const std::string& to) {
  std::string text = example;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto original = parse(text);
  return original ? "" : original.error().message();
}

TEST(OriginalPlan, ReplicasBecomePipelinesAndEqualOnesAreFolded) {
  const auto original = parse(example);
  ASSERT_TRUE(original.has_value()) << original.error().message();
  const Plan& plan = original->plan;
  EXPECT_EQ(plan.job.model, "four");
  EXPECT_EQ(plan.job.global_batch, 14);
  EXPECT_EQ(plan.job.sequence_length, 64);
  EXPECT_EQ(plan.job.precision, Precision::tf32);
  EXPECT_EQ(plan.micro_batch, 2);
  EXPECT_EQ(plan.schedule, Schedule::one_f_one_b);
  // The first replica takes the odd micro-batch, so it is no more like the third.
  ASSERT_EQ(plan.pipelines.size(), 3U);
  EXPECT_EQ(plan.pipelines[0].micro_batches, 3);
  EXPECT_EQ(plan.pipelines[1].micro_batches, 2);
  EXPECT_EQ(plan.pipelines[2].micro_batches, 2);
  const Stage gh{.layers = {0, 2}, .gpu = "GH200-96", .tensor_parallel = 4, .zone = "a"};
  const Stage a100{.layers = {0, 2}, .gpu = "A100-40", .tensor_parallel = 2, .zone = "b"};
  EXPECT_EQ(plan.pipelines[0].stages[0], gh);
  EXPECT_EQ(plan.pipelines[1].stages[0], a100);
  // A group of two machines with one GPU each counts as a group of two.
  EXPECT_EQ(plan.pipelines[1].stages[1].tensor_parallel, 2);
  EXPECT_EQ(plan.ranks(), (4 + 4) + (2 + 2) + (4 + 4));
  EXPECT_EQ(original->measured_time, Seconds(1.25));
  EXPECT_EQ(original->measured_memory, Bytes(4e9));

  // 6 micro-batches: two for each; the first and the third replica are alike.
  std::string even = example;
  even.replace(even.find("\"gbs\": 14"), 9, "\"gbs\": 12");
  const auto folded = parse(even);
  ASSERT_TRUE(folded.has_value()) << folded.error().message();
  ASSERT_EQ(folded->plan.pipelines.size(), 2U);
  EXPECT_EQ(folded->plan.pipelines[0].count, 2);
  EXPECT_EQ(folded->plan.pipelines[0].stages[0], gh);
  EXPECT_EQ(folded->plan.pipelines[1].count, 1);
}

TEST(OriginalPlan, WhatWasMeasuredAndTheNumberOfReplicasMayBeAbsent) {
  std::string text = example;
  for (const std::string part : {"\"real\": 1.25, ", "\"max_mem\": 4000000000, ", ",\n    \"dp\": [3, 3]"}) {
    const std::size_t at = text.find(part);
    ASSERT_NE(at, std::string::npos);
    text.erase(at, part.size());
  }
  const auto original = parse(text);
  ASSERT_TRUE(original.has_value()) << original.error().message();
  EXPECT_FALSE(original->measured_time.has_value());
  EXPECT_FALSE(original->measured_memory.has_value());
}

TEST(OriginalPlan, WhatIsWrongIsNamedWithThePathOfKeys) {
  EXPECT_EQ(error_with("\"mbs\": 2", "\"mbs\": 3"), "o.json: gbs: 14 is no multiple of mbs (3); change gbs or mbs");
  EXPECT_EQ(error_with("\"mbs\": 2, ", ""), "o.json: key 'mbs' is missing");
  EXPECT_EQ(error_with("\"mbs\": 2", "\"mbs\": 2.5"), "o.json: mbs: must be an integer");
  EXPECT_EQ(error_with("\"mbs\": 2", "\"mbs\": -2"), "o.json: mbs: is -2 but must be from 1 to 1048576");
  EXPECT_EQ(error_with("\"mbs\": 2", "\"mbs\": 7"),
            "o.json: gbs: gbs / mbs is 2, less than one micro-batch for each of the 3 data-parallel replicas; change "
            "gbs, mbs or the replicas");
  EXPECT_EQ(error_with("\"GH-96\", 4", "\"H-9000\", 4"),
            "o.json: pipeline_list[0].tmp_per_stage[0][0][0][0][0]: GPU 'H-9000' is not known; add it");
  EXPECT_EQ(
      error_with("[\"GH-96\", 1, \"a\"]", "[\"A100\", 1, \"a\"]"),
      "o.json: pipeline_list[0].tmp_per_stage[1][1][0][1]: GH200-96 in zone 'a' beside A100-40 in zone 'a' in one "
      "tensor-parallel group; Sailor's tensor-parallel groups have one GPU type and one zone");
  EXPECT_EQ(error_with("4, \"a\"]], 4]", "2, \"a\"]], 4]"),
            "o.json: pipeline_list[0].tmp_per_stage[0][0][1]: tensor parallel degree 4 on 2 GPUs");
  EXPECT_EQ(error_with("4, \"a\"]], 4]", "4]], 4]"),
            "o.json: pipeline_list[0].tmp_per_stage[0][0][0][0]: must be [gpu, GPUs, zone]");
  EXPECT_EQ(error_with("4, \"a\"]], 4]", "4, \"a\"]]]"),
            "o.json: pipeline_list[0].tmp_per_stage[0][0]: must be [[[gpu, GPUs, zone], ...], tensor parallel degree]");
  EXPECT_EQ(
      error_with("[[0, 1], [2, 3]]", "[[0, 1], [2, 4]]"),
      "o.json: pipeline_list[0].layers_per_stage[1][1]: layer 4 follows layer 2; a stage holds layers that follow "
      "one another");
  EXPECT_EQ(error_with("[[0, 1], [2, 3]]", "[[0], [2, 3]]"),
            "o.json: pipeline 0: stage 1 starts at layer 2 but stage 0 ends at 1");
  EXPECT_EQ(
      error_with("[[0, 1], [2, 3]]", "[[0, 1], [2]]"),
      "o.json: pipeline 0 holds layers [0, 3) but model four has 4 layers; is the plan for another model, or is a "
      "stage missing?");
  EXPECT_EQ(error_with("[[0, 1], [2, 3]]", "[[0, 1, 2, 3]]"),
            "o.json: pipeline_list[0].layers_per_stage: is of 1 stage but num_stages is 2");
  EXPECT_EQ(error_with("[[[[\"GH-96\", 4, \"a\"]], 4], [[[\"A100\"", "[[[[\"A100\""),
            "o.json: pipeline_list[0].tmp_per_stage[1]: 3 data-parallel replicas here but 2 in stage 0; Sailor's "
            "pipelines have as many replicas in every stage");
  EXPECT_EQ(error_with("[3, 3]", "[3, 2]"),
            "o.json: pipeline_list[0].dp[1]: is 2 but tmp_per_stage has 3 data-parallel replicas");
  EXPECT_EQ(error_with("\"real\": 1.25", "\"real\": 0"), "o.json: real: must be a number above 0");
  EXPECT_EQ(parse("[1]").error().message(), "o.json: must be an object, not array");
  EXPECT_TRUE(parse("{\"mbs\": ").error().message().starts_with("o.json: parse error at line 1"))
      << parse("{").error().what;
  const Model model = four_layers();
  EXPECT_EQ(load_original_plan("/no/such.json", {.model = model, .gpu_name = gpu_name}).error().code,
            ErrorCode::not_found);
}

/// What a plan trains, in an order that does not depend on how it was folded.
std::vector<std::string> rows_of(const Plan& plan) {
  std::vector<std::string> rows;
  for (const Pipeline& pipeline : plan.pipelines) {
    std::string row = fmt::format("{} of {}", pipeline.micro_batches, plan.micro_batch_of(pipeline));
    for (const Stage& stage : pipeline.stages)
      row += fmt::format(" [{}, {}) {} {} {}", stage.layers.first, stage.layers.last, stage.gpu, stage.tensor_parallel,
                         stage.zone);
    rows.insert(rows.end(), static_cast<std::size_t>(pipeline.count), row);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

/// Three replicas of two stages, seven micro-batches of 2.
Plan expressible() {
  const auto original = parse(example);
  EXPECT_TRUE(original.has_value());
  return original ? original->plan : Plan{};
}

TEST(OriginalPlan, IsWrittenAsTheOriginalReadsIt) {
  Plan plan = expressible();
  // In the wrong order: readers give the first pipelines the micro-batches that are left over.
  std::reverse(plan.pipelines.begin(), plan.pipelines.end());
  const auto text = original_plan_to_json(plan, {{"GH200-96", 4}, {"A100-40", 8}});
  ASSERT_TRUE(text.has_value()) << text.error().message();
  EXPECT_EQ(*text,
            R"({"pipeline_list":[{"num_stages":2,"layers_per_stage":[[0,1],[2,3]],)"
            R"("tmp_per_stage":[[[[["GH-96",4,"a"]],4],[[["GH-96",4,"a"]],4],[[["A100-40",8,"b"]],2]],)"
            R"([[[["GH-96",4,"a"]],4],[[["GH-96",4,"a"]],4],[[["GH-96",4,"a"]],2]]],"dp":[3,3]}],"mbs":2,"gbs":14})"
            "\n");
  // The reader knows A100-40 as A100.
  std::string renamed = *text;
  renamed.replace(renamed.find("A100-40"), 7, "A100");
  const auto again = parse(renamed);
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(rows_of(again->plan), rows_of(plan));
}

TEST(OriginalPlan, SaysWhyAPlanCannotBeWritten) {
  const auto why_not = [](const std::function<void(Plan&)>& change) {
    Plan plan = expressible();
    change(plan);
    const auto text = original_plan_to_json(plan, {});
    return text ? "" : text.error().what;
  };
  const std::string cannot = "the original Sailor's JSON cannot express this plan: ";
  EXPECT_EQ(why_not([](Plan&) {}), "");
  EXPECT_EQ(why_not([](Plan& plan) { plan.schedule = Schedule::gpipe; }),
            cannot + "its schedule is gpipe, the format's always 1f1b");
  EXPECT_EQ(why_not([](Plan& plan) { plan.optimizer_sharding = OptimizerSharding::zero1; }),
            cannot + "optimizer_sharding is zero1");
  EXPECT_EQ(why_not([](Plan& plan) { plan.pipelines[1].stages[1].recompute = Recompute::full; }),
            cannot + "stage 1 of pipeline 1 recomputes activations (full)");
  EXPECT_EQ(why_not([](Plan& plan) {
              plan.pipelines[1].stages[0].layers = {0, 1};
              plan.pipelines[1].stages[1].layers = {1, 4};
            }),
            cannot + "stage 0 holds layers [0, 2) in pipeline 0 and [0, 1) in pipeline 1");
  EXPECT_EQ(why_not([](Plan& plan) {
              plan.pipelines[2].stages.pop_back();
              plan.pipelines[2].stages[0].layers = {0, 4};
            }),
            cannot + "pipeline 0 has 2 stages and pipeline 2 has 1");
  EXPECT_EQ(why_not([](Plan& plan) { plan.pipelines[1].micro_batch = 4; }),
            cannot + "pipeline 0 has micro-batches of 2 and pipeline 1 of 4");
  EXPECT_EQ(why_not([](Plan& plan) { plan.pipelines[0].micro_batches = 4; }),
            cannot + "its pipelines have 2 to 4 micro-batches, the format's differ by one at most");
  EXPECT_EQ(why_not([](Plan& plan) {
              plan.pipelines[0].stages[0].later_chunks = {{3, 4}};
            }),
            cannot + "stage 0 holds several chunks of layers");
}

#ifdef SAILOR_HAVE_RAPIDCHECK
RC_GTEST_PROP(OriginalPlan, WhatIsWrittenIsReadBack, ()) {
  Plan plan;
  const Model model = four_layers();
  plan.job = {.model = model.name, .sequence_length = model.max_sequence_length, .precision = Precision::tf32};
  plan.micro_batch = *rc::gen::inRange(1, 9);
  const int stages = *rc::gen::inRange(1, 5);
  std::vector<LayerRange> layers;
  for (int s = 0; s < stages; ++s) layers.push_back({s, s + 1 == stages ? 4 : s + 1});
  const int entries = *rc::gen::inRange(1, 5);
  const int fewest = *rc::gen::inRange(1, 50);
  for (int i = 0; i < entries; ++i) {
    Pipeline pipeline{.count = *rc::gen::inRange(1, 4), .micro_batches = fewest + *rc::gen::inRange(0, 2)};
    for (const LayerRange& range : layers)
      pipeline.stages.push_back({.layers = range,
                                 .gpu = *rc::gen::element<std::string>("GH200-96", "A100-40"),
                                 .tensor_parallel = *rc::gen::element(1, 2, 4),
                                 .zone = *rc::gen::element<std::string>("a", "b")});
    plan.job.global_batch += pipeline.count * pipeline.micro_batches * plan.micro_batch;
    plan.pipelines.push_back(std::move(pipeline));
  }
  const auto text = original_plan_to_json(plan, {{"GH200-96", 4}, {"A100-40", 4}});
  RC_ASSERT(text.has_value());
  const auto again = parse_original_plan(
      *text, "o.json", {.model = model, .precision = Precision::tf32, .gpu_name = [](std::string_view name) {
                          return Result<std::string>(name == "GH-96" ? "GH200-96" : std::string(name));
                        }});
  RC_ASSERT(again.has_value());
  RC_ASSERT(rows_of(again->plan) == rows_of(plan));
  RC_ASSERT(again->plan.job.global_batch == plan.job.global_batch);
}
#endif

TEST(OriginalPlan, PublishedRunsAreRead) {
  const char* folder = std::getenv("SAILOR_PUBLISHED_DIR");
  if (folder == nullptr) GTEST_SKIP() << "SAILOR_PUBLISHED_DIR does not name the published files";
  const auto model = find_model("opt-350m-sailor", SAILOR_SOURCE_DIR "/profiles/models");
  ASSERT_TRUE(model.has_value()) << model.error().message();
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "validation" / "gh200-opt-350m")) {
    const std::string name = entry.path().stem().string();
    const auto original = load_original_plan(entry.path(), {.model = *model, .gpu_name = gpu_name});
    ASSERT_TRUE(original.has_value()) << original.error().message();
    // The names say nodes of four GPUs and the number of replicas: plan_config_N16_D4.
    int nodes = 0;
    int replicas = 0;
    ASSERT_EQ(std::sscanf(name.c_str(), "plan_config_N%d_D%d", &nodes, &replicas), 2) << name;
    EXPECT_EQ(original->plan.ranks(), 4 * nodes) << name;
    EXPECT_EQ(original->plan.data_parallel(), replicas) << name;
    EXPECT_EQ(original->plan.pipelines.size(), 1U) << name;
    EXPECT_EQ(original->plan.job.sequence_length, 2048) << name;
    EXPECT_TRUE(original->measured_time.has_value()) << name;
    EXPECT_TRUE(original->measured_memory.has_value()) << name;
    ++files;
  }
  EXPECT_EQ(files, 15);
}

}  // namespace
}  // namespace sailor::original_plan_test
