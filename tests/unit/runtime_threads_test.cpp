// A device with several threads computes the same as one with a single thread. Shapes are large enough for operations
// to be split (cpu::Threads::worthwhile), and odd enough for parts of different size.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "runtime/cpu/host_cpu.hpp"
#include "runtime/cpu/threads.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/stage.hpp"
#include "runtime_models.hpp"
#include "stream_operations.hpp"

namespace sailor::runtime::test::runtime_threads_test {
namespace {

struct Outcome {
  std::vector<double> losses;
  double squared_norm = 0.0;
  std::vector<float> values;  // of all parameters
};

/// Trains all layers of the model on one rank for some iterations.
Outcome train(Model model, DataType type, int threads) {
  model.hidden *= 8;
  model.embedding_width *= 8;
  model.feed_forward *= 8;
  model.vocabulary = 1001;
  model.max_sequence_length = 131;
  const auto device = make_cpu_device(threads);
  StageLayers stage(model, LayerRange{0, model.layers()}, *device, type);
  ParameterStorage& parameters = stage.parameters();
  parameters.initialize(7);
  AdamW optimizer(*device, parameters);
  optimizer.initialize(7);
  const std::int64_t count = 3 * model.max_sequence_length;
  Tensor tokens(*device, {count}, DataType::int32);
  Tensor targets(*device, {count}, DataType::int32);
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.integers()[i] = static_cast<std::int32_t>(i * i % model.vocabulary);
    targets.integers()[i] = static_cast<std::int32_t>((i + 1) * (i + 1) % model.vocabulary);
  }
  Tensor loss(*device, {1}, DataType::float64);
  const MicroBatch micro_batch{.sequences = 3,
                               .sequence_length = model.max_sequence_length,
                               .tokens = tokens.integers(),
                               .targets = targets.integers(),
                               .loss_sum = loss.doubles(),
                               .loss_weight = 1.0f / static_cast<float>(count)};
  Outcome outcome;
  for (int iteration = 0; iteration < 3; ++iteration) {
    parameters.zero_gradients();
    device->main().zero(loss.data(), loss.bytes());
    static_cast<void>(stage.forward(0, micro_batch, {}));
    static_cast<void>(stage.backward(0, micro_batch, {}));
    outcome.losses.push_back(*loss.doubles() / static_cast<double>(count));
    outcome.squared_norm = test::squared_sum(*device, parameters.gradients(), parameters.size());
    optimizer.step({.step = iteration + 1});
  }
  for (std::int64_t i = 0; i < parameters.size(); ++i) outcome.values.push_back(load(parameters.values() + i));
  return outcome;
}

class Threads : public testing::TestWithParam<DataType> {};

TEST_P(Threads, ComputeTheSame) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "OpenMP's barriers are unknown to the sanitizer";
#endif
  // Sums in another order: weights move by 1e-3 a step at most, in bfloat16 by whole units in the last place.
  const bool is_float32 = GetParam() == DataType::float32;
  for (const Model& model : all_models()) {
    SCOPED_TRACE(model.name);
    const Outcome one = train(model, GetParam(), 1);
    const Outcome several = train(model, GetParam(), 3);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(several.losses[i], one.losses[i], (is_float32 ? 1e-5 : 2e-2) * one.losses[i]);
    EXPECT_NEAR(several.squared_norm, one.squared_norm, (is_float32 ? 1e-4 : 5e-2) * one.squared_norm);
    ASSERT_EQ(several.values.size(), one.values.size());
    double difference = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < one.values.size(); ++i) {
      difference += std::pow(double{several.values[i]} - double{one.values[i]}, 2);
      norm += std::pow(double{one.values[i]}, 2);
    }
    EXPECT_LT(std::sqrt(difference), (is_float32 ? 1e-3 : 2e-2) * std::sqrt(norm));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Threads, testing::Values(DataType::float32, DataType::bfloat16),
                         [](const auto& type) { return type.param == DataType::float32 ? "float32" : "bfloat16"; });

TEST(CpuThreads, PiecesAreWorthAThread) {
  const cpu::Threads threads(4);
  if (threads.count() == 1) GTEST_SKIP() << "built without OpenMP";
  EXPECT_EQ(threads.pieces(cpu::Threads::worthwhile - 1), 1);
  EXPECT_EQ(threads.pieces(2 * cpu::Threads::worthwhile), 2);
  EXPECT_EQ(threads.pieces(3, cpu::Threads::worthwhile), 3);  // no more than there are items
  EXPECT_EQ(threads.pieces(100, cpu::Threads::worthwhile), 4);
  EXPECT_EQ(threads.pieces(0), 1);
}

TEST(CpuThreads, AreThoseOfOpenMpOnTheCoresThereAre) {
  const auto threads = [](const char* wanted) { return cpu::compute_threads({{"OMP_NUM_THREADS", wanted}}); };
  EXPECT_EQ(cpu::compute_threads({}), 1);
  for (const char* wrong : {"", "none", "-3", "0"}) EXPECT_EQ(threads(wrong), 1) << wrong;
  EXPECT_EQ(threads("1,7"), 1);
  EXPECT_LE(threads("100000"), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace sailor::runtime::test::runtime_threads_test
