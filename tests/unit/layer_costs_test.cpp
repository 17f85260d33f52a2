// Interpolated and estimated layer costs.
#include "profile/layer_costs.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "profile/estimate_accuracy.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor::layer_costs_test {
namespace {

using sailor::testing::exactly;
using sailor::testing::round_numbers_profile;

/// Two blocks of 4 wide, sequences of 8: small enough to count by hand.
Model small_model() {
  Model model;
  model.name = "small";
  model.blocks = 2;
  model.hidden = model.embedding_width = 4;
  model.attention_heads = model.key_value_heads = 2;
  model.feed_forward = 16;
  model.vocabulary = 10;
  model.max_sequence_length = 8;
  return model;
}

GpuType gpu(double flop_per_s, double bytes_per_s) {
  GpuType type;
  type.name = "G";
  type.peak_fp32 = FlopPerSecond(flop_per_s);
  type.memory_bandwidth = BytesPerSecond(bytes_per_s);
  return type;
}

LayerKey block_key(int tensor_parallel = 1, int micro_batch = 1) {
  return {.model = "small",
          .gpu = "G",
          .tensor_parallel = tensor_parallel,
          .micro_batch = micro_batch,
          .sequence_length = 8,
          .kind = LayerKind::block};
}

// A hidden state is 4 bytes · 8 tokens · 4 = 128 bytes, the scores of both heads 4 · 8 · 8 · 2 = 512. Kept: 3 hidden
// states, query, key, value and attention output (4), the inner width (16/4), and the scores.
TEST(Estimate, ActivationsOfABlockAreThoseOfTheFormula) {
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), block_key()).activation.value(), 128 * (3 + 4 + 4) + 512);
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), block_key(2)).activation.value(), 128 * (3 + 8 / 2.0) + 512 / 2.0);
  LayerKey key = block_key();
  key.recompute = Recompute::selective;
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), key).activation.value(), 128 * 11);
  key.recompute = Recompute::full;
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), key).activation.value(), 128);
}

// Attention 4·(16 + 4), feed-forward 64 + 16 + 64 + 4, two norms of 8. Norms and the two output biases are not divided.
TEST(Estimate, ParametersOfARankKeepNormsWhole) {
  EXPECT_EQ(layer_sizes(small_model(), block_key()).parameters, 80 + 148 + 16);
  EXPECT_EQ(layer_sizes(small_model(), block_key(2)).parameters, 16 + 8 + (244 - 24) / 2);
}

// The figures that eth-easl/sailor publishes for its OPT-350 block: 90,181,632 values at tensor parallel 1, 16,781,312
// at 8 (profiles/layer_memory.json there).
TEST(Estimate, ActivationsAgreeWithThePublishedOnes) {
  Model model = small_model();
  model.hidden = model.embedding_width = 1024;
  model.attention_heads = model.key_value_heads = 16;
  model.feed_forward = 4096;
  LayerKey key = block_key();
  key.sequence_length = 2048;
  EXPECT_NEAR(layer_sizes(model, key).activation.value() / (4.0 * 90181632), 1.0, 1e-3);
  key.tensor_parallel = 8;
  EXPECT_NEAR(layer_sizes(model, key).activation.value() / (4.0 * 16781312), 1.0, 1e-3);
}

// Fused attention keeps no scores. A runtime that computes outputs of norms and activation functions again keeps its
// input, the sum behind attention, query, key, value and attention output, and the inner width (ReLU and GeLU once,
// SwiGLU its two inputs); with selective recomputation not attention's output.
TEST(Estimate, ActivationsFollowTheKernels) {
  Model model = small_model();
  const LayerKernels fused{.attention = Attention::fused};
  const LayerKernels ours{.attention = Attention::fused, .recomputes_elementwise = true};
  LayerKey key = block_key(2);
  EXPECT_DOUBLE_EQ(layer_sizes(model, key, fused).activation.value(), 128 * (3 + 8 / 2.0));
  EXPECT_DOUBLE_EQ(layer_sizes(model, key, ours).activation.value(), 128 * (2 + 8 / 2.0));
  key.recompute = Recompute::selective;
  EXPECT_DOUBLE_EQ(layer_sizes(model, key, fused).activation.value(), 128 * (3 + 8 / 2.0));
  EXPECT_DOUBLE_EQ(layer_sizes(model, key, ours).activation.value(), 128 * (2 + 7 / 2.0));
  key.recompute = Recompute::none;
  model.norm_placement = NormPlacement::post;
  model.activation = Activation::swiglu;
  EXPECT_DOUBLE_EQ(layer_sizes(model, key, ours).activation.value(), 128 * (3 + (4 + 2 * 4) / 2.0));
  key.kind = LayerKind::head;  // logits of 8 tokens and 10 rows over two ranks, which become their gradient
  EXPECT_DOUBLE_EQ(layer_sizes(model, key, ours).activation.value(), 4 * 8 * 10 / 2.0 + 128);
}

// Products as below, 384 per token, less nothing; of scores and values the causal half, 2·8·4 = 64 per token, at an
// efficiency of its own; five products instead of two in the backward pass. No scores are moved.
TEST(Estimate, SequenceParallelRanksKeepTheirPartOfTheHiddenStates) {
  // As above with all that tensor parallelism leaves whole divided, too; a block's output and, under full
  // recomputation, its input are halves.
  const LayerKernels kernels{.sequence_parallel = true};
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), block_key(2), kernels).activation.value(), (128 * (3 + 8) + 512) / 2.0);
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), block_key(2), kernels).output.value(), 128 / 2.0);
  LayerKey key = block_key(2);
  key.recompute = Recompute::full;
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), key, kernels).activation.value(), 128 / 2.0);
  EXPECT_DOUBLE_EQ(layer_sizes(small_model(), block_key(2), {.sequence_parallel = true, .keeps_gathered_inputs = true})
                       .activation.value(),
                   (128 * (3 + 8) + 512) / 2.0 + 2 * 128);
  // All-gather and reduce-scatter move together what the all-reduce did.
  EXPECT_EQ(layer_work(small_model(), block_key(2), kernels).all_reduce, Bytes(128));
  EXPECT_LT(layer_work(small_model(), block_key(2), kernels).forward_traffic,
            layer_work(small_model(), block_key(2)).forward_traffic);
}

TEST(Estimate, AnRmsNormOfOneKernelKeepsNoIntermediateValues) {
  Model model = small_model();
  model.norm = NormKind::rms_norm;
  const Bytes difference =
      layer_sizes(model, block_key()).activation - layer_sizes(model, block_key(), {.fused_norms = true}).activation;
  EXPECT_DOUBLE_EQ(difference.value(), 4 * 128);  // 5 values, but the input of the block
}

TEST(Estimate, EfficiencyOfAFrameworkReplacesTheGeneralOneOnGpus) {
  const LayerWork work{.forward_flop = Flop(1e12)};
  const LayerKernels half{
      .efficiency = Efficiency{.compute = 0.5, .attention_forward = 1.0, .attention_backward = 1.0, .memory = 1.0}};
  const auto times = roofline(work, gpu(1e12, 1e9), Precision::fp32, 1, {}, half);
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ(times->forward.value(), 2.0);
  GpuType cpu = gpu(1e12, 1e9);
  cpu.kind = DeviceKind::cpu;
  EXPECT_DOUBLE_EQ(roofline(work, cpu, Precision::fp32, 1, {}, half)->forward.value(),
                   roofline(work, cpu, Precision::fp32, 1)->forward.value());
}

TEST(Estimate, FusedAttentionComputesTheCausalHalfAndMovesNoScores) {
  const LayerWork work = layer_work(small_model(), block_key(), {.attention = Attention::fused});
  EXPECT_DOUBLE_EQ(work.forward_flop.value(), 384 * 8);
  EXPECT_DOUBLE_EQ(work.backward_flop.value(), 2 * 384 * 8);
  EXPECT_DOUBLE_EQ(work.forward_attention.value(), 64 * 8);
  EXPECT_DOUBLE_EQ(work.backward_attention.value(), 2.5 * 64 * 8);
  EXPECT_DOUBLE_EQ(work.forward_traffic.value(), 976 + 2 * 1408);
  GpuType device = gpu(1e6, 1e6);
  device.peak_bf16 = FlopPerSecond(2e6);
  const auto times = roofline(work, device, Precision::bf16, 1);
  ASSERT_TRUE(times.has_value());
  // Attention takes 0.52 and 0.44 of the rate for sequences of 8,192; of 8 tokens, much less.
  const auto slower = [](double half) { return (8 + half) / 8 * 8192 / (8192 + half); };
  EXPECT_DOUBLE_EQ(times->forward.value(), 3072 / 1.3e6 + 512 / 1.04e6 * slower(400) + (976 + 2 * 1408) / 0.75e6);
  EXPECT_DOUBLE_EQ(times->backward.value(), 6144 / 1.3e6 + 1280 / 0.88e6 * slower(950) + (2 * 976 + 4 * 1408) / 0.75e6);
  LayerKey again = block_key();
  again.recompute = Recompute::selective;
  EXPECT_DOUBLE_EQ(layer_work(small_model(), again, {.attention = Attention::fused}).backward_attention.value(),
                   3.5 * 64 * 8);
}

// 32 hidden values and 8 · 16 of the inner width. Multiplied forward: both norms' outputs (64), attention's (32), the
// inner values (128); backward the gradients of 12 + 4 + 16 + 4 values of 8 tokens. Rounding a value moves 4 bytes.
TEST(Estimate, Fp8RoundsTheInputsOfABlocksLinearLayersAndMultipliesThemAtTheirOwnRate) {
  const LayerKernels fused{.attention = Attention::fused};
  LayerKey key = block_key();
  key.precision = Precision::bf16;
  const LayerWork in_bf16 = layer_work(small_model(), key, fused);
  const LayerSizes kept_bf16 = layer_sizes(small_model(), key, fused);
  key.precision = Precision::fp8;
  const LayerWork work = layer_work(small_model(), key, fused);
  EXPECT_EQ(in_bf16.forward_fp8, Flop(0));
  EXPECT_EQ(work.forward_flop, in_bf16.forward_flop);
  EXPECT_EQ(work.forward_fp8, work.forward_flop);
  EXPECT_EQ(work.backward_fp8, work.backward_flop);
  EXPECT_DOUBLE_EQ((work.forward_traffic - in_bf16.forward_traffic).value(), 4.0 * (64 + 32 + 128));
  EXPECT_DOUBLE_EQ((work.backward_traffic - in_bf16.backward_traffic).value(), 4.0 * 8 * (12 + 4 + 16 + 4));
  // The norms' outputs in one byte instead of two; those of attention and ReLU in one more.
  EXPECT_DOUBLE_EQ((layer_sizes(small_model(), key, fused).activation - kept_bf16.activation).value(), -64 + 32 + 128);
  EXPECT_EQ(layer_sizes(small_model(), key, fused).output, kept_bf16.output);

  GpuType device = gpu(1e3, 1e9);
  device.peak_bf16 = FlopPerSecond(1e5);
  EXPECT_FALSE(roofline(work, device, Precision::fp8, 1).has_value());
  device.peak_fp8 = FlopPerSecond(2e5);
  const auto times = roofline(work, device, Precision::fp8, 1);
  ASSERT_TRUE(times);
  const Efficiency efficiency = generic_efficiency(DeviceKind::gpu, Precision::fp8);
  const double attention = efficiency.attention_forward * 8 / (8 + efficiency.attention_forward_half);
  EXPECT_DOUBLE_EQ(times->forward.value(), work.forward_flop.value() / (2e5 * efficiency.compute_fp8) +
                                               work.forward_attention.value() / (1e5 * attention) +
                                               work.forward_traffic.value() / (1e9 * efficiency.memory));
  // Scores of attention that is not fused are products in bf16; the head has no others.
  const LayerWork unfused = layer_work(small_model(), key);
  EXPECT_EQ(unfused.forward_fp8, work.forward_fp8);
  EXPECT_GT(unfused.forward_flop, unfused.forward_fp8);
  key.kind = LayerKind::head;
  EXPECT_EQ(layer_work(small_model(), key).forward_fp8, Flop(0));
  key.kind = LayerKind::block;
  key.recompute = Recompute::full;
  EXPECT_EQ(layer_work(small_model(), key, fused).backward_fp8, work.forward_flop * 3.0);
}

// Products: 2·(4·16 + 2·64) = 384 per token; scores and values over all 8 tokens 2·2·8·4 = 128: 512·8 in all.
// Moved: 244 weights once, 11 hidden states twice, the scores 7 times.
TEST(Estimate, RooflineOfABlockByHand) {
  const LayerWork work = layer_work(small_model(), block_key());
  EXPECT_DOUBLE_EQ(work.forward_flop.value(), 4096);
  EXPECT_DOUBLE_EQ(work.backward_flop.value(), 8192);
  EXPECT_DOUBLE_EQ(work.forward_traffic.value(), 976 + 2 * 1408 + 7 * 512);
  const auto times = roofline(work, gpu(1e6, 1e6), Precision::fp32, 1);
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ(times->forward.value(), 4096 / 0.85e6 + 7376 / 0.8e6);
  EXPECT_DOUBLE_EQ(times->update.value(), 32 * 244 / 0.8e6);  // four arrays read, three written, one set to zero
  // So fast that only starting 30 operations of 40 us counts.
  EXPECT_DOUBLE_EQ(roofline(work, gpu(1e15, 1e15), Precision::fp32, 1)->forward.value(), 30 * 40e-6);
}

// Two sums of 128 bytes over two ranks: each moves 2·(1/2)·128 bytes at a tenth of the memory's bandwidth, or takes
// what the measured link says.
TEST(Estimate, TensorParallelDividesTheWorkAndAddsSums) {
  const LayerWork work = layer_work(small_model(), block_key(2));
  EXPECT_DOUBLE_EQ(work.forward_flop.value(), 2048);
  const double busy = 2048 / 0.85e6 + (4 * 134 + 2 * 128 * 7 + 7 * 256) / 0.8e6;
  EXPECT_DOUBLE_EQ(roofline(work, gpu(1e6, 1e6), Precision::fp32, 2)->forward.value(), busy + 2 * 128 / 1e5);
  EXPECT_DOUBLE_EQ(roofline(work, gpu(1e6, 1e6), Precision::fp32, 2, Seconds(0.5))->forward.value(), busy + 1.0);
}

// While the device is busy, all-reduces included, the host launches: 30 operations and two for each of two all-reduces.
TEST(Estimate, AllReducesAreLaunchedWhileOthersRun) {
  const LayerWork work = layer_work(small_model(), block_key(2));
  const auto forward = [&](double all_reduce) {
    return roofline(work, gpu(1e15, 1e15), Precision::fp32, 2, Seconds(all_reduce))->forward.value();
  };
  EXPECT_DOUBLE_EQ(forward(1e-6), 34 * 40e-6);
  EXPECT_NEAR(forward(1e-3), 2e-3, 1e-9);
}

// 8 tokens of 10 logits. The loss makes fp32 of those in 16 bits: 36 bytes of each forward, 22 backward.
TEST(Estimate, TheLossOfLogitsIn16BitsIsComputedInFp32) {
  LayerKey key = block_key();
  key.kind = LayerKind::head;
  key.precision = Precision::bf16;
  LayerKernels kernels;
  const LayerWork apart = layer_work(small_model(), key, kernels);
  kernels.fused_loss = true;
  const LayerWork fused = layer_work(small_model(), key, kernels);
  const double weights = 2.0 * (static_cast<double>(layer_sizes(small_model(), key).parameters) + 4 * 10);  // tied
  EXPECT_DOUBLE_EQ(apart.forward_traffic.value(), weights + 80 * 36);
  EXPECT_DOUBLE_EQ(apart.backward_traffic.value(), 2 * weights + 80 * 22);
  EXPECT_DOUBLE_EQ(fused.forward_traffic.value(), weights + 80 * 6);
  EXPECT_DOUBLE_EQ(fused.backward_traffic.value(), 2 * weights + 80 * 8);
  key.precision = Precision::fp32;
  EXPECT_EQ(layer_work(small_model(), key, kernels).forward_traffic, layer_work(small_model(), key).forward_traffic);
}

// 8 tokens of 4 values go to two of four experts each: 512 bytes of copies, there and back. Where ranks divide the
// experts, copies are put in the order of the experts of a rank, if there are several.
TEST(Estimate, RoutingToExpertsIsLaunchedAndMovesCopies) {
  Model model = small_model();
  const LayerWork dense = layer_work(model, block_key());
  model.experts = {.count = 4, .per_token = 2, .feed_forward = 16};
  const auto work = [&](int expert_parallel) {
    LayerKey key = block_key();
    key.expert_parallel = expert_parallel;
    return layer_work(model, key);
  };
  EXPECT_EQ(work(1).forward_launches, dense.forward_launches + 20);
  EXPECT_EQ(work(1).backward_launches, dense.backward_launches + 30);
  const auto moved = [&](int expert_parallel) {
    LayerKey key = block_key();
    key.expert_parallel = expert_parallel;
    const double weights = 4.0 * static_cast<double>(layer_sizes(model, key).parameters);
    return (work(expert_parallel).forward_traffic - Bytes(weights)).value();
  };
  EXPECT_DOUBLE_EQ(moved(2) - moved(1), 2 * 2 * 2 * 8 * 4 * 4);
  EXPECT_DOUBLE_EQ(moved(4), moved(1));
}

TEST(Estimate, Tf32FallsBackToFp32ButBf16DoesNot) {
  EXPECT_EQ(peak_rate(gpu(7.0, 1.0), Precision::tf32).value().value(), 7.0);
  const auto missing = peak_rate(gpu(7.0, 1.0), Precision::bf16);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().what, "G cannot compute in bf16");
}

constexpr const char* catalogue_text = R"(schema_version = 1
[[gpus]]
name = "slow"
memory_bytes = 1e10
peak_fp32_flop_per_s = 1e6
memory_bandwidth_bytes_per_s = 1e6
price_usd_per_hour = 1.0
source = "a test"
[[gpus]]
name = "fast"
memory_bytes = 1e10
peak_fp32_flop_per_s = 2e6
memory_bandwidth_bytes_per_s = 2e6
price_usd_per_hour = 1.0
source = "a test"
[[gpus]]
name = "cpu"
kind = "cpu"
peak_fp32_flop_per_s = 1e6
memory_bandwidth_bytes_per_s = 1e6
price_usd_per_hour = 1.0
source = "a test"
)";

/// tiny-gpt measured on "slow" at micro-batches 1 and 4: blocks 2 s and 11 s forward, 4 s and 16 s backward.
class Costs : public ::testing::Test {
 protected:
  Costs() {
    data_ = round_numbers_profile();
    std::erase_if(data_.layer_times, [](const LayerTime& row) { return row.key.micro_batch != 1; });
    std::erase_if(data_.layer_memory, [](const LayerMemory& row) { return row.key.micro_batch != 1; });
    for (LayerTime& row : data_.layer_times) row.key.gpu = "slow";
    for (LayerMemory& row : data_.layer_memory) row.key.gpu = "slow";
    LayerTime larger = *std::find_if(data_.layer_times.begin(), data_.layer_times.end(),
                                     [](const LayerTime& row) { return row.key.kind == LayerKind::block; });
    larger.key.micro_batch = 4;
    larger.forward = exactly(11.0);
    larger.backward = exactly(16.0);
    data_.layer_times.push_back(larger);
  }
  static LayerKey key(const std::string& gpu, int micro_batch, int tensor_parallel = 1) {
    return {.model = "tiny-gpt",
            .gpu = gpu,
            .tensor_parallel = tensor_parallel,
            .micro_batch = micro_batch,
            .sequence_length = 64,
            .kind = LayerKind::block,
            .first_layer = 1};
  }
  Result<LayerPrice> find(const LayerKey& wanted, bool measured_only = false) const {
    const Profile profile(data_);
    return LayerCosts(model_, profile, gpus_, measured_only).find(wanted);
  }

  Model model_ = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  GpuCatalogue gpus_ = GpuCatalogue::parse(catalogue_text, "gpus.toml").value();
  ProfileData data_;
};

TEST_F(Costs, WhatWasMeasuredIsTakenAsItIs) {
  const auto price = find(key("slow", 4));
  ASSERT_TRUE(price.has_value()) << price.error().message();
  EXPECT_EQ(price->basis, Basis::look_up);
  EXPECT_EQ(price->cost.origin, Origin::measured);
  EXPECT_EQ(price->cost.forward, exactly(11.0));
}

// Micro-batch 3 is two thirds of the way from 1 to 4: 2 + 2/3·9 and 4 + 2/3·12 seconds; activations 100 bytes each.
TEST_F(Costs, BetweenMicroBatchesOnAStraightLine) {
  const auto price = find(key("slow", 3));
  ASSERT_TRUE(price.has_value()) << price.error().message();
  EXPECT_EQ(price->basis, Basis::between_micro_batches);
  EXPECT_EQ(price->cost.origin, Origin::interpolated);
  EXPECT_DOUBLE_EQ(price->cost.forward.median.value(), 8.0);
  EXPECT_DOUBLE_EQ(price->cost.backward.median.value(), 12.0);
  EXPECT_DOUBLE_EQ(price->cost.activation.value(), 300.0);
  EXPECT_EQ(price->cost.parameters, 2000);
  EXPECT_LT(price->cost.forward.low, price->cost.forward.median);
  EXPECT_GT(price->cost.forward.high, price->cost.forward.median);
}

// As above, but the host needs longer than the device up to micro-batch 3: times bend as their estimates do.
TEST_F(Costs, BetweenMicroBatchesWhereTheHostLimitsTheSmaller) {
  for (const char* name : {"slow", "fast"}) ASSERT_TRUE(gpus_.find(name).has_value());
  LayerKernels kernels{.efficiency = generic_efficiency(DeviceKind::gpu, Precision::fp32)};
  const Profile profile(data_);
  const auto device = LayerCosts(model_, profile, gpus_, false, kernels).estimate(key("slow", 3), Basis::roofline);
  ASSERT_TRUE(device.has_value()) << device.error().message();
  kernels.efficiency->launch = device->cost.forward.median / 30.0;
  const LayerCosts costs(model_, profile, gpus_, false, kernels);
  const auto estimate = [&](int micro_batch) {
    return costs.estimate(key("slow", micro_batch), Basis::roofline)->cost.forward.median.value();
  };
  EXPECT_DOUBLE_EQ(estimate(1), estimate(3));
  EXPECT_LT(estimate(3), estimate(4));
  const auto price = costs.find(key("slow", 3));
  ASSERT_TRUE(price.has_value()) << price.error().message();
  EXPECT_DOUBLE_EQ(price->cost.forward.median.value(), 2.0);  // as of micro-batch 1
  EXPECT_LE(price->cost.forward.low, Seconds(2.0));
  // With a host that is half as slow the time is between that and what the device alone would take.
  kernels.efficiency->launch *= 0.5;
  const LayerCosts quicker(model_, profile, gpus_, false, kernels);
  const double bent = quicker.find(key("slow", 3))->cost.forward.median.value();
  EXPECT_GT(bent, 2.0);
  EXPECT_LT(bent, 8.0);
}

// 8 s on one rank and 2 s on four: on the line between them, in logarithms, two ranks take 4 s.
TEST_F(Costs, BetweenTensorParallelDegreesInLogarithms) {
  for (const auto& [degree, seconds] : {std::pair(1, 8.0), std::pair(4, 2.0)}) {
    LayerTime row = data_.layer_times.back();
    row.key.micro_batch = 2;
    row.key.tensor_parallel = degree;
    row.forward = exactly(seconds);
    data_.layer_times.push_back(row);
    LayerMemory memory = data_.layer_memory[1];
    memory.key = row.key;
    data_.layer_memory.push_back(memory);
  }
  const auto price = find(key("slow", 2, 2));
  ASSERT_TRUE(price.has_value()) << price.error().message();
  EXPECT_EQ(price->basis, Basis::between_tensor_parallel);
  EXPECT_EQ(price->cost.origin, Origin::interpolated);
  EXPECT_DOUBLE_EQ(price->cost.forward.median.value(), 4.0);
}

TEST_F(Costs, OutsideTheMeasuredRangeIsAnEstimate) {
  for (const LayerKey& wanted : {key("slow", 5), key("slow", 1, 2)}) {
    const auto price = find(wanted);
    ASSERT_TRUE(price.has_value()) << price.error().message();
    EXPECT_EQ(price->basis, Basis::transfer);
    EXPECT_EQ(price->cost.origin, Origin::estimated);
    EXPECT_GT(price->cost.forward.median, Seconds(0.0));
  }
}

// Twice the peak and twice the bandwidth, so far from the launches: half the time of what was measured.
TEST_F(Costs, TransferScalesByTheRatioOfTheRooflines) {
  const auto price = find(key("fast", 4));
  ASSERT_TRUE(price.has_value()) << price.error().message();
  EXPECT_EQ(price->basis, Basis::transfer);
  EXPECT_EQ(price->sources, "slow");
  EXPECT_NEAR(price->cost.forward.median.value(), 11.0 / 2, 1e-9);
  EXPECT_NEAR(price->cost.backward.median.value(), 16.0 / 2, 1e-9);
  EXPECT_EQ(price->cost.parameters, 2000);  // memory is the model's, not the device's
  EXPECT_DOUBLE_EQ(price->cost.activation.value(), 400.0);
  EXPECT_DOUBLE_EQ(price->cost.forward.high / price->cost.forward.median,
                   1.0 + expected_error(Basis::transfer, Precision::fp32).wide);
}

// A device has bf16 at 100 TFLOP/s and fp8 at 200: what is not a product of a block stays as it was measured in bf16.
TEST_F(Costs, Fp8IsWhatWasMeasuredInBf16TimesTheRatioOfTheEstimates) {
  gpus_ = GpuCatalogue::parse(
              "schema_version = 1\n[[gpus]]\nname = \"slow\"\nmemory_bytes = 1e10\n"
              "peak_fp32_flop_per_s = 5e13\npeak_bf16_flop_per_s = 1e14\npeak_fp8_flop_per_s = 2e14\n"
              "memory_bandwidth_bytes_per_s = 1e12\nprice_usd_per_hour = 1.0\nsource = \"a test\"\n"
              "[[gpus]]\nname = \"cpu\"\nkind = \"cpu\"\npeak_fp32_flop_per_s = 1e11\n"
              "memory_bandwidth_bytes_per_s = 1e11\nprice_usd_per_hour = 1.0\nsource = \"a test\"\n",
              "gpus.toml")
              .value();
  for (LayerTime& row : data_.layer_times) row.key.precision = Precision::bf16;
  for (LayerMemory& row : data_.layer_memory) row.key.precision = Precision::bf16;
  LayerKey wanted = key("slow", 4);
  wanted.precision = Precision::fp8;
  const Profile profile(data_);
  const LayerCosts costs(model_, profile, gpus_);
  const auto block = costs.find(wanted);
  ASSERT_TRUE(block.has_value()) << block.error().message();
  EXPECT_EQ(block->cost.origin, Origin::estimated);
  EXPECT_EQ(block->sources, "its times in bf16");
  const GpuType gpu = gpus_.find("slow").value();
  LayerKey wide = wanted;
  wide.precision = Precision::bf16;
  const auto times = [&](const LayerKey& key) {
    return roofline(layer_work(model_, key), gpu, key.precision, 1, std::nullopt).value();
  };
  EXPECT_NEAR(block->cost.forward.median.value(), 11.0 * (times(wanted).forward / times(wide).forward), 1e-9);
  EXPECT_NEAR(block->cost.backward.median.value(), 16.0 * (times(wanted).backward / times(wide).backward), 1e-9);
  EXPECT_DOUBLE_EQ(block->cost.activation / costs.find(wide)->cost.activation,
                   layer_sizes(model_, wanted).activation / layer_sizes(model_, wide).activation);
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::head}) {
    LayerKey other = wanted;
    other.micro_batch = 1;
    other.kind = kind;
    other.first_layer = kind == LayerKind::head ? 5 : 0;
    LayerKey measured = other;
    measured.precision = Precision::bf16;
    ASSERT_TRUE(costs.find(other).has_value()) << costs.find(other).error().message();
    EXPECT_DOUBLE_EQ(costs.find(other)->cost.forward.median.value(), costs.find(measured)->cost.forward.median.value());
  }
  // Once fp8 itself was measured (imported), that counts.
  ProfileData both = data_;
  LayerTime narrow = *std::find_if(both.layer_times.begin(), both.layer_times.end(), [](const LayerTime& row) {
    return row.key.kind == LayerKind::block && row.key.micro_batch == 1;
  });
  narrow.key.precision = Precision::fp8;
  narrow.forward = exactly(0.01);
  both.layer_times.push_back(narrow);
  const Profile with_fp8(both);
  const LayerCosts from_fp8(model_, with_fp8, gpus_);
  ASSERT_TRUE(from_fp8.find(wanted).has_value()) << from_fp8.find(wanted).error().message();
  EXPECT_LT(from_fp8.find(wanted)->cost.forward.median.value(), 1.0);
  LayerKey on_cpu = wanted;
  on_cpu.gpu = "cpu";
  ASSERT_FALSE(costs.find(on_cpu).has_value());
  EXPECT_NE(costs.find(on_cpu).error().what.find("which CPUs do not have"), std::string::npos)
      << costs.find(on_cpu).error().what;
}

// Korthikanti et al. 2022, table 4: a block of the model of 22 billion parameters (table 3) on eight A100, micro-batch
// 4: a forward pass of 7.7 ms, of which selective recomputation repeats 1.3.
TEST(Estimate, AttentionsShareOfABlockIsThatOfAPublishedRun) {
  Model model;
  model.name = "22b";
  model.blocks = 48;
  model.hidden = model.embedding_width = 6144;
  model.attention_heads = model.key_value_heads = 64;
  model.feed_forward = 4 * 6144;
  model.vocabulary = 51200;
  model.max_sequence_length = 2048;
  model.activation = Activation::gelu;
  const Profile profile{ProfileData{}};
  const GpuCatalogue gpus = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  const auto shares = LayerCosts(model, profile, gpus)
                          .attention_shares({.model = "22b",
                                             .gpu = "A100-80",
                                             .precision = Precision::fp16,
                                             .tensor_parallel = 8,
                                             .micro_batch = 4,
                                             .sequence_length = 2048,
                                             .kind = LayerKind::block,
                                             .first_layer = 1});
  ASSERT_TRUE(shares.has_value()) << shares.error().message();
  EXPECT_NEAR(shares->forward, 1.3 / 7.7, 0.02);
}

// A tenth of the long-sequence rate at a ninth of the half length.
TEST(Estimate, ShortSequencesReachLessOfAttentionsRate) {
  LayerKernels kernels{.attention = Attention::fused,
                       .efficiency = Efficiency{.compute = 1.0,
                                                .attention_forward = 0.5,
                                                .attention_backward = 0.25,
                                                .attention_forward_half = 72.0,
                                                .attention_backward_half = 8.0,
                                                .memory = 1.0}};
  const LayerWork work = attention_work(small_model(), block_key(), kernels);
  EXPECT_EQ(work.attention_length, 8);
  const auto times = roofline(work, gpu(1e6, 1e6), Precision::fp32, 1, std::nullopt, kernels);
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ(times->forward.value(), work.forward_attention.value() / (1e6 * 0.5 * 8 / 80));
  EXPECT_DOUBLE_EQ(times->backward.value(), work.backward_attention.value() / (1e6 * 0.25 * 8 / 16));
}

TEST_F(Costs, WithoutAnyMeasurementThePeakRatesDecide) {
  data_ = {};
  const auto price = find(key("cpu", 2));
  ASSERT_TRUE(price.has_value()) << price.error().message();
  EXPECT_EQ(price->basis, Basis::roofline);
  const Profile profile(data_);
  EXPECT_EQ(
      LayerCosts(model_, profile, gpus_).explain(key("cpu", 2), *price),
      fmt::format("layer times of tiny-gpt on cpu (no profile of the model at all; from peak rates; expect errors "
                  "of about {:.0f}%)",
                  expected_error(Basis::roofline, Precision::fp32).typical * 100));
}

// A description whose rates were fitted says how far they are off, and its predictions are as narrow.
TEST_F(Costs, RatesOfADescriptionSayTheirOwnError) {
  data_ = {};
  const Profile profile(data_);
  LayerKernels kernels;
  for (const double error : {0.0, 0.25}) {
    kernels.efficiency =
        Efficiency{.compute = 0.5, .attention_forward = 0.5, .attention_backward = 0.5, .memory = 0.5, .error = error};
    const LayerCosts costs(model_, profile, gpus_, false, kernels);
    const auto price = costs.find(key("cpu", 2));
    ASSERT_TRUE(price.has_value()) << price.error().message();
    const double factor = 1.0 + (error > 0.0 ? error : expected_error(Basis::roofline, Precision::fp32).wide);
    EXPECT_DOUBLE_EQ(price->cost.forward.high / price->cost.forward.median, factor);
    EXPECT_DOUBLE_EQ(price->cost.backward.median / price->cost.backward.low, factor);
  }
  // What was measured between others has its own.
  EXPECT_EQ(expected_error(Basis::between_micro_batches, Precision::fp32, kernels).wide,
            expected_error(Basis::between_micro_batches, Precision::fp32).wide);
}

TEST_F(Costs, MeasuredOnlyRefusesWithTheErrorOfTheLookUp) {
  for (const LayerKey& wanted : {key("slow", 3), key("fast", 1)}) {
    const auto price = find(wanted, true);
    ASSERT_FALSE(price.has_value());
    EXPECT_EQ(price.error().message(), Profile(data_).layer(wanted).error().message());
  }
}

TEST_F(Costs, ADeviceThatTheCatalogueDoesNotKnowIsRefusedByName) {
  const auto price = find(key("abacus", 1));
  ASSERT_FALSE(price.has_value());
  EXPECT_EQ(price.error().code, ErrorCode::not_found);
  EXPECT_NE(price.error().what.find("GPU abacus"), std::string::npos) << price.error().what;
  EXPECT_NE(price.error().what.find("nor can it be estimated"), std::string::npos) << price.error().what;
}

// Three devices whose times are exactly in the ratio of their rates: leaving any out changes nothing.
TEST_F(Costs, LeaveOneOutFindsNoErrorWhereTimesFollowTheRates) {
  const std::size_t rows = data_.layer_times.size();
  for (std::size_t i = 0; i < rows; ++i) {
    LayerTime row = data_.layer_times[i];
    row.key.gpu = "fast";
    row.forward = exactly(row.forward.median.value() / 2);
    row.backward = exactly(row.backward.median.value() / 2);
    data_.layer_times.push_back(row);
  }
  const Profile profile(data_);
  int compared = 0;
  for (const AccuracyRow& row : leave_one_out(LayerCosts(model_, profile, gpus_))) {
    if (row.basis != Basis::transfer) continue;
    compared += static_cast<int>(row.forward.size());
    EXPECT_NEAR(summarize_errors(row.forward).worst, 0.0, 1e-9);
    EXPECT_NEAR(summarize_errors(row.backward).worst, 0.0, 1e-9);
  }
  EXPECT_EQ(compared, 8);  // embedding, head and two blocks on either device
}

TEST(EstimateAccuracy, SummaryByHand) {
  const ErrorSummary summary = summarize_errors({-0.5, 0.1, 0.2});
  EXPECT_EQ(summary.points, 3);
  EXPECT_DOUBLE_EQ(summary.median, 0.2);
  EXPECT_DOUBLE_EQ(summary.bias, 0.1);
  EXPECT_DOUBLE_EQ(summary.worst, -0.5);
  EXPECT_EQ(summarize_errors({}).points, 0);
}

#ifdef SAILOR_HAVE_RAPIDCHECK

LayerKey any_key() {
  LayerKey key = block_key(1 << *rc::gen::inRange(0, 2), *rc::gen::inRange(1, 65));
  key.kind = static_cast<LayerKind>(*rc::gen::inRange(0, 4));
  key.sequence_length = *rc::gen::inRange(1, 4096);
  key.recompute = static_cast<Recompute>(*rc::gen::inRange(0, 3));
  return key;
}
double any_rate() { return *rc::gen::inRange(1, 1000000) * 1e9; }

RC_GTEST_PROP(EstimateProperties, AFasterDeviceIsNeverSlower, ()) {
  const LayerKey key = any_key();
  const LayerWork work = layer_work(small_model(), key);
  const double flops = any_rate();
  const double bytes = any_rate();
  const auto slow = roofline(work, gpu(flops, bytes), Precision::fp32, key.tensor_parallel);
  const auto fast = roofline(work, gpu(2 * flops, 2 * bytes), Precision::fp32, key.tensor_parallel);
  RC_ASSERT(fast->forward <= slow->forward);
  RC_ASSERT(fast->backward <= slow->backward);
  RC_ASSERT(fast->update <= slow->update);
}

RC_GTEST_PROP(EstimateProperties, MoreWorkIsNeverFasterAndNeedsNoLessMemory, ()) {
  const LayerKey key = any_key();
  LayerKey more = key;
  more.micro_batch += *rc::gen::inRange(1, 64);
  const GpuType device = gpu(any_rate(), any_rate());
  const auto less = roofline(layer_work(small_model(), key), device, Precision::fp32, key.tensor_parallel);
  const auto longer = roofline(layer_work(small_model(), more), device, Precision::fp32, key.tensor_parallel);
  RC_ASSERT(longer->forward >= less->forward);
  RC_ASSERT(longer->backward >= less->backward);
  RC_ASSERT(layer_sizes(small_model(), more).activation >= layer_sizes(small_model(), key).activation);
}

RC_GTEST_PROP(EstimateProperties, WhatIsReadBetweenLiesBetween, ()) {
  const double low = *rc::gen::inRange(1, 1000);
  const double high = *rc::gen::inRange(1, 1000);
  const int below = *rc::gen::inRange(1, 50);
  const int above = below + *rc::gen::inRange(2, 50);
  const int wanted = *rc::gen::inRange(below + 1, above);
  ProfileData data;
  const bool published = *rc::gen::arbitrary<bool>();
  data.sessions.push_back({.id = "s", .provenance = {.source = published ? "a paper" : ""}});
  for (const auto& [micro_batch, seconds] : {std::pair(below, low), std::pair(above, high)}) {
    data.layer_times.push_back(
        {.key = block_key(1, micro_batch), .forward = exactly(seconds), .backward = exactly(seconds)});
    data.layer_memory.push_back({.key = block_key(1, micro_batch), .parameters = 1, .activation = Bytes(seconds)});
  }
  const Model model = small_model();
  const Profile profile(std::move(data));
  const GpuCatalogue none;
  const LayerCosts costs(model, profile, none);
  const auto& price = costs.find(block_key(1, wanted));
  RC_ASSERT(price.has_value());
  RC_ASSERT(price->cost.origin == Origin::interpolated);
  RC_ASSERT(price->cost.forward.median.value() >= std::min(low, high) * (1 - 1e-12));
  RC_ASSERT(price->cost.forward.median.value() <= std::max(low, high) * (1 + 1e-12));
  RC_ASSERT(price->cost.activation.value() >= std::min(low, high) * (1 - 1e-12));
}

#endif

}  // namespace
}  // namespace sailor::layer_costs_test
