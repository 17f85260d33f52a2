#include "simulator/framework.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/files.hpp"

namespace sailor::simulator::framework_test {
namespace {

const std::filesystem::path folder = SAILOR_SOURCE_DIR "/profiles/frameworks";

constexpr const char* example = R"(schema_version = 1
name = "ours"
source = "a test"
[state.fp32]
weight_bytes = 4
gradient_bytes = 4
optimizer_bytes = 8
copy_bytes = 0
[state.bf16]
weight_bytes = 2
gradient_bytes = 2.5
optimizer_bytes = 8
copy_bytes = 4
[memory]
base_bytes = 3e9
base_source = "an assumption"
workspace_activations = 1.5
copies_reduced_gradients = true
attention_score_bytes = 9
[memory.base_bytes_by_gpu]
GH200-96 = 4e9
"A100-40" = 2_000_000_000
[time]
overlaps_transfers = true
overlaps_reduction = true
reduction_bucket_bytes = 5e8
transfer_overhead_s = 0.001
reduction_rate_bytes_per_s = 5e9
profiling_overhead = 0.25
time_error = 0.04
)";

std::string error_with(const std::string& from, const std::string& to) {
  std::string text = example;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto framework = parse_framework(text, "f.toml");
  return framework ? "" : framework.error().message();
}

TEST(Framework, WhatHasToBeEqualIsRead) {
  std::string text = example;
  text.insert(text.find("[memory]"),
              "[supports]\nrecompute = true\noptimizer_sharding = true\ntensor_parallel = true\n"
              "pipelines_alike = true\none_recompute = true\n");
  const auto read = parse_framework(text, "f.toml");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_TRUE(read->uniformity.pipelines_alike);
  EXPECT_FALSE(read->uniformity.one_tensor_parallel);
  EXPECT_TRUE(read->uniformity.one_recompute);
  EXPECT_FALSE(parse_framework(example, "f.toml")->uniformity.any());
}

std::string with_shardings(const std::string& value) {
  std::string text = example;
  text.insert(text.find("[memory]"),
              "[supports]\nrecompute = true\noptimizer_sharding = " + value + "\ntensor_parallel = true\n");
  return text;
}

TEST(Framework, ShardingsAreListedOrTrueForZero1) {
  using enum OptimizerSharding;
  const auto listed = parse_framework(with_shardings("[\"zero3\", \"zero2\"]"), "f.toml");
  ASSERT_TRUE(listed.has_value()) << listed.error().message();
  EXPECT_EQ(listed->shardings, (std::vector{zero2, zero3}));
  EXPECT_TRUE(listed->supports(none) && listed->supports(zero3));
  ASSERT_FALSE(listed->check(zero1).has_value());
  EXPECT_EQ(listed->check(zero1).error().message(),
            "framework 'ours' does not train with optimizer_sharding zero1; use optimizer_sharding none, zero2, zero3, "
            "or name another framework with --framework");
  // As before there were lists: ZeRO-1 is planned, and whatever a plan says is predicted.
  for (const std::string& text : {std::string(example), with_shardings("true")}) {
    const auto framework = parse_framework(text, "f.toml");
    ASSERT_TRUE(framework.has_value()) << framework.error().message();
    EXPECT_EQ(framework->shardings, std::vector{zero1});
    EXPECT_TRUE(framework->check(zero3).has_value());
  }
  EXPECT_TRUE(parse_framework(with_shardings("false"), "f.toml")->shardings.empty());
  const auto error_of = [](const std::string& value) {
    const auto framework = parse_framework(with_shardings(value), "f.toml");
    return framework ? "" : framework.error().message();
  };
  EXPECT_EQ(error_of("[\"zero4\"]"),
            "f.toml:16:22: 'supports.optimizer_sharding' has 'zero4'; list some of: zero1, zero2, zero3");
  EXPECT_EQ(error_of("[\"zero1\", \"zero1\"]"), "f.toml:16:22: 'supports.optimizer_sharding' has 'zero1' twice");
}

TEST(Framework, MegatronCoreRunsOneGridOfRanks) {
  const auto framework = find_framework("megatron-core", folder);
  ASSERT_TRUE(framework.has_value()) << framework.error().message();
  EXPECT_TRUE(framework->uniformity.pipelines_alike && framework->uniformity.one_tensor_parallel &&
              framework->uniformity.one_recompute);
  // bf16: 2 + 4 bytes, and 12 that --use-distributed-optimizer divides.
  const auto state = framework->state_of(Precision::bf16);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->weight + state->gradient + state->copy, Bytes(6));
  EXPECT_EQ(state->optimizer, Bytes(12));
  EXPECT_FALSE(framework->state_of(Precision::tf32).has_value());
}

TEST(Framework, EveryKeyIsRead) {
  const auto read = parse_framework(example, "f.toml");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  const Framework& f = *read;
  EXPECT_EQ(f.name, "ours");
  EXPECT_EQ(f.source, "a test");
  EXPECT_EQ(f.state.size(), 2U);
  EXPECT_EQ(f.state.at(Precision::bf16).weight, Bytes(2));
  EXPECT_EQ(f.state.at(Precision::bf16).gradient, Bytes(2.5));
  EXPECT_EQ(f.state.at(Precision::bf16).optimizer, Bytes(8));
  EXPECT_EQ(f.state.at(Precision::bf16).copy, Bytes(4));
  EXPECT_EQ(f.base, Bytes(3e9));
  EXPECT_EQ(f.base_source, "an assumption");
  EXPECT_EQ(f.base_by_gpu, (std::map<std::string, Bytes>{{"A100-40", Bytes(2e9)}, {"GH200-96", Bytes(4e9)}}));
  EXPECT_EQ(f.workspace_activations, 1.5);
  EXPECT_TRUE(f.copies_reduced_gradients);
  EXPECT_EQ(f.attention_score, Bytes(9));
  EXPECT_TRUE(f.overlaps_transfers);
  EXPECT_TRUE(f.overlaps_reduction);
  EXPECT_EQ(f.reduction_bucket, Bytes(5e8));
  EXPECT_EQ(f.transfer_overhead, Seconds(0.001));
  EXPECT_EQ(f.reduction_rate, BytesPerSecond(5e9));
  EXPECT_EQ(f.profiling_overhead, 0.25);
  EXPECT_EQ(f.time_error, 0.04);
}

TEST(Framework, KernelsOfLayersAreReadWithTheirEfficiency) {
  const std::string layers =
      "[layers]\nsequence_parallel = true\nfused_norms = true\nfused_loss = true\n[layers.efficiency]\ncompute = 0.5\n"
      "attention_forward = 0.4\nattention_backward = 0.3\nmemory = 0.7\nlaunch_s = 2e-5\n[time]\n";
  std::string text = example;
  text.replace(text.find("[time]\n"), 7, layers);
  const auto read = parse_framework(text, "f.toml");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_TRUE(read->kernels.sequence_parallel);
  EXPECT_TRUE(read->kernels.fused_norms);
  EXPECT_TRUE(read->kernels.fused_loss);
  ASSERT_TRUE(read->kernels.efficiency.has_value());
  EXPECT_EQ(read->kernels.efficiency->compute, 0.5);
  EXPECT_EQ(read->kernels.efficiency->attention_forward, 0.4);
  EXPECT_EQ(read->kernels.efficiency->attention_backward, 0.3);
  EXPECT_EQ(read->kernels.efficiency->memory, 0.7);
  EXPECT_EQ(read->kernels.efficiency->launch, Seconds(2e-5));
  EXPECT_EQ(read->kernels.efficiency->error, 0.0);
  std::string fitted = text;
  fitted.replace(fitted.find("launch_s = 2e-5"), 15, "launch_s = 2e-5\nerror = 0.13");
  EXPECT_EQ(parse_framework(fitted, "f.toml").value().kernels.efficiency->error, 0.13);

  text.replace(text.find("compute = 0.5"), 13, "compute = 1.5");
  const auto refused = parse_framework(text, "f.toml");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("'layers.efficiency.compute' is 1.5"), std::string::npos)
      << refused.error().message();
}

TEST(Framework, FilesOfEarlierVersionsMeanWhatTheyMeant) {
  const Framework old = parse_framework(example, "f.toml").value();  // without any of the later keys
  EXPECT_EQ(old.stage_messages, StageMessages::whole);
  EXPECT_EQ(old.kernels.attention, Attention::unfused);
  EXPECT_FALSE(old.kernels.recomputes_elementwise);
  EXPECT_FALSE(old.keeps_stage_inputs);
  for (const double arrays :
       {old.workspace_scores, old.workspace_hidden_states, old.workspace_gradients, old.extra_logits})
    EXPECT_EQ(arrays, 0.0);

  std::string text = example;
  const auto insert = [&](const std::string& behind, const std::string& lines) {
    text.insert(text.find(behind) + behind.size(), lines);
  };
  insert("[time]\n", "stage_messages = \"pieces\"\n");
  insert("workspace_activations = 1.5\n",
         "workspace_scores = 3\nworkspace_hidden_states = 6\nworkspace_gradients = 1\nextra_logits = 2\n"
         "keeps_stage_inputs = true\n");
  text += "[layers]\nrecomputes_elementwise = true\nattention = \"unfused\"\n";
  const auto read = parse_framework(text, "f.toml");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->stage_messages, StageMessages::pieces);
  EXPECT_EQ(read->workspace_scores, 3.0);
  EXPECT_EQ(read->workspace_hidden_states, 6.0);
  EXPECT_EQ(read->workspace_gradients, 1.0);
  EXPECT_EQ(read->extra_logits, 2.0);
  EXPECT_TRUE(read->keeps_stage_inputs);
  EXPECT_TRUE(read->kernels.recomputes_elementwise);

  EXPECT_EQ(error_with("[time]\n", "[time]\nstage_messages = \"halves\"\n"),
            "f.toml:24:18: 'time.stage_messages' is 'halves'; use one of: whole, pieces, once");
  EXPECT_EQ(error_with("time_error = 0.04\n", "time_error = 0.04\n[layers]\nattention = \"fused\"\n"),
            "f.toml:32:13: 'layers.attention' is \"fused\", which keeps no scores, but attention_score_bytes is 9; set "
            "attention_score_bytes to 0");
}

TEST(Framework, PrecisionThatItDoesNotTrainWithIsRefusedWithThoseItDoes) {
  const Framework framework = parse_framework(example, "f.toml").value();
  EXPECT_EQ(framework.state_of(Precision::fp32)->optimizer, Bytes(8));
  const auto refused = framework.state_of(Precision::tf32);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
  EXPECT_EQ(refused.error().message(),
            "framework 'ours' does not train with precision tf32; use precision fp32, bf16, or name another framework "
            "with --framework");
}

TEST(Framework, BaseMemoryMayBeLeftToTheProfile) {
  std::string text = example;
  for (const std::string line : {"base_bytes = 3e9\n", "base_source = \"an assumption\"\n",
                                 "[memory.base_bytes_by_gpu]\n", "GH200-96 = 4e9\n", "\"A100-40\" = 2_000_000_000\n"})
    text.erase(text.find(line), line.size());
  const auto framework = parse_framework(text, "f.toml");
  ASSERT_TRUE(framework.has_value()) << framework.error().message();
  EXPECT_FALSE(framework->base.has_value());
  EXPECT_TRUE(framework->base_by_gpu.empty());
}

TEST(Framework, BadFilesAreRefusedWithLineColumnAndReason) {
  EXPECT_EQ(error_with("reduction_rate_bytes_per_s = 5e9", "reduction_rate_bytes_per_s = 1e-300"),
            "f.toml:28:30: 'time.reduction_rate_bytes_per_s' is 1e-300 but must be 0 or at least 1000");
  EXPECT_EQ(error_with("reduction_rate_bytes_per_s = 5e9", "reduction_rate_bytes_per_s = -1"),
            "f.toml:28:30: 'time.reduction_rate_bytes_per_s' is -1 but must be at least 0");
  EXPECT_EQ(error_with("weight_bytes = 2\n", "weight_bytes = \"2\"\n"),
            "f.toml:10:16: 'state.bf16.weight_bytes' must be a number, not a string");
  EXPECT_EQ(error_with("copy_bytes = 0\n", ""), "f.toml:4:1: key 'state.fp32.copy_bytes' is missing");
  EXPECT_EQ(error_with("[state.bf16]", "[state.fp4]"),
            "f.toml:9:1: unknown key 'state.fp4'; check the spelling or remove it");
  EXPECT_EQ(error_with("base_source = \"an assumption\"\n", ""), "f.toml:14:1: key 'memory.base_source' is missing");
  EXPECT_EQ(error_with("base_bytes = 3e9\n", ""),
            "f.toml:15:15: 'memory.base_source' is there without base_bytes; add base_bytes or remove it");
  EXPECT_EQ(error_with("GH200-96 = 4e9", "GH200-96 = -1"),
            "f.toml:21:12: 'memory.base_bytes_by_gpu.GH200-96' is -1 but must be at least 0");
  EXPECT_EQ(error_with("time_error = 0.04", "time_error = nan"),
            "f.toml:30:14: 'time.time_error' is nan but must be finite");
  EXPECT_EQ(error_with("overlaps_transfers = true", "overlaps_transfers = 1"),
            "f.toml:24:22: 'time.overlaps_transfers' must be true or false, not an integer");
  EXPECT_EQ(error_with("overlaps_transfers = true", "overlap_transfers = true"),
            "f.toml:24:21: unknown key 'overlap_transfers'; did you mean 'overlaps_transfers'?");
  EXPECT_EQ(parse_framework("schema_version = 1\nname = \"n\"\nsource = \"s\"\n[state]\n", "f.toml").error().message(),
            "f.toml:4:1: [state] has no precision; add [state.fp32], [state.tf32], [state.bf16], [state.fp16] or "
            "[state.fp8]");
}

TEST(Framework, OurRuntimeKeepsFp32MasterWeightsBesideNarrowOnesAndSaysWhatItAssumes) {
  const auto framework = find_framework("sailor", folder);
  ASSERT_TRUE(framework.has_value()) << framework.error().message();
  EXPECT_TRUE(framework->state_of(Precision::fp32).has_value());
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const StateBytes state = framework->state_of(precision).value();
    EXPECT_EQ(state.weight, Bytes(2));
    EXPECT_EQ(state.gradient, Bytes(4));
    EXPECT_EQ(state.optimizer, Bytes(12));  // two moments, and master weights
    EXPECT_EQ(state.copy, Bytes(0));
  }
  EXPECT_EQ(framework->base, Bytes(1073741824));
  EXPECT_TRUE(framework->base_source.starts_with("assumption"));
  EXPECT_TRUE(framework->supports_recompute);
  EXPECT_TRUE(framework->supports(Schedule::one_f_one_b));
  EXPECT_FALSE(framework->supports(Schedule::gpipe));
  EXPECT_TRUE(Framework{}.supports(Schedule::interleaved_1f1b));
}

TEST(Framework, MegatronDeepSpeedKeepsTwentyBytesForEveryParameter) {
  const auto framework = find_framework("Megatron-DeepSpeed", folder);
  ASSERT_TRUE(framework.has_value()) << framework.error().message();
  // fp32 and tf32: weight, gradient, two moments of Adam, flattened gradient: 4 + 4 + 8 + 4.
  // bf16 and fp16: 2 + 2 + 8 + 4 of master weights + 4 of fp32 gradients.
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16}) {
    const StateBytes state = framework->state_of(precision).value();
    EXPECT_EQ((state.weight + state.gradient + state.optimizer + state.copy).value(), 20.0) << to_string(precision);
  }
}

TEST(Framework, SequencesAndFp8ProductsHaveToDivide) {
  auto framework = find_framework("megatron-core", folder);
  ASSERT_TRUE(framework.has_value()) << framework.error().message();
  Model model;
  model.name = "any";
  model.hidden = 64;
  model.attention_heads = model.key_value_heads = 8;
  model.feed_forward = 128;
  const auto refused = [&](const simulator::Division& division) {
    const auto checked = framework->check(model, division);
    return checked ? "good" : checked.error().message();
  };
  EXPECT_EQ(refused({.tensor_parallel = 2, .context_parallel = 2, .sequence_length = 36}), "good");
  EXPECT_NE(refused({.tensor_parallel = 4, .context_parallel = 2, .sequence_length = 36}).find("has to divide the 36"),
            std::string::npos);
  EXPECT_EQ(refused({.context_parallel = 8, .sequence_length = 36}), "good");  // another check's
  // 8 ranks have 16 tokens each of 128, and 9 of two sequences of 36.
  simulator::Division eight{.tensor_parallel = 4,
                            .context_parallel = 2,
                            .precision = Precision::fp8,
                            .sequence_length = 128,
                            .micro_batch = 1};
  EXPECT_EQ(refused(eight), "good");
  eight.sequence_length = 64;
  EXPECT_NE(refused(eight).find("a micro-batch of 64 tokens is divided among 8 ranks"), std::string::npos);
  eight.micro_batch = 2;
  EXPECT_EQ(refused(eight), "good");
  model.feed_forward = 96;
  EXPECT_NE(refused(eight).find("leaves feed_forward of 24 on a rank"), std::string::npos) << refused(eight);
  eight.precision = Precision::bf16;
  EXPECT_EQ(refused(eight), "good");
}

TEST(Framework, ThoseThatTrainWithAPrecisionAreNamed) {
  const auto framework = find_framework("sailor", folder);
  ASSERT_TRUE(framework.has_value()) << framework.error().message();
  EXPECT_TRUE(check_trains(*framework, Precision::bf16, folder));
  const auto refused = check_trains(*framework, Precision::fp8, folder);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::usage);
  EXPECT_NE(refused.error().message().find("--framework megatron-core, torch-fsdp"), std::string::npos)
      << refused.error().message();
}

TEST(Framework, TensorParallelismHasToDivideEveryWidthThatItDivides) {
  const auto framework = find_framework("sailor", folder);
  ASSERT_TRUE(framework.has_value()) << framework.error().message();
  Model model;
  model.name = "any";
  model.attention_heads = model.key_value_heads = 8;
  model.feed_forward = 24;
  EXPECT_TRUE(framework->check(model, {.tensor_parallel = 8}));
  model.experts = {.count = 4, .per_token = 2, .feed_forward = 20, .shared_feed_forward = 6};
  const auto refused = [&](int degree) {
    const auto checked = framework->check(model, {.tensor_parallel = degree});
    return checked ? "good" : checked.error().message();
  };
  EXPECT_EQ(refused(2), "good");
  EXPECT_TRUE(refused(8).starts_with("tensor_parallel 8 does not divide the experts.feed_forward 20 of any"))
      << refused(8);
  EXPECT_TRUE(refused(4).starts_with("tensor_parallel 4 does not divide the experts.shared_feed_forward 6 of any"))
      << refused(4);
  model.feed_forward = 28;
  EXPECT_TRUE(refused(8).starts_with("tensor_parallel 8 does not divide the feed_forward 28 of any")) << refused(8);
}

TEST(Framework, UnknownNameIsRefusedWithTheKnownOnes) {
  const auto missing = find_framework("nemo", folder);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_EQ(missing.error().message(),
            "framework 'nemo' is not known (known: megatron-core, megatron-deepspeed, megatron-lm, nanotron, "
            "sailor, torch-fsdp; from " +
                folder.string() + "); use one of these, or a path that ends in .toml");
  EXPECT_EQ(find_framework("megatronlm", folder).error().hint, "did you mean 'megatron-lm'?");
  EXPECT_TRUE(find_framework((folder / "sailor.toml").string(), "/nowhere").has_value());
  EXPECT_EQ(find_framework("/no/such.toml", folder).error().code, ErrorCode::not_found);
  EXPECT_TRUE(find_framework("sailor", "/no/such/folder")
                  .error()
                  .message()
                  .starts_with("cannot list the frameworks in '/no/such/folder'"));
}

}  // namespace
}  // namespace sailor::simulator::framework_test
