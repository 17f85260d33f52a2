// Layers divided over the ranks of a tensor-parallel group (threads here) against the same layers on one rank; and
// attention that is recomputed in the backward pass.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "../fakes/thread_transport.hpp"
#include "../fakes/transport_checks.hpp"
#include "runtime_models.hpp"

namespace sailor::runtime::test::runtime_tensor_parallel_test {
namespace {

double norm_of(const Parameter& parameter) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < parameter.elements(); ++i) sum += double{parameter.gradient[i]} * parameter.gradient[i];
  return std::sqrt(sum);
}

/// True where all ranks have the bits of rank 0.
bool equal_on_all_ranks(Control& control, const float* values, std::int64_t count) {
  const std::string mine(reinterpret_cast<const char*>(values), static_cast<std::size_t>(count) * sizeof(float));
  return control.broadcast(mine) == mine;
}

TensorParallel part_of(Group& group) { return {{group.rank(), group.size()}, &group}; }

class TensorParallelLayers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Degree, TensorParallelLayers, ::testing::Values(2, 4));

std::vector<Model> models_for(int degree) {
  std::vector<Model> models = all_models_and_experts();
  std::erase_if(models, [&](const Model& model) { return !check_divisible(model, degree); });
  EXPECT_EQ(models.size(), degree == 2 ? 9u : 8u);  // the mixed one has 2 key-value heads
  return models;
}

TEST_P(TensorParallelLayers, HaveTheLossAndEveryGradientOfOneRank) {
  for (const Model& model : models_for(GetParam())) {
    SCOPED_TRACE(model.name);
    WholeModel whole(model);
    const double loss = whole.loss(true);
    run_ranks(GetParam(), [&](const World& world) {
      const auto all = world.transport.make_group(all_ranks(world));
      Group& group = *all;
      SCOPED_TRACE(model.name);
      WholeModel part(model, part_of(group));
      EXPECT_NEAR(part.loss(true), loss, 1e-6);
      ASSERT_EQ(part.parameters().size(), whole.parameters().size());
      std::int64_t held = 0;
      for (std::size_t i = 0; i < part.parameters().size(); ++i) {
        const Parameter& mine = *part.parameters()[i];
        const Parameter& all = *whole.parameters()[i];
        SCOPED_TRACE(mine.name);
        ASSERT_EQ(mine.name, all.name);
        ASSERT_EQ(mine.whole_elements(), all.elements());
        EXPECT_EQ(mine.rows_are_inputs, all.rows_are_inputs);
        held += mine.elements();
        const double norm = norm_of(all);
        std::int64_t worst = 0;
        double error = 0.0;
        for (const Piece& piece : mine.pieces())
          for (std::int64_t j = 0; j < piece.count; ++j)
            if (const double e = std::abs(mine.gradient[piece.local + j] - all.gradient[piece.whole + j]);
                !(e <= error)) {
              error = e;
              worst = piece.whole + j;
            }
        EXPECT_LE(error, 5e-6 * norm) << "element " << worst;
        if (!mine.is_divided()) {
          EXPECT_TRUE(equal_on_all_ranks(world.control, mine.gradient, mine.elements()));
        }
      }
      EXPECT_LT(held, whole.storage().elements());
    });
  }
}

TEST_P(TensorParallelLayers, HandOnTheSameHiddenStateAndGradientOnAllRanks) {
  for (const Model& model : models_for(GetParam())) {
    SCOPED_TRACE(model.name);
    const LayerRange blocks{0, model.blocks + 1};
    const std::int64_t count = std::int64_t{TestBatch::tokens} * model.hidden;
    const auto run = [&](const TensorParallel& tensor_parallel, auto&& look) {
      const auto device = make_cpu_device();
      LayerSequence layers(model, blocks, {.device = device.get(), .tensor_parallel = tensor_parallel});
      for (std::size_t i = 0; i < layers.parameters().parameters().size(); ++i)
        fill_by_formula(*layers.parameters().parameters()[i], i);
      TestBatch batch(model);
      Tensor output = layers.forward(batch.micro_batch, {});
      device->synchronize();
      look(output);
      Slot slot;
      // Block 1 alone for its input's gradient: the embedding hands on none.
      const auto block = make_layer(model, 1, {.device = device.get(), .tensor_parallel = tensor_parallel});
      ParameterStorage storage(*device, std::vector<Layer*>{block.get()});
      for (std::size_t i = 0; i < block->parameters().size(); ++i) fill_by_formula(block->parameters()[i], i);
      Tensor copy(*device, output.shape());
      device->main().copy(copy.data(), output.data(), output.bytes());
      output = block->forward(batch.micro_batch, std::move(output), slot);
      const Tensor gradient = block->backward(batch.micro_batch, std::move(copy), slot);
      device->synchronize();
      look(gradient);
      EXPECT_EQ(slot.bytes().value(), 0.0);
    };
    std::vector<std::vector<float>> expected;
    run({}, [&](const Tensor& values) { expected.emplace_back(values.floats(), values.floats() + count); });
    run_ranks(GetParam(), [&](const World& world) {
      const auto all = world.transport.make_group(all_ranks(world));
      Group& group = *all;
      std::size_t number = 0;
      run(part_of(group), [&](const Tensor& values) {
        EXPECT_TRUE(equal_on_all_ranks(world.control, values.floats(), count));
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
          ASSERT_NEAR(values.floats()[i], expected[number][i], 2e-5) << i;
        ++number;
      });
      EXPECT_EQ(number, 2u);
    });
  }
}

TEST_P(TensorParallelLayers, StartFromTheSameModelAsOneRank) {
  WholeModel whole(llama_model());
  whole.storage().initialize(5);
  const double loss = whole.loss();
  run_ranks(GetParam(), [&](const World& world) {
    const auto all = world.transport.make_group(all_ranks(world));
    Group& group = *all;
    WholeModel part(llama_model(), part_of(group));
    part.storage().initialize(5);
    EXPECT_NEAR(part.loss(), loss, 1e-6);
  });
}

TEST_P(TensorParallelLayers, RunAttentionAgainWithTheSameGradients) {
  run_ranks(GetParam(), [&](const World& world) {
    const auto all = world.transport.make_group(all_ranks(world));
    Group& group = *all;
    WholeModel kept(llama_model(), part_of(group));
    WholeModel again(llama_model(), part_of(group), Recompute::selective);
    EXPECT_EQ(kept.loss(true), again.loss(true));
    EXPECT_EQ(std::memcmp(kept.storage().gradients(), again.storage().gradients(),
                          static_cast<std::size_t>(kept.storage().size()) * sizeof(float)),
              0);
  });
}

TEST(RuntimeSelectiveRecomputation, GivesTheSameBitsAndKeepsLess) {
  for (const Model& model : all_models_and_experts()) {
    SCOPED_TRACE(model.name);
    WholeModel kept(model);
    WholeModel again(model, {}, Recompute::selective);
    EXPECT_EQ(kept.loss(true), again.loss(true));
    EXPECT_EQ(std::memcmp(kept.storage().gradients(), again.storage().gradients(),
                          static_cast<std::size_t>(kept.storage().size()) * sizeof(float)),
              0);
    // Without attention's output and its logarithms of sums, in both blocks.
    EXPECT_EQ(kept.kept_bytes() - again.kept_bytes(),
              2.0 * TestBatch::tokens * (model.hidden + model.attention_heads) * sizeof(float));
  }
}

TEST(RuntimeDeclaredLayers, TakeNoMemoryAndDivideEveryParameterExactlyOnce) {
  Model model = llama_model();  // LLaMA 3 8B's sizes, but an uneven vocabulary
  model.blocks = 32;
  model.hidden = model.embedding_width = 4096;
  model.attention_heads = 32;
  model.key_value_heads = 8;
  model.feed_forward = 14336;
  model.vocabulary = 128257;
  model.final_norm = FinalNorm::separate_and_in_head;
  const auto device = make_cpu_device();
  ASSERT_TRUE(check_divisible(model, 8));
  for (int index = 0; index < model.layers(); ++index) {
    std::map<std::string, std::vector<Piece>> pieces;
    std::map<std::string, std::int64_t> sizes;
    for (int rank = 0; rank < 8; ++rank) {
      const auto layer = make_layer(model, index, {.device = device.get(), .tensor_parallel = {{rank, 8}, nullptr}});
      for (const Parameter& parameter : layer->parameters()) {
        sizes[parameter.name] = parameter.whole_elements();
        if (!parameter.is_divided() && rank > 0) continue;
        for (const Piece& piece : parameter.pieces()) pieces[parameter.name].push_back(piece);
      }
    }
    std::int64_t sum = 0;
    for (auto& [name, parts] : pieces) {
      std::sort(parts.begin(), parts.end(), [](const Piece& a, const Piece& b) { return a.whole < b.whole; });
      std::int64_t end = 0;
      for (const Piece& piece : parts) {
        EXPECT_EQ(piece.whole, end) << name;
        end = piece.whole + piece.count;
      }
      EXPECT_EQ(end, sizes[name]) << name;
      sum += end;
    }
    EXPECT_EQ(sum, model.parameters(model.layer_kind(index))) << "layer " << index;
  }
  EXPECT_EQ(device->memory_use().peak.value(), 0.0);
}

TEST(RuntimeDeclaredLayers, SayWhatDegreeCannotDivideThem) {
  EXPECT_TRUE(check_divisible(llama_model(), 4));
  const auto refused = check_divisible(mixed_model(), 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::infeasible);
  EXPECT_EQ(refused.error().message(),
            "model 'mixed': key_value_heads = 2 cannot be divided by tensor_parallel = 4; use a tensor_parallel that "
            "divides 4, 2 and 32 (attention_heads, key_value_heads, feed_forward)");
  Model small = gpt_model();
  small.vocabulary = 3;
  const auto empty = check_divisible(small, 4);
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message().find("a vocabulary of 3 leaves ranks"), std::string::npos);
  Model odd = llama_model();
  odd.attention_heads = odd.key_value_heads = 32;
  const auto unpaired = check_supported(odd);
  ASSERT_FALSE(unpaired);
  EXPECT_NE(unpaired.error().message().find("a head has 1"), std::string::npos);
}

}  // namespace
}  // namespace sailor::runtime::test::runtime_tensor_parallel_test
