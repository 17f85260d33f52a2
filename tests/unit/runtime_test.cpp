// The runtime except its arithmetic: parameters, memory of layers, schedule, gradient groups, refused input, data.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "core/files.hpp"
#include "profile/estimate.hpp"
#include "runtime/data/sample_order.hpp"
#include "runtime/data/samples.hpp"
#include "runtime/data/token_file_writer.hpp"
#include "runtime/gradient_groups.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/stage.hpp"
#include "runtime_models.hpp"
#include "simulator/framework.hpp"

namespace sailor::runtime::test::runtime_test {
namespace {

namespace fs = std::filesystem;

/// Pipelines given as (micro-batches, stage boundaries {0, ..., layers}).
Plan make_plan(const std::vector<std::pair<int, std::vector<int>>>& pipelines) {
  Plan plan;
  plan.job = {.model = "gpt", .global_batch = 0, .sequence_length = 8, .precision = {}, .optimizer = {}};
  for (const auto& [micro_batches, bounds] : pipelines) {
    Pipeline pipeline;
    pipeline.micro_batches = micro_batches;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      sailor::Stage stage;
      stage.layers = {bounds[i], bounds[i + 1]};
      stage.gpu = "cpu";
      pipeline.stages.push_back(stage);
    }
    plan.pipelines.push_back(pipeline);
    plan.job.global_batch += micro_batches;
  }
  return plan;
}

// ---- Parameters

TEST(RuntimeParameters, LayersHaveAsManyAsTheModelSays) {
  const auto device = make_cpu_device();
  for (const Model& model : all_models_and_experts())
    for (const int index : {0, 1, 2, 3}) {
      Parameter table;  // of a tied head, which does not count
      const auto layer = make_layer(model, index, {.token_embedding = &table});
      const ParameterStorage storage(*device, {layer.get()});
      EXPECT_EQ(storage.elements(), model.layer_parameters(index)) << model.name << ", layer " << index;
    }
}

TEST(RuntimeParameters, InitialValuesDependOnSeedLayerAndNameOnly) {
  Parameter parameter{.name = "a", .shape = {50, 40}, .layer = 1, .initial = InitialValue::normal, .deviation = 0.02f};
  const auto values = initial_values(parameter, 5);
  EXPECT_EQ(initial_values(parameter, 5), values);
  EXPECT_NE(initial_values(parameter, 6), values);
  parameter.layer = 2;
  EXPECT_NE(initial_values(parameter, 5), values);
  parameter.layer = 1;
  parameter.name = "b";
  EXPECT_NE(initial_values(parameter, 5), values);
}

TEST(RuntimeParameters, InitialValuesAreNormalEnough) {
  const Parameter parameter{.name = "a", .shape = {100000}, .initial = InitialValue::normal, .deviation = 2.0f};
  const auto values = initial_values(parameter, 1);
  double sum = 0.0;
  double squares = 0.0;
  double beyond = 0.0;  // two deviations
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
    beyond += std::abs(value) > 4.0f ? 1.0 : 0.0;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.03);
  EXPECT_NEAR(std::sqrt(squares / 1e5), 2.0, 0.02);
  EXPECT_NEAR(beyond / 1e5, 0.0455, 0.004);
}

// What estimates of layers that nobody measured stand on (profile/estimate.hpp): statistics of norms and logarithms of
// softmax denominators, a few numbers for each token, are not counted there.
TEST(StageLayers, KeepWhatIsEstimatedForThisRuntime) {
  const simulator::Framework sailor =
      simulator::load_framework(SAILOR_SOURCE_DIR "/profiles/frameworks/sailor.toml").value();
  const auto device = make_cpu_device();
  for (Model model : all_models_and_experts()) {
    if (model.embedding_width < model.hidden) continue;  // projections of the embedding are not estimated
    model.hidden = model.embedding_width = 256;
    model.feed_forward = model.activation == Activation::swiglu ? 672 : 1024;
    model.vocabulary = 500;
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(fmt::format("{}, {}", model.name, to_string(recompute)));
      Stage stage;
      stage.layers = {0, model.layers()};
      stage.recompute = recompute;
      StageLayers layers(model, stage, {.device = device.get()});
      layers.parameters().initialize(1);
      TestBatch batch(model);
      static_cast<void>(layers.forward(0, batch.micro_batch, {}));
      double estimated = 0.0;
      for (int layer = 0; layer < model.layers(); ++layer)
        estimated += layer_sizes(model,
                                 {.model = model.name,
                                  .gpu = "cpu",
                                  .recompute = recompute,
                                  .micro_batch = TestBatch::sequences,
                                  .sequence_length = TestBatch::sequence_length,
                                  .kind = model.layer_kind(layer),
                                  .first_layer = layer},
                                 sailor.kernels)
                         .activation.value();
      EXPECT_NEAR(layers.activation().value() / estimated, 1.0, 0.02);
    }
  }
}

TEST(RuntimeParameters, ACopyOfTheTiedEmbeddingStartsEqual) {
  const auto device = make_cpu_device();
  const Model model = gpt_model();
  StageLayers first(model, {0, 2}, *device);
  StageLayers last(model, {2, 4}, *device);
  for (StageLayers* stage : {&first, &last}) stage->parameters().initialize(3);
  const Parameter& original = *first.parameters().parameters().front();
  const Parameter& copy = *last.parameters().parameters().back();
  EXPECT_TRUE(std::equal(original.value.floats(), original.value.floats() + original.elements(), copy.value.floats()));
}

TEST(RuntimeParameters, OnlyMatricesDecayAndResidualOutputsStartSmaller) {
  const auto device = make_cpu_device();
  const auto block = make_layer(gpt_model(), 1, {.device = device.get()});
  for (const Parameter& parameter : block->parameters())
    EXPECT_EQ(parameter.decays, parameter.shape.size() == 2) << parameter.name;
  const auto deviation = [&](const std::string& name) {
    for (const Parameter& parameter : block->parameters())
      if (parameter.name == name) return parameter.deviation;
    return -1.0f;
  };
  EXPECT_FLOAT_EQ(deviation("attention.input.weight"), 0.02f);
  EXPECT_FLOAT_EQ(deviation("attention.output.weight"), 0.01f);  // 0.02 / sqrt(2 * 2 blocks)
  EXPECT_FLOAT_EQ(deviation("feed_forward.output.weight"), 0.01f);
}

// ---- Memory of layers

/// A block by itself, and random hidden states for it.
struct LoneBlock {
  explicit LoneBlock(const Model& model)
      : width(model.hidden),
        layer(make_layer(model, 1, {.device = device.get()})),
        storage(*device, std::vector<Layer*>{layer.get()}),
        optimizer(*device, storage) {
    storage.initialize(1);
  }

  [[nodiscard]] Tensor hidden_states(std::uint64_t seed) const {
    const Parameter like{.name = "noise",
                         .shape = {micro_batch.token_count(), width},
                         .initial = InitialValue::normal,
                         .deviation = 1.0f};
    Tensor tensor(*device, like.shape);
    device->main().copy_from_host(tensor.data(), initial_values(like, seed).data(), tensor.bytes());
    return tensor;
  }

  MicroBatch micro_batch{.sequences = 2, .sequence_length = 9};
  std::int64_t width;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Layer> layer;
  ParameterStorage storage;
  AdamW optimizer;
  Slot slot;
};

TEST(RuntimeLayerMemory, ABlockKeepsWhatItsCommentSays) {
  // Pre-norm: 6 * hidden + feed_forward, 4 statistics, one log-sum per head. Post-norm: one hidden more.
  for (const auto& [model, hidden_states] : {std::pair{gpt_model(), 6}, std::pair{opt_model(), 7}}) {
    LoneBlock block(model);
    const double before = block.device->memory_use().alive.value();
    const Tensor output = block.layer->forward(block.micro_batch, block.hidden_states(1), block.slot);
    EXPECT_EQ(block.slot.bytes().value(), 18.0 * (hidden_states * 16 + 32 + 4 + 4) * 4);
    EXPECT_EQ(output.bytes(), 18u * 16 * 4);
    EXPECT_EQ(block.device->memory_use().alive.value() - before,
              block.slot.bytes().value() + static_cast<double>(output.bytes()));
    const Tensor gradient = block.layer->backward(block.micro_batch, block.hidden_states(2), block.slot);
    EXPECT_EQ(block.slot.bytes().value(), 0.0);
    EXPECT_EQ(gradient.shape(), (Shape{18, 16}));
  }
}

TEST(RuntimeLayerMemory, RepeatedIterationsReserveNoMore) {
  LoneBlock block(gpt_model());
  double reserved = 0.0;
  for (int i = 0; i < 5; ++i) {
    static_cast<void>(block.layer->forward(block.micro_batch, block.hidden_states(1), block.slot));
    static_cast<void>(block.layer->backward(block.micro_batch, block.hidden_states(2), block.slot));
    block.optimizer.step({.step = i + 1});
    block.storage.zero_gradients();
    if (i == 0) reserved = block.device->memory_use().reserved.value();
  }
  EXPECT_EQ(block.device->memory_use().reserved.value(), reserved);
}

TEST(RuntimeLayerMemory, UntrainedModelsGuessUniformly) {
  for (const Model& model : all_models_and_experts()) {
    WholeModel whole(model);
    whole.storage().initialize(1);
    EXPECT_NEAR(whole.loss(), std::log(23.0), 0.3) << model.name;
  }
}

// ---- Gradient groups

/// "0: token_embedding.weight[0,368) position_embedding.weight[...) 1: ..." of the ranks' groups, by ranks.
std::map<std::vector<int>, std::set<int>> layers_by_ranks(const std::vector<GradientGroup>& groups) {
  std::map<std::vector<int>, std::set<int>> layers;
  for (const GradientGroup& group : groups)
    for (const GradientSlice& slice : group.slices)
      layers[group.ranks].insert(slice.name == token_embedding_name ? -1 : slice.layer);
  return layers;
}

std::vector<GradientGroup> groups_of(const Plan& plan, const Model& model) {
  return ParameterMap(plan, model).groups();
}

using Layers = std::map<std::vector<int>, std::set<int>>;  // -1: the tied token embedding

TEST(RuntimeGradientGroups, UnequalPipelinesSumEachLayerOverExactlyItsHolders) {
  // Ranks 0-1: layers [0,2), [2,4). Rank 2: all four. The tied matrix: both ends of pipeline 0, and rank 2.
  EXPECT_EQ(layers_by_ranks(groups_of(make_plan({{3, {0, 2, 4}}, {1, {0, 4}}}), gpt_model())),
            (Layers{{{0, 1, 2}, {-1}}, {{0, 2}, {0, 1}}, {{1, 2}, {2, 3}}}));
}

TEST(RuntimeGradientGroups, DataParallelismIsOneSum) {
  const auto groups = groups_of(make_plan({{1, {0, 4}}, {1, {0, 4}}}), gpt_model());
  EXPECT_EQ(layers_by_ranks(groups), (Layers{{{0, 1}, {-1, 0, 1, 2, 3}}}));
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].runs.size(), 1u);
}

TEST(RuntimeGradientGroups, AnUntiedHeadIsNotSummedWithTheEmbedding) {
  EXPECT_EQ(layers_by_ranks(groups_of(make_plan({{1, {0, 2, 4}}}), untied_model())),
            (Layers{{{0}, {-1, 0, 1}}, {{1}, {2, 3}}}));
}

TEST(RuntimeGradientGroups, ReplicasOfOtherDegreeSumSliceBySlice) {
  // Rank 0 holds all, ranks 1 and 2 halves; what is not divided, all three.
  Plan plan = make_plan({{1, {0, 4}}, {1, {0, 4}}});
  plan.pipelines[1].stages[0].tensor_parallel = 2;
  std::map<std::vector<int>, std::int64_t> elements;
  for (const GradientGroup& group : groups_of(plan, gpt_model())) {
    EXPECT_EQ(group.shared, group.ranks.size() == 3);
    EXPECT_TRUE(group.first);
    for (const GradientSlice& slice : group.slices) elements[group.ranks] += slice.whole.size();
  }
  // Per block of width 16: 4 x 16 norms, 2 x 16 biases behind sums; halves of 3 x 16 x 17, 16 x 16, 32 x 17, 32 x 16.
  // Final norm 2 x 16, positions 12 x 16. Of the 23 rows of the embedding rank 1 has 11, rank 2 has 12.
  EXPECT_EQ(elements, (std::map<std::vector<int>, std::int64_t>{
                          {{0, 1, 2}, 2 * 96 + 32 + 192}, {{0, 1}, 2 * 1064 + 11 * 16}, {{0, 2}, 2 * 1064 + 12 * 16}}));
}

TEST(RuntimeGradientGroups, EqualDegreesSumBetweenRanksOfTheSameIndexInOneCall) {
  Plan plan = make_plan({{1, {0, 4}}, {1, {0, 4}}});
  for (Pipeline& pipeline : plan.pipelines) pipeline.stages[0].tensor_parallel = 2;
  const auto groups = groups_of(plan, gpt_model());
  ASSERT_GE(groups.size(), 2u);
  for (const GradientGroup& group : groups) {
    EXPECT_EQ(group.ranks.size(), 2u);
    EXPECT_EQ(group.ranks[1] - group.ranks[0], 2);
    EXPECT_FALSE(group.shared);
  }
}

// ---- What is refused

TEST(RuntimeSupport, RefusesWhatItCannotTrainAndSaysWhatItCan) {
  const Plan plan = make_plan({{1, {0, 4}}});
  EXPECT_TRUE(check_supported(plan, gpt_model()));
  const auto refused = [](const Plan& p, const Model& m) {
    const auto result = check_supported(p, m);
    EXPECT_FALSE(result);
    return result ? std::string() : result.error().message();
  };
  Plan other = plan;
  other.job.precision = Precision::fp16;
  EXPECT_TRUE(check_supported(other, gpt_model()));
  other = plan;
  other.pipelines[0].stages[0].tensor_parallel = 3;
  EXPECT_NE(refused(other, gpt_model()).find("attention_heads = 4 cannot be divided by tensor_parallel = 3"),
            std::string::npos)
      << refused(other, gpt_model());
  other = plan;
  other.optimizer_sharding = OptimizerSharding::zero3;
  EXPECT_NE(refused(other, gpt_model()).find("optimizer_sharding = \"zero3\", which sailor-train does not run"),
            std::string::npos)
      << refused(other, gpt_model());
  other = plan;
  other.context_parallel = 8;
  EXPECT_NE(refused(other, gpt_model())
                .find("attention_heads = 4 cannot be divided by tensor_parallel x context_parallel = 1 x 8"),
            std::string::npos)
      << refused(other, gpt_model());
  Model experts = gpt_model();
  experts.experts = {.count = 8, .per_token = 2, .feed_forward = 16, .bias = true};
  EXPECT_NE(refused(plan, experts)
                .find("has experts with another activation than swiglu, experts with biases, which sailor-train does "
                      "not compute"),
            std::string::npos)
      << refused(plan, experts);
  experts = experts_model();
  other = plan;
  other.pipelines[0].stages[0].tensor_parallel = 4;
  EXPECT_TRUE(check_supported(other, experts));
  experts.experts.feed_forward = 14;
  EXPECT_NE(refused(other, experts).find("experts.feed_forward = 14 cannot be divided by tensor_parallel = 4"),
            std::string::npos)
      << refused(other, experts);
}

// ---- Order of samples

TEST(RuntimeSampleOrder, EveryEpochIsAnotherPermutation) {
  for (const std::int64_t samples : {1, 2, 3, 10, 64, 1000}) {
    std::vector<std::vector<std::int64_t>> epochs(2);
    for (std::size_t epoch = 0; epoch < 2; ++epoch) {
      for (std::int64_t i = 0; i < samples; ++i)
        epochs[epoch].push_back(sample_at(42, static_cast<std::int64_t>(epoch) * samples + i, samples));
      auto sorted = epochs[epoch];
      std::sort(sorted.begin(), sorted.end());
      for (std::int64_t i = 0; i < samples; ++i) ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i) << samples;
    }
    if (samples >= 10) {
      EXPECT_NE(epochs[0], epochs[1]);
    }
  }
}

TEST(RuntimeSampleOrder, SeedsGiveDifferentOrders) {
  int equal = 0;
  for (std::int64_t i = 0; i < 1000; ++i) equal += sample_at(1, i, 1000) == sample_at(2, i, 1000) ? 1 : 0;
  EXPECT_LT(equal, 10);
}

// ---- Token files

class RuntimeData : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / fmt::format("sailor-data-{}", getpid());
    fs::create_directories(folder);
    prefix = (folder / "corpus").string();
  }
  void TearDown() override { fs::remove_all(folder); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder / name, std::ios::binary) << content;
  }
  /// The message of the error that opening gives.
  [[nodiscard]] std::string open_error() const {
    const auto file = TokenFile::open(prefix);
    return file ? "no error" : file.error().message();
  }

  fs::path folder;
  std::string prefix;
};

TEST_F(RuntimeData, BytesOfTextsComeBackAsTokens) {
  write("a.txt", "hello");
  write("b.txt", "w\xff");
  ASSERT_TRUE(write_byte_tokens(prefix, {folder / "a.txt", folder / "b.txt"}));
  const auto file = TokenFile::open(prefix);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->size(), 7);
  EXPECT_EQ(file->documents(), 2);
  std::vector<std::int32_t> tokens(4);
  ASSERT_TRUE(file->read(3, 256, tokens));  // across the documents
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{'l', 'o', 'w', 255}));
}

TEST_F(RuntimeData, TheIndexIsMegatronsByteForByte) {
  write("a.txt", "abc");
  ASSERT_TRUE(write_byte_tokens(prefix, {folder / "a.txt"}));
  const auto index = read_text_file(prefix + ".idx");
  ASSERT_TRUE(index);
  const std::string expected(
      "MMIDIDX\0\0"
      "\1\0\0\0\0\0\0\0"
      "\1"
      "\1\0\0\0\0\0\0\0"
      "\2\0\0\0\0\0\0\0"
      "\3\0\0\0"
      "\0\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0"
      "\1\0\0\0\0\0\0\0",
      9 + 8 + 1 + 8 + 8 + 4 + 8 + 16);
  EXPECT_EQ(*index, expected);
}

TEST_F(RuntimeData, AllTokenTypesAreRead) {
  const auto check = [&]<class T>(TokenType type, std::vector<T> values) {
    write("corpus.bin", std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
    const std::vector<std::int32_t> lengths{1, static_cast<std::int32_t>(values.size()) - 1};
    write("corpus.idx", token_index(type, lengths));
    const auto file = TokenFile::open(prefix);
    ASSERT_TRUE(file) << file.error().message();
    std::vector<std::int32_t> tokens(values.size());
    ASSERT_TRUE(file->read(0, 100000, tokens));
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(tokens[i], static_cast<std::int32_t>(values[i]));
  };
  check(TokenType::uint8, std::vector<std::uint8_t>{1, 200, 3});
  check(TokenType::int8, std::vector<std::int8_t>{1, 100, 3});
  check(TokenType::int16, std::vector<std::int16_t>{1, 30000, 3});
  check(TokenType::uint16, std::vector<std::uint16_t>{1, 60000, 3});
  check(TokenType::int32, std::vector<std::int32_t>{1, 99999, 3});
  check(TokenType::int64, std::vector<std::int64_t>{1, 99999, 3});
}

TEST_F(RuntimeData, RefusesForeignAndTruncatedFilesWithTheReason) {
  EXPECT_NE(open_error().find(".idx': No such file or directory"), std::string::npos) << open_error();
  EXPECT_NE(open_error().find("sailor-data makes one"), std::string::npos) << open_error();
  write("a.txt", "hello world");
  ASSERT_TRUE(write_byte_tokens(prefix, {folder / "a.txt"}));
  const std::string good = *read_text_file(prefix + ".idx");
  const auto with = [&](std::size_t at, char value) {
    std::string changed = good;
    changed[at] = value;
    write("corpus.idx", changed);
    return open_error();
  };
  write("corpus.idx", "");
  EXPECT_NE(open_error().find("the file is empty"), std::string::npos) << open_error();
  write("corpus.idx", "PK\3\4 something else entirely");
  EXPECT_NE(open_error().find("does not start with MMIDIDX"), std::string::npos) << open_error();
  EXPECT_NE(with(9, 2).find("has version 2; only 1 is known"), std::string::npos);
  EXPECT_NE(with(17, 6).find("has tokens of type 6; known are 1 uint8"), std::string::npos);
  EXPECT_NE(with(18, 9).find("is truncated or damaged: 9 sequences and 2 document marks"), std::string::npos);
  EXPECT_NE(with(25, '\x7f').find("is truncated or damaged"), std::string::npos);  // 2^62 sequences
  EXPECT_NE(with(37, '\x80').find("is damaged: sequence 0 has length -"), std::string::npos);
  // One document of one sequence: marks 0 and 1, of 8 bytes each, at the end.
  EXPECT_NE(
      with(good.size() - 8, 9).find("corpus.idx' is damaged: document mark 1 is 9, which is not between 0 and the 1"),
      std::string::npos);
  EXPECT_NE(with(good.size() - 1, '\x80').find("is damaged: document mark 1 is -"), std::string::npos);
  EXPECT_NE(with(good.size() - 16, 2).find("is damaged: document mark 0 is 2, "), std::string::npos);
  for (std::size_t size = 0; size < good.size(); ++size) {
    write("corpus.idx", good.substr(0, size));
    EXPECT_FALSE(TokenFile::open(prefix)) << size;
  }
  write("corpus.idx", good);
  write("corpus.bin", "hello worl");
  EXPECT_NE(open_error().find("corpus.bin' is truncated: it has 10 bytes, but by"), std::string::npos) << open_error();
  fs::remove(prefix + ".bin");
  EXPECT_NE(open_error().find("corpus.bin': No such file or directory"), std::string::npos) << open_error();
}

TEST_F(RuntimeData, RefusesTokensOutsideTheVocabularyWithTheirPosition) {
  write("a.txt", "aaz");
  ASSERT_TRUE(write_byte_tokens(prefix, {folder / "a.txt"}));
  const auto file = TokenFile::open(prefix);
  ASSERT_TRUE(file);
  std::vector<std::int32_t> tokens(3);
  const auto read = file->read(0, 'z', tokens);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message().find("corpus.bin' has token 122 at byte 2 (sequence 0), but the model's vocabulary "
                                        "ends at 121"),
            std::string::npos)
      << read.error().message();
}

TEST_F(RuntimeData, TargetsAreTheTokensThatFollow) {
  write("a.txt", "abcdefghi");  // 9 tokens: samples abcd(e), efgh(i)
  ASSERT_TRUE(write_byte_tokens(prefix, {folder / "a.txt"}));
  const auto samples = Samples::open(prefix, 4, 256, 1);
  ASSERT_TRUE(samples) << samples.error().message();
  ASSERT_EQ(samples->size(), 2);
  std::string seen;
  for (std::int64_t position = 0; position < 2; ++position) {
    std::vector<std::int32_t> tokens(4);
    std::vector<std::int32_t> targets(4);
    ASSERT_TRUE(samples->read(position, tokens, targets));
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(targets[i], tokens[i] + 1);
    seen += static_cast<char>(tokens[0]);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, "ae");
  const auto none = Samples::open(prefix, 9, 256, 1);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("has 9 tokens, but one sample of the plan takes 10"), std::string::npos)
      << none.error().message();
}

TEST_F(RuntimeData, AFailedWriteLeavesNothing) {
  write("a.txt", "abc");
  const auto missing = write_byte_tokens(prefix, {folder / "a.txt", folder / "b.txt"});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  write("empty.txt", "");
  const auto empty = write_byte_tokens(prefix, {folder / "empty.txt"});
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message().find("empty.txt' is empty; leave it out"), std::string::npos);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++files;
  EXPECT_EQ(files, 2u);  // the two texts
}

}  // namespace
}  // namespace sailor::runtime::test::runtime_test
