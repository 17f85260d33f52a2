// The layer chain and a batch of measurements on one rank: behaviour with too little memory, and the layers run.
#include <gtest/gtest.h>

#include "../fakes/thread_transport.hpp"
#include "profiler/layer_batch.hpp"
#include "profiler/layer_chain.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/process_memory.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler::profiler_test {
namespace {

using runtime::OutOfMemoryError;

const std::set<LayerKind> all_kinds{LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head};

Model tiny() { return *find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models"); }

Batch batch_of(
    const Model& model, const std::vector<int>& sizes, BatchSettings settings, runtime::Device& device,
    const std::function<bool()>& stop = [] { return false; }) {
  // The only rank of a job: what measure_batch() agrees on is what it has.
  const std::unique_ptr<runtime::test::ThreadRank> alone = runtime::test::lone_rank();
  std::map<int, int> passes;
  settings.sequence_length = 16;
  return measure_batch(model, sizes, settings, passes, device, alone->world().control, stop);
}

TEST(CpuDevice, RefusesMemoryAboveItsLimitAndSaysHowMuchThereIs) {
  const auto device = runtime::make_cpu_device();
  device->set_memory_limit(8.0 * mib);
  runtime::Tensor kept(*device, {1 << 20});  // 4 MiB
  try {
    const runtime::Tensor too_much(*device, {2 << 20});
    FAIL() << "8 MiB beside 4 of 8";
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(error.requested, 8.0 * mib);
    EXPECT_EQ(error.reserved, 4.0 * mib);
    EXPECT_EQ(error.available, 8.0 * mib);
    EXPECT_STREQ(error.what(),
                 "the CPU has no memory for 8.00 MiB more: 4.00 MiB in tensors, 4.00 MiB reserved of 8.00 MiB allowed; "
                 "use more stages or a smaller micro-batch");
  }
  const runtime::Tensor fits(*device, {1 << 20});
  device->set_memory_limit(Bytes(0));
  const runtime::Tensor no_limit(*device, {2 << 20});
}

TEST(CpuDevice, GivesUnusedMemoryBackWhenAsked) {
  const auto device = runtime::make_cpu_device();
  device->release(device->allocate(std::size_t{4} << 20U));
  EXPECT_EQ(device->memory_use().reserved, 4.0 * mib);
  device->release_unused_memory();
  EXPECT_EQ(device->memory_use().reserved, Bytes(0));
}

TEST(CpuDevice, EventsMeasureTheTimeBetweenThem) {
  const auto device = runtime::make_cpu_device();
  const auto first = device->make_event();
  const auto second = device->make_event();
  device->main().record(*first);
  device->flush_caches();
  device->main().record(*second);
  EXPECT_GT(device->elapsed(*first, *second), Seconds(0));
  device->main().record(*first);  // later now
  EXPECT_LT(device->elapsed(*first, *second), Seconds(0));
  EXPECT_GE(device->clock_hz(), 0.0);
}

TEST(NodeMemory, AvailableIsSomethingAndNoMoreThanTheNodeHas) {
  EXPECT_GT(runtime::available_memory(), mib);
  EXPECT_LT(runtime::available_memory(), 1e6 * gib);
}

TEST(LayerChain, RunsTheChosenLayersOnly) {
  const auto device = runtime::make_cpu_device();
  const Model model = tiny();
  const ChainInput input(model, 2, 16, *device);
  KindTimes forward_times;
  KindTimes backward_times;
  LayerChain whole(model, 2, all_kinds, *device);
  whole.forward_and_backward(input.micro_batch(), Caches::cold, forward_times, backward_times);
  const auto bytes = whole.memory_of_a_pass(input.micro_batch());
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
    EXPECT_EQ(whole.parameters(kind), model.parameters(kind));
    EXPECT_GT(forward_times[index_of(kind)], 0.0);
    EXPECT_GT(backward_times[index_of(kind)], 0.0);

    // The same layer without its neighbours.
    LayerChain alone(model, 1, {kind}, *device);
    KindTimes forward_alone;
    KindTimes backward_alone;
    alone.forward_and_backward(input.micro_batch(), Caches::warm, forward_alone, backward_alone);
    alone.update();
    for (const LayerKind other : all_kinds) {
      EXPECT_EQ(alone.has(other), other == kind);
      EXPECT_EQ(forward_alone[index_of(other)] > 0.0, other == kind);
      EXPECT_EQ(backward_alone[index_of(other)] > 0.0, other == kind);
    }
    EXPECT_EQ(alone.parameters(kind), model.parameters(kind));
    const auto bytes_alone = alone.memory_of_a_pass(input.micro_batch());
    EXPECT_EQ(bytes_alone[index_of(kind)].activation, bytes[index_of(kind)].activation);
    EXPECT_EQ(bytes_alone[index_of(kind)].input, bytes[index_of(kind)].input);
    EXPECT_EQ(bytes_alone[index_of(kind)].output, bytes[index_of(kind)].output);
  }
}

TEST(LayerChain, InBfloat16HandsOnAndKeepsHalfTheBytes) {
  const auto device = runtime::make_cpu_device();
  const Model model = tiny();
  const ChainInput input(model, 2, 16, *device);
  LayerChain wide(model, 2, all_kinds, *device);
  LayerChain narrow(model, 2, all_kinds, *device, {}, Recompute::none, runtime::DataType::bfloat16);
  LayerChain block(model, 1, {LayerKind::block}, *device, {}, Recompute::none, runtime::DataType::bfloat16);
  const auto wide_bytes = wide.memory_of_a_pass(input.micro_batch())[index_of(LayerKind::block)];
  for (LayerChain* chain : {&narrow, &block}) {
    const auto bytes = chain->memory_of_a_pass(input.micro_batch())[index_of(LayerKind::block)];
    EXPECT_EQ(bytes.output, wide_bytes.output / 2);
    EXPECT_EQ(bytes.input, wide_bytes.input / 2);
    EXPECT_LT(bytes.activation, 0.6 * wide_bytes.activation);  // statistics stay fp32
    chain->update();
  }
}

TEST(LayerChain, GoesOnAfterAPassThatDidNotFit) {
  const auto device = runtime::make_cpu_device();
  const Model model = tiny();
  LayerChain chain(model, 2, all_kinds, *device);
  const ChainInput small(model, 1, 16, *device);
  const ChainInput large(model, 64, 64, *device);
  const Bytes before = device->memory_use().alive;
  device->set_memory_limit(device->memory_use().reserved + 4.0 * mib);
  EXPECT_THROW(chain.memory_of_a_pass(large.micro_batch()), OutOfMemoryError);
  chain.forget();
  EXPECT_EQ(device->memory_use().alive, before);
  EXPECT_NO_THROW(chain.memory_of_a_pass(small.micro_batch()));
}

TEST(LayerChain, OfATensorParallelGroupRunsWarmAndColdAndHoldsItsPart) {
  const Model model = tiny();
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
    runtime::test::run_ranks(2, [&](const runtime::World& world) {
      const auto group = world.transport.make_group({0, 1});
      const auto device = runtime::make_cpu_device();
      LayerChain chain(model, 2, all_kinds, *device, {.shard = {group->rank(), 2}, .group = group.get()}, recompute);
      const ChainInput input(model, 2, 16, *device);
      for (const Caches caches : {Caches::warm, Caches::cold}) {
        KindTimes forward_times;
        KindTimes backward_times;
        chain.forward_and_backward(input.micro_batch(), caches, forward_times, backward_times);
        for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
          EXPECT_GT(forward_times[index_of(kind)], 0.0);
          EXPECT_GT(backward_times[index_of(kind)], 0.0);
        }
      }
      // The table of 256 rows is divided, the 128 positions are not.
      EXPECT_EQ(chain.parameters(LayerKind::embedding), (256 / 2 + 128) * 128);
      const auto bytes = chain.memory_of_a_pass(input.micro_batch());
      const double kept = bytes[index_of(LayerKind::block)].activation;
      const double input_alone = 4.0 * 32 * 128;
      EXPECT_TRUE(recompute == Recompute::full ? kept == input_alone : kept > input_alone) << kept;
      EXPECT_EQ(bytes[index_of(LayerKind::block)].output, 4.0 * 32 * 128);
    });
}

TEST(LayerBatch, HasSamplesOfEveryPhaseAndSize) {
  const auto device = runtime::make_cpu_device();
  const Batch batch = batch_of(tiny(), {1, 2}, {.kinds = all_kinds, .blocks = 1, .samples = 3}, *device);
  ASSERT_EQ(batch.sizes.size(), 2U);
  EXPECT_FALSE(batch.out_of_memory);
  EXPECT_GT(batch.reference, 0.0);
  for (const auto& [micro_batch, size] : batch.sizes)
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
      for (const Phase phase : {forward, backward, update})
        EXPECT_EQ(size.seconds[phase][index_of(kind)].size(), 3U) << micro_batch;
      for (const Phase phase : {cold_forward, cold_backward})
        EXPECT_EQ(size.seconds[phase][index_of(kind)].size(), 1U) << micro_batch;
    }
  EXPECT_EQ(device->memory_use().alive, Bytes(0));
}

TEST(LayerBatch, KeepsWhatFitsAndTellsWhatDoesNot) {
  const auto device = runtime::make_cpu_device();
  device->set_memory_limit(24.0 * mib);
  const Batch batch = batch_of(tiny(), {1, 2048, 4096}, {.kinds = all_kinds, .blocks = 1, .samples = 2}, *device);
  EXPECT_EQ(batch.sizes.size(), 1U);
  EXPECT_TRUE(batch.sizes.contains(1));
  EXPECT_TRUE(batch.out_of_memory);
  EXPECT_EQ(batch.too_large, 2048);
  ASSERT_TRUE(batch.failure);
  EXPECT_GT(batch.failure->needed, batch.failure->available);
  EXPECT_EQ(batch.failure->available, 24.0 * mib);
  EXPECT_EQ(device->memory_use().alive, Bytes(0));
}

TEST(LayerBatch, ParametersThatDoNotFitAreNoMicroBatchesFault) {
  const auto device = runtime::make_cpu_device();
  device->set_memory_limit(2.0 * mib);
  const Batch batch = batch_of(tiny(), {1}, {.kinds = all_kinds}, *device);
  EXPECT_TRUE(batch.sizes.empty());
  EXPECT_TRUE(batch.out_of_memory);
  EXPECT_FALSE(batch.too_large);
  EXPECT_EQ(device->memory_use().alive, Bytes(0));
}

TEST(LayerBatch, StopsWhenAsked) {
  const auto device = runtime::make_cpu_device();
  const Batch batch = batch_of(tiny(), {1}, {.kinds = all_kinds, .samples = 1000000}, *device, [] { return true; });
  EXPECT_TRUE(batch.interrupted);
}

}  // namespace
}  // namespace sailor::profiler::profiler_test
