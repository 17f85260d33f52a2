// Plans as the configuration of other frameworks: the files they get, and what is refused.
#include "handover/handover.hpp"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/golden/golden.hpp"

namespace sailor::handover::handover_test {
namespace {

using sailor::testing::matches_golden;

const std::filesystem::path source = SAILOR_SOURCE_DIR;

Model llama() { return find_model("llama-3-8b", source / "profiles/models").value(); }

/// `data_parallel` pipelines of LLaMA-3-8B in bf16, stage i with layers up to ends[i].
Plan llama_plan(const std::vector<int>& ends, int data_parallel = 2, int tensor_parallel = 4) {
  Plan plan;
  plan.job = {.model = "llama-3-8b", .global_batch = 64, .sequence_length = 4096, .precision = Precision::bf16};
  plan.micro_batch = 2;
  plan.optimizer_sharding = OptimizerSharding::zero1;
  plan.origin.framework = "megatron-core";
  Pipeline pipeline{.count = data_parallel, .micro_batches = 64 / 2 / data_parallel, .stages = {}};
  int first = 0;
  for (const int last : ends) {
    pipeline.stages.push_back({.layers = {first, last}, .gpu = "H200-141", .tensor_parallel = tensor_parallel});
    first = last;
  }
  plan.pipelines = {pipeline};
  return plan;
}

std::string written(Format format, const Plan& plan, const Model& model = llama()) {
  const auto result = hand_over(format, plan, model, "a test");
  EXPECT_TRUE(result.has_value()) << result.error().message();
  return result ? result->text() : "";
}

void expect_refused(Format format, const Plan& plan, const Model& model, const std::string& what,
                    const std::string& hint) {
  const auto result = hand_over(format, plan, model, "a test");
  ASSERT_FALSE(result.has_value()) << result->text();
  EXPECT_NE(result.error().what.find(what), std::string::npos) << result.error().what;
  EXPECT_NE(result.error().hint.find(hint), std::string::npos) << result.error().hint;
}

/// Values of the arguments by name, without quotes; of flags "".
std::map<std::string, std::string> arguments_of(const std::string& text) {
  std::map<std::string, std::string> arguments;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    std::istringstream words(line);
    std::string name;
    std::string value;
    words >> name >> value;
    std::erase(value, '\'');
    EXPECT_TRUE(arguments.emplace(name, value).second) << name << " is there twice";
  }
  return arguments;
}

/// A list of names in tests/data, each with what stands behind it.
std::map<std::string, std::string> known_names(const std::string& file) {
  std::map<std::string, std::string> known;
  std::istringstream lines(read_text_file(source / "tests/data" / file).value());
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("#")) known[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
  return known;
}

/// Values of NeMo's overrides by key, without quotes.
std::map<std::string, std::string> overrides_of(const std::string& text) {
  std::map<std::string, std::string> overrides;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ") || line.starts_with("  #")) continue;
    const std::size_t equals = line.find('=');
    std::string value = line.substr(equals + 1);
    std::erase(value, '\'');
    EXPECT_TRUE(overrides.emplace(line.substr(2, equals - 2), value).second) << line << " is there twice";
  }
  return overrides;
}

TEST(Handover, MegatronGetsUnequalStages) {
  Plan plan = llama_plan({9, 18, 26, 34});
  plan.prediction = PlanPrediction{.iteration_time = Seconds(4.5), .peak_memory = gib * 61.0};
  const std::string text = written(Format::megatron, plan);
  EXPECT_TRUE(matches_golden("handover_megatron.txt", text));
  EXPECT_EQ(arguments_of(text).at("--pipeline-model-parallel-layout"), "Et*8|t*9|t*8|t*7L");
}

TEST(Handover, MegatronGetsNoLayoutForEqualStages) {
  Plan plan = llama_plan({17, 34}, 1, 1);
  plan.optimizer_sharding = OptimizerSharding::none;
  for (Stage& stage : plan.pipelines[0].stages) stage.recompute = Recompute::full;
  const auto arguments = arguments_of(written(Format::megatron, plan));
  EXPECT_FALSE(arguments.contains("--pipeline-model-parallel-layout"));
  // Nothing that needs several ranks of a kind.
  for (const char* name : {"--sequence-parallel", "--use-distributed-optimizer", "--overlap-grad-reduce",
                           "--overlap-param-gather", "--use-tp-pp-dp-mapping"})
    EXPECT_FALSE(arguments.contains(name)) << name;
  EXPECT_EQ(arguments.at("--recompute-granularity"), "full");
  EXPECT_EQ(arguments.at("--recompute-method"), "uniform");
  EXPECT_EQ(arguments.at("--recompute-num-layers"), "1");
}

TEST(Handover, MegatronGetsVirtualStagesInTheOrderOfThePipeline) {
  Plan plan = llama_plan({17, 34}, 2, 4);
  plan.schedule = Schedule::interleaved_1f1b;
  std::vector<Stage>& stages = plan.pipelines[0].stages;
  stages[0].layers = {0, 9};
  stages[1].layers = {9, 17};
  stages[0].later_chunks = {{17, 25}};
  stages[1].later_chunks = {{25, 34}};
  auto arguments = arguments_of(written(Format::megatron, plan));
  EXPECT_EQ(arguments.at("--num-virtual-stages-per-pipeline-rank"), "2");
  EXPECT_FALSE(arguments.contains("--pipeline-model-parallel-layout"));
  stages[0].later_chunks = {{17, 26}};
  stages[1].later_chunks = {{26, 34}};
  arguments = arguments_of(written(Format::megatron, plan));
  EXPECT_EQ(arguments.at("--pipeline-model-parallel-layout"), "Et*8|t*8|t*9|t*7L");
  EXPECT_FALSE(arguments.contains("--num-virtual-stages-per-pipeline-rank"));
}

TEST(Handover, MegatronGetsExpertsLatentAttentionAndWindows) {
  Model model = llama();
  model.experts = {.count = 64, .per_token = 6, .feed_forward = 1408, .shared_feed_forward = 2816, .first_dense = 1};
  model.latent = {.query_rank = 1536, .key_value_rank = 512, .content = 128, .position = 64, .value = 128};
  auto arguments = arguments_of(written(Format::megatron, llama_plan({17, 34}), model));
  EXPECT_EQ(arguments.at("--moe-layer-freq"), "([0]*1+[1]*31)");
  EXPECT_EQ(arguments.at("--moe-shared-expert-intermediate-size"), "2816");
  EXPECT_EQ(arguments.at("--kv-lora-rank"), "512");
  EXPECT_FALSE(arguments.contains("--num-query-groups"));

  model = llama();
  model.sliding_window = 128;
  model.full_attention_period = 2;
  model.attention_sinks = true;
  model.query_key_norm = true;
  const std::string text = written(Format::megatron, llama_plan({17, 34}), model);
  arguments = arguments_of(text);
  EXPECT_EQ(arguments.at("--window-size"), "(127,0)");
  EXPECT_EQ(arguments.at("--window-attn-skip-freq"), "2");
  EXPECT_EQ(arguments.at("--softmax-type"), "learnable");
  EXPECT_NE(text.find("Megatron-Core 0.15 to 0.16"), std::string::npos);
}

TEST(Handover, EveryArgumentIsOneOfMegatrons) {
  const auto known = known_names("megatron_arguments.txt");
  ASSERT_GT(known.size(), 50U);
  Model model = llama();
  model.experts = {.count = 8, .per_token = 2, .feed_forward = 14336, .capacity_factor = 1.5};
  model.head_size = 64;
  model.attention_input_bias = true;
  Plan plan = llama_plan({9, 18, 26, 34});
  for (Stage& stage : plan.pipelines[0].stages) stage.recompute = Recompute::selective;
  for (const auto& [name, value] : arguments_of(written(Format::megatron, plan, model)))
    EXPECT_TRUE(known.contains(name)) << name;
  // What only a later release has, and what the release says in its header.
  for (const auto& [name, value] : arguments_of(written(Format::megatron, llama_plan({17, 34})))) {
    ASSERT_TRUE(known.contains(name)) << name;
    EXPECT_EQ(known.at(name), "0.13") << name;
  }
}

TEST(Handover, Fp8ReachesMegatronAndNemoBesideBf16) {
  const auto known = known_names("megatron_arguments.txt");
  Plan plan = llama_plan({17, 34});
  plan.job.precision = Precision::fp8;
  const auto arguments = arguments_of(written(Format::megatron, plan, llama()));
  EXPECT_TRUE(arguments.contains("--bf16"));
  EXPECT_EQ(arguments.at("--fp8-format"), "hybrid");
  EXPECT_TRUE(known.contains("--fp8-format"));
  EXPECT_NE(written(Format::nemo, plan).find("bf16_with_fp8_mixed"), std::string::npos);
  plan.origin.framework = "megatron-deepspeed";
  expect_refused(Format::deepspeed, plan, llama(), "precision fp8", "--precision bf16");
  Model odd = llama();
  odd.feed_forward = 14344;
  expect_refused(Format::megatron, plan, odd, "feed_forward on a rank is 3586, no multiple of 16", "--precision bf16");
}

TEST(Handover, MegatronRefusesWhatItCannotRunAndNamesThePin) {
  const Format megatron = Format::megatron;
  const Model model = llama();
  Plan plan = llama_plan({17, 34});
  plan.pipelines[0].stages[1].tensor_parallel = 2;
  expect_refused(megatron, plan, model, "Megatron-Core cannot run this: stage 0 of pipeline 0 has the tensor-parallel",
                 "plan with --framework megatron-core, or with --pin tensor_parallel=4");
  plan = llama_plan({17, 34});
  plan.optimizer_sharding = OptimizerSharding::zero3;
  expect_refused(megatron, plan, model, "optimizer_sharding zero3", "--pin optimizer_sharding=zero1");
  plan = llama_plan({17, 34});
  plan.schedule = Schedule::gpipe;
  expect_refused(megatron, plan, model, "gpipe", "--pin schedule=1f1b");
  plan = llama_plan({17, 34});
  plan.job.precision = Precision::tf32;
  expect_refused(megatron, plan, model, "tf32", "--precision bf16");
  expect_refused(megatron, llama_plan({34}, 2, 16), model, "8 key and value heads, which tensor parallelism of 16",
                 "sailor-train");
}

TEST(Handover, MegatronRefusesArchitecturesAndNamesAllReasons) {
  Model model = llama();
  model.norm_placement = NormPlacement::post;
  model.activation = Activation::relu;
  const auto result = hand_over(Format::megatron, llama_plan({34}), model, "a test");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().what,
            "Megatron-Core cannot run model llama-3-8b: its arguments do not have norms behind attention and "
            "feed-forward part (post-norm); ReLU (it has GELU, squared ReLU and SwiGLU)");
}

TEST(Handover, TorchtitanGetsModulesOfEveryStage) {
  Plan plan = llama_plan({2, 4, 19, 34}, 4, 2);
  plan.origin.framework = "torch-fsdp";
  EXPECT_TRUE(matches_golden("handover_torchtitan.txt", written(Format::torchtitan, plan)));
  EXPECT_TRUE(matches_golden("handover_torchtitan.toml", written(Format::torchtitan_toml, plan)));
  // fp8 is bf16 with a converter, which options of 0.3 cannot name.
  Plan narrow = plan;
  narrow.job.precision = Precision::fp8;
  const std::string with_converter = written(Format::torchtitan_toml, narrow);
  EXPECT_NE(with_converter.find("mixed_precision_param = \"bfloat16\""), std::string::npos);
  EXPECT_NE(with_converter.find("[quantize.linear.float8]\nfilter_fqns = [\"output\"]\n"), std::string::npos);
  EXPECT_NE(with_converter.find("converters = [\"quantize.linear.float8\"]"), std::string::npos);
  expect_refused(Format::torchtitan, narrow, llama(), "precision fp8 by options", "--format torchtitan-toml");
}

TEST(Handover, TorchtitanGetsDataParallelismOfEachKind) {
  Plan plan = llama_plan({34}, 4, 1);
  const auto settings = [&](OptimizerSharding sharding) {
    plan.optimizer_sharding = sharding;
    return arguments_of(written(Format::torchtitan, plan));
  };
  auto arguments = settings(OptimizerSharding::none);
  EXPECT_EQ(arguments.at("--parallelism.data_parallel_replicate_degree"), "4");
  EXPECT_EQ(arguments.at("--parallelism.data_parallel_shard_degree"), "1");
  EXPECT_EQ(arguments.at("--training.local_batch_size"), "2");
  arguments = settings(OptimizerSharding::zero2);
  EXPECT_EQ(arguments.at("--parallelism.data_parallel_shard_degree"), "4");
  EXPECT_EQ(arguments.at("--parallelism.fsdp_reshard_after_forward"), "never");
  EXPECT_EQ(settings(OptimizerSharding::zero3).at("--parallelism.fsdp_reshard_after_forward"), "always");
  plan.sharding_degree = 2;  // two groups of two
  arguments = settings(OptimizerSharding::zero3);
  EXPECT_EQ(arguments.at("--parallelism.data_parallel_replicate_degree"), "2");
  EXPECT_EQ(arguments.at("--parallelism.data_parallel_shard_degree"), "2");
  plan.context_parallel = 2;  // eight replicas, of which the two that divide a sequence are in one group
  arguments = settings(OptimizerSharding::zero3);
  EXPECT_EQ(arguments.at("--parallelism.data_parallel_replicate_degree"), "4");
  EXPECT_EQ(arguments.at("--parallelism.data_parallel_shard_degree"), "1");
  EXPECT_EQ(arguments.at("--parallelism.context_parallel_degree"), "2");
  plan.sharding_degree = 1;
  expect_refused(Format::torchtitan, plan, llama(), "sharding_degree 1 beside context_parallel 2",
                 "--pin sharding_degree");
  plan.context_parallel = 1;
  plan.sharding_degree = 2;
  plan.optimizer_sharding = OptimizerSharding::zero1;
  for (const Format format : {Format::nemo, Format::deepspeed})
    expect_refused(format, plan, llama(), "sharding within groups of replicas (sharding_degree 2)", "torchtitan");
  EXPECT_EQ(arguments_of(written(Format::megatron, plan)).at("--num-distributed-optimizer-instances"), "2");
  plan.sharding_degree = 0;
  EXPECT_FALSE(arguments_of(written(Format::megatron, plan)).contains("--num-distributed-optimizer-instances"));
}

TEST(Handover, TorchtitanRefusesWhatItCannotRun) {
  const Model model = llama();
  const Format format = Format::torchtitan;
  Plan plan = llama_plan({17, 34});
  plan.optimizer_sharding = OptimizerSharding::none;
  expect_refused(format, plan, model, "replicas that share nothing", "--pin optimizer_sharding=zero2");
  expect_refused(format, llama_plan({17, 34}, 1), model, "in a single pipeline", "--pin data_parallel=2");
  plan = llama_plan({17, 34});
  for (Stage& stage : plan.pipelines[0].stages) stage.recompute = Recompute::selective;
  expect_refused(format, plan, model, "recomputation of attention alone", "recompute=full");
  plan = llama_plan({17, 34});
  plan.pipelines[0].stages[1].gpu = "A100-80";
  expect_refused(format, plan, model, "pipelines on H200-141 and A100-80", "--pin gpu=H200-141");
  plan = llama_plan({17, 34});
  plan.job.precision = Precision::fp16;
  expect_refused(format, plan, model, "precision fp16", "--precision bf16");
}

TEST(Handover, DeepSpeedGetsItsFileAndTheUserTheRest) {
  Plan plan = llama_plan({17, 34});
  for (Stage& stage : plan.pipelines[0].stages) stage.recompute = Recompute::full;
  const auto result = hand_over(Format::deepspeed, plan, llama(), "a test");
  ASSERT_TRUE(result.has_value()) << result.error().message();
  const auto json = nlohmann::json::parse(result->text());
  EXPECT_EQ(json, nlohmann::json::parse(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 16, "zero_optimization": {"stage": 1}, "bf16": {"enabled": true}})"));
  ASSERT_EQ(result->notes.size(), 3U);
  EXPECT_NE(result->notes[0].find("num_stages=2"), std::string::npos);
  EXPECT_NE(result->notes[1].find("groups of 4 ranks"), std::string::npos);
  EXPECT_NE(result->notes[2].find("recomputes activations (full)"), std::string::npos);
}

TEST(Handover, FrameworksThatNumberRanksByStageGetMixedGpusOnlyWhereEveryRankGetsItsPlace) {
  // Stages on unlike GPUs: by torchrun, rank 4 of 16 would run stage 0 of pipeline 1 where the plan has stage 1 of 0.
  Plan plan = llama_plan({17, 34});
  plan.pipelines[0].stages[1].gpu = "A100-80";
  expect_refused(Format::deepspeed, plan, llama(), "pipelines on H200-141 and A100-80, as it numbers ranks by stage",
                 "sailor-submit --trainer deepspeed");
  for (const Format format : {Format::deepspeed, Format::torchtitan}) {
    const auto placed = hand_over(format, plan, llama(), "a test", Ranks::as_numbered);
    EXPECT_TRUE(placed.has_value()) << placed.error().message();
  }
  EXPECT_TRUE(hand_over(Format::deepspeed, llama_plan({17, 34}), llama(), "a test").has_value());
}

TEST(Handover, DeepSpeedRefusesPipelinesThatItDividesOtherwise) {
  expect_refused(Format::deepspeed, llama_plan({10, 34}), llama(), "stages of unequal layers", "pipeline_parallel=1");
  Plan plan = llama_plan({17, 34});
  plan.optimizer_sharding = OptimizerSharding::zero2;
  expect_refused(Format::deepspeed, plan, llama(), "zero2 beside pipelines", "optimizer_sharding=zero1");
}

TEST(Handover, NemoGetsUnequalStages) {
  Plan plan = llama_plan({9, 18, 26, 34});
  plan.prediction = PlanPrediction{.iteration_time = Seconds(4.5), .peak_memory = gib * 61.0};
  EXPECT_TRUE(matches_golden("handover_nemo.txt", written(Format::nemo, plan)));
}

TEST(Handover, NemoGetsTheSamePlanAsMegatron) {
  Plan plan = llama_plan({17, 34}, 2, 4);
  plan.schedule = Schedule::interleaved_1f1b;
  std::vector<Stage>& stages = plan.pipelines[0].stages;
  stages[0].layers = {0, 9};
  stages[1].layers = {9, 17};
  stages[0].later_chunks = {{17, 26}};
  stages[1].later_chunks = {{26, 34}};
  for (Stage& stage : stages) stage.recompute = Recompute::full;
  const auto megatron = arguments_of(written(Format::megatron, plan));
  const auto nemo = overrides_of(written(Format::nemo, plan));
  for (const auto& [argument, key] : std::map<std::string, std::string>{
           {"--tensor-model-parallel-size", "trainer.strategy.tensor_model_parallel_size"},
           {"--pipeline-model-parallel-size", "trainer.strategy.pipeline_model_parallel_size"},
           {"--pipeline-model-parallel-layout", "trainer.strategy.pipeline_model_parallel_layout"},
           {"--context-parallel-size", "trainer.strategy.context_parallel_size"},
           {"--micro-batch-size", "data.micro_batch_size"},
           {"--global-batch-size", "data.global_batch_size"},
           {"--seq-length", "data.seq_length"},
           {"--recompute-granularity", "model.config.recompute_granularity"},
           {"--recompute-method", "model.config.recompute_method"},
           {"--recompute-num-layers", "model.config.recompute_num_layers"},
           {"--num-layers", "model.config.num_layers"},
           {"--hidden-size", "model.config.hidden_size"},
           {"--ffn-hidden-size", "model.config.ffn_hidden_size"},
           {"--num-query-groups", "model.config.num_query_groups"}})
    EXPECT_EQ(nemo.at(key), megatron.at(argument)) << key;
  EXPECT_EQ(nemo.at("trainer.strategy.virtual_pipeline_model_parallel_size"), "2");
  // Nothing of the recipe's own is left where the plan has none of it.
  plan = llama_plan({34}, 1, 1);
  plan.optimizer_sharding = OptimizerSharding::none;
  const auto plain = overrides_of(written(Format::nemo, plan));
  for (const char* key : {"trainer.strategy.virtual_pipeline_model_parallel_size",
                          "trainer.strategy.pipeline_model_parallel_layout", "model.config.recompute_granularity"})
    EXPECT_EQ(plain.at(key), "None") << key;
  for (const char* key : {"trainer.strategy.sequence_parallel", "optim.config.use_distributed_optimizer",
                          "trainer.strategy.ddp.overlap_grad_reduce", "trainer.strategy.ddp.overlap_param_gather"})
    EXPECT_EQ(plain.at(key), "False") << key;
}

TEST(Handover, EveryOverrideIsOneOfNemos) {
  const auto known = known_names("nemo_overrides.txt");
  Model model = llama();
  model.experts = {.count = 8, .per_token = 2, .feed_forward = 14336};
  const auto overrides = overrides_of(written(Format::nemo, llama_plan({9, 18, 26, 34}), model));
  for (const auto& [key, value] : overrides) EXPECT_TRUE(known.contains(key)) << key;
  EXPECT_EQ(overrides.size(), known.size());
}

TEST(Handover, NemoRefusesWhatItCannotRun) {
  Plan plan = llama_plan({17, 34});
  plan.job.precision = Precision::fp32;
  expect_refused(Format::nemo, plan, llama(), "NeMo cannot run this: precision fp32", "--precision bf16");
  plan = llama_plan({17, 34});
  plan.optimizer_sharding = OptimizerSharding::zero2;
  expect_refused(Format::nemo, plan, llama(), "optimizer_sharding zero2", "optimizer_sharding=zero1");
  expect_refused(Format::nemo, llama_plan({34}, 2, 16), llama(), "8 key and value heads", "tensor_parallel");
}

TEST(Handover, ContextAndExpertParallelismReachMegatronAndNoOtherThatCannotSayThem) {
  const Model model = find_model("mixtral-8x7b", source / "profiles/models").value();
  Plan plan = llama_plan({17, 34}, 2, 1);
  plan.job.model = model.name;
  plan.context_parallel = 2;
  plan.expert_parallel = 4;
  const auto arguments = arguments_of(written(Format::megatron, plan, model));
  EXPECT_EQ(arguments.at("--context-parallel-size"), "2");
  EXPECT_EQ(arguments.at("--expert-model-parallel-size"), "4");
  const auto overrides = overrides_of(written(Format::nemo, plan, model));
  EXPECT_EQ(overrides.at("trainer.strategy.context_parallel_size"), "2");
  EXPECT_EQ(overrides.at("trainer.strategy.expert_model_parallel_size"), "4");
  expect_refused(Format::torchtitan, plan, model, "expert", "--pin expert_parallel=1");
  expect_refused(Format::deepspeed, plan, model, "context or expert parallelism", "megatron");
}

TEST(Handover, WhatNoPlanSaysStandsInTheHeaderWithMegatronsArguments) {
  Model model = llama();
  model.unplanned = {{"rope_scaling", R"({"factor":8.0,"rope_type":"llama3"})"},
                     {"n_group", "8"},
                     {"router_aux_loss_coef", "0.02", true},
                     {"swiglu_limit", "7.0"}};
  for (const Format format : {Format::megatron, Format::torchtitan}) {
    const auto handover = hand_over(format, llama_plan({34}, 8, 4), model, "a test");
    ASSERT_TRUE(handover) << handover.error().message();
    EXPECT_NE(handover->header.find("n_group = 8, router_aux_loss_coef = 0.02, swiglu_limit = 7.0."), std::string::npos)
        << handover->header;
  }
  const std::string text = written(Format::megatron, llama_plan({34}, 8, 4), model);
  EXPECT_NE(
      text.find("# Megatron-Core's arguments for that: --use-rope-scaling --rope-scaling-factor 8.0 "
                "--moe-router-num-groups 8 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.02\n"),
      std::string::npos)
      << text;
  const auto deepspeed = hand_over(Format::deepspeed, llama_plan({34}, 8, 4), model, "a test");
  ASSERT_TRUE(deepspeed) << deepspeed.error().message();
  EXPECT_NE(deepspeed->notes.front().find("rope_scaling"), std::string::npos);
}

// initialize_model_parallel() of Megatron-Core 0.13 to 0.16: order.endswith("pp") or pipeline_model_parallel_size == 1
// or expert_data_parallel_size == data_parallel_size, where the experts' replicas are world / (tp x ep x pp).
TEST(Handover, MegatronNumbersRanksAsItsExpertGroupsDemand) {
  const Model model = find_model("mixtral-8x7b", source / "profiles/models").value();
  for (const auto& [context, experts, by_stage] :
       {std::tuple(1, 1, false), std::tuple(1, 4, true), std::tuple(2, 1, true), std::tuple(2, 2, false)}) {
    SCOPED_TRACE(fmt::format("context {}, experts {}", context, experts));
    Plan plan = llama_plan({17, 34}, 4, 2);
    plan.job.model = model.name;
    plan.context_parallel = context;
    plan.expert_parallel = experts;
    for (const Format format : {Format::megatron, Format::nemo}) {
      const auto handover = hand_over(format, plan, model, "a test");
      ASSERT_TRUE(handover) << handover.error().message();
      EXPECT_EQ(handover->ranks_by_stage, by_stage);
      EXPECT_NE(handover->header.find(by_stage ? "by stage, then pipeline" : "by pipeline, then stage"),
                std::string::npos);
    }
    EXPECT_EQ(arguments_of(written(Format::megatron, plan, model)).contains("--use-tp-pp-dp-mapping"), !by_stage);
    EXPECT_EQ(overrides_of(written(Format::nemo, plan, model)).at("trainer.strategy.use_tp_pp_dp_mapping"),
              by_stage ? "False" : "True");
    // A single copy has no order to choose, and NeMo must not be told the one that it refuses.
    if (context == 2 && experts == 1) {
      Plan alone = llama_plan({17, 34}, 1, 2);
      alone.job.model = model.name;
      alone.context_parallel = context;
      EXPECT_EQ(overrides_of(written(Format::nemo, alone, model)).at("trainer.strategy.use_tp_pp_dp_mapping"), "False");
      EXPECT_FALSE(arguments_of(written(Format::megatron, alone, model)).contains("--use-tp-pp-dp-mapping"));
    }
    // By stage, rank r of another program would not run where the plan's rank r does: among equal GPUs only.
    plan.pipelines[0].stages[1].gpu = "A100-80";
    EXPECT_EQ(hand_over(Format::megatron, plan, model, "a test").has_value(), !by_stage);
    EXPECT_TRUE(hand_over(Format::megatron, plan, model, "a test", Ranks::as_numbered));
  }
}

}  // namespace
}  // namespace sailor::handover::handover_test
