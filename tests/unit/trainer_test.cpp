// The plan changes how fast training goes, never what comes out: every division of the work, over ranks that are
// threads, against one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>

#include "core/files.hpp"
#include "runtime/data/token_file_writer.hpp"
#include "runtime/trainer.hpp"
#include "runtime_models.hpp"
#include "tests/fakes/thread_communicator.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor {

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }  // NOLINT(readability-identifier-naming)

}  // namespace sailor

namespace sailor::runtime::test {
namespace {

namespace fs = std::filesystem;

constexpr int sequence_length = 8;
constexpr int iterations = 30;

/// A stage: its layers by chunk, its degree, what it recomputes.
struct StageSketch {
  std::vector<LayerRange> chunks;
  int tensor_parallel = 1;
  Recompute recompute = Recompute::none;
};

struct PipelineSketch {
  int micro_batches = 1;
  int micro_batch = 1;
  std::vector<StageSketch> stages;
  int count = 1;
};

Plan plan_of(const std::vector<PipelineSketch>& sketches, Schedule schedule = Schedule::one_f_one_b,
             OptimizerSharding sharding = OptimizerSharding::none) {
  Plan plan;
  plan.job = {.model = "any", .global_batch = 0, .sequence_length = sequence_length, .precision = {}, .optimizer = {}};
  plan.schedule = schedule;
  plan.optimizer_sharding = sharding;
  for (const PipelineSketch& sketch : sketches) {
    Pipeline pipeline{
        .count = sketch.count, .micro_batches = sketch.micro_batches, .micro_batch = sketch.micro_batch, .stages = {}};
    for (const StageSketch& part : sketch.stages) {
      sailor::Stage stage;
      stage.layers = part.chunks.front();
      stage.later_chunks.assign(part.chunks.begin() + 1, part.chunks.end());
      stage.gpu = "cpu";
      stage.tensor_parallel = part.tensor_parallel;
      stage.recompute = part.recompute;
      pipeline.stages.push_back(std::move(stage));
    }
    plan.pipelines.push_back(std::move(pipeline));
    plan.job.global_batch += sketch.count * sketch.micro_batches * sketch.micro_batch;
  }
  return plan;
}

/// Four blocks, so that there is something to divide: layers 0 to 5, one more with a separate final norm.
Model deep(Model model) {
  model.blocks = 4;
  model.key_value_heads = std::max(model.key_value_heads, 4);  // for tensor parallelism 4
  return model;
}

/// A file of tokens that a small model can learn something of.
class Corpus {
 public:
  Corpus() {
    std::string pattern = (fs::temp_directory_path() / "sailor-trainer-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    std::string text;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>((i * 7 + i / 40) % 23);
    if (!write_file_atomically(folder_ / "text", text) || !write_byte_tokens(prefix(), {folder_ / "text"}))
      throw std::runtime_error("no corpus");
  }
  ~Corpus() { fs::remove_all(folder_); }
  [[nodiscard]] std::string prefix() const { return (folder_ / "corpus").string(); }

 private:
  fs::path folder_;
};

const Corpus& corpus() {
  static const Corpus made;
  return made;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::pair<int, std::string>, std::vector<double>> weights;  // by layer and name, whole; NaN: nobody has it
  double spread = 0.0;  // largest difference between ranks that hold the same
};

Outcome train(const Plan& plan, const Model& model, double clip_norm = 0.5, bool overlap = true) {
  Outcome outcome;
  std::mutex mutex;
  run_ranks(plan.ranks(), [&](Communicator& world) {
    const auto device = make_cpu_device();
    const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
    if (!samples) throw std::runtime_error(samples.error().message());
    if (auto good = check_trainable(plan, model, world.size()); !good) throw std::runtime_error(good.error().message());
    Trainer trainer(
        plan, model,
        {.seed = 3,
         .optimizer = {},
         .learning_rate = {.peak = 0.004f, .least = 0.0005f, .warm_up_iterations = 3, .decay_iterations = 25},
         .clip_norm = clip_norm,
         .overlap_reduction = overlap},
        *device, world, *samples);
    for (int i = 0; i < iterations; ++i) {
      const IterationResult result = trainer.run(i);
      if (world.rank() != 0) continue;
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
    }
    const std::scoped_lock lock(mutex);
    for (const Parameter* parameter : trainer.parameters().parameters()) {
      auto& whole = outcome.weights[{parameter->layer, parameter->name}];
      whole.resize(static_cast<std::size_t>(parameter->whole_elements()), std::nan(""));
      for (const Piece& piece : parameter->pieces())
        for (std::int64_t i = 0; i < piece.count; ++i) {
          double& value = whole[static_cast<std::size_t>(piece.whole + i)];
          const double mine = load(parameter->value + (piece.local + i));
          if (!std::isnan(value)) outcome.spread = std::max(outcome.spread, std::abs(value - mine));
          value = mine;
        }
    }
  });
  return outcome;
}

/// Elements of the biases of keys, whose gradient is zero but for rounding, which AdamW blows up.
Range key_biases(const Model& model) {
  return {model.hidden, model.hidden + std::int64_t{model.key_value_heads} * model.head_width()};
}

void expect_same(const Outcome& one, const Outcome& many, const Model& model) {
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(many.losses[i] / one.losses[i], 1.0, 1e-4) << "loss of iteration " << i;
    EXPECT_NEAR(many.norms[i] / one.norms[i], 1.0, 1e-3) << "gradient norm of iteration " << i;
  }
  ASSERT_EQ(many.weights.size(), one.weights.size());
  for (const auto& [key, expected] : one.weights) {
    const std::vector<double>& values = many.weights.at(key);
    ASSERT_EQ(values.size(), expected.size()) << key.second;
    double error = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto element = static_cast<std::int64_t>(i);
      const Range keys = key_biases(model);
      if (key.second == "attention.input.bias" && keys.first <= element && element < keys.last) continue;
      error += (values[i] - expected[i]) * (values[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    EXPECT_LE(std::sqrt(error), 1e-3 * std::sqrt(norm)) << "layer " << key.first << ", " << key.second;
  }
  EXPECT_LE(many.spread, 1e-6);  // replicas, and the ranks of a tensor-parallel group, stay alike
}

Plan in_bfloat16(Plan plan) {
  plan.job.precision = Precision::bf16;
  return plan;
}

/// All of a batch of 12 on one rank.
const Outcome& alone(const Model& model, Precision precision = Precision::fp32) {
  static std::map<std::pair<std::string, Precision>, Outcome> known;
  const auto [entry, is_new] = known.try_emplace({model.name, precision});
  if (is_new) {
    Plan plan = plan_of({{6, 2, {{{{0, model.layers()}}}}}});
    plan.job.precision = precision;
    entry->second = train(plan, model);
  }
  return entry->second;
}

/// Losses in bfloat16: what is rounded elsewhere goes on to differ. A loss is a mean over 96 tokens, each with an error
/// of a few roundings of 2^-8 at most in its logits; 1e-3 is the most that was seen over all divisions and models.
void expect_losses_near(const Outcome& one, const Outcome& many) {
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(many.losses[i] / one.losses[i], 1.0, 5e-3) << "loss of iteration " << i;
  EXPECT_EQ(many.spread, 0.0);  // replicas, and the ranks of a tensor-parallel group, stay alike
}

using Named = std::pair<const char*, Plan>;

/// Batches of 12 in every way that has a name, for models of `last` layers.
std::vector<Named> divisions(int last) {
  const auto whole = [&](int degree, Recompute recompute = Recompute::none) {
    return std::vector<StageSketch>{{{{0, last}}, degree, recompute}};
  };
  const auto two = [&](int at, int first, int second, Recompute recompute = Recompute::none) {
    return std::vector<StageSketch>{{{{0, at}}, first, recompute}, {{{at, last}}, second, recompute}};
  };
  const auto three = [&](int a, int b, std::vector<int> degrees) {
    return std::vector<StageSketch>{{{{0, a}}, degrees[0]}, {{{a, b}}, degrees[1]}, {{{b, last}}, degrees[2]}};
  };
  const std::vector<StageSketch> interleaved{{{{0, 1}, {3, 4}}}, {{{1, 3}, {4, last}}}};
  const std::vector<StageSketch> interleaved_tp{{{{0, 2}, {3, 4}}, 2}, {{{2, 3}, {4, last}}, 4, Recompute::full}};
  using enum Schedule;
  constexpr auto zero1 = OptimizerSharding::zero1;
  return {
      {"accumulation", plan_of({{12, 1, whole(1)}})},
      {"data parallel", plan_of({{3, 2, whole(1), 2}})},
      {"data parallel, three", plan_of({{2, 2, whole(1), 3}})},
      {"unequal micro-batch counts", plan_of({{5, 1, whole(1)}, {7, 1, whole(1)}})},
      {"unequal micro-batches", plan_of({{1, 4, whole(1)}, {4, 2, whole(1)}})},
      {"tensor parallel 2", plan_of({{6, 2, whole(2)}})},
      {"tensor parallel 4", plan_of({{3, 4, whole(4)}})},
      {"two stages", plan_of({{6, 2, two(3, 1, 1)}})},
      {"uneven stages", plan_of({{12, 1, two(1, 1, 1)}})},
      {"three stages", plan_of({{4, 3, three(2, 4, {1, 1, 1})}})},
      {"gpipe", plan_of({{4, 3, three(1, 3, {1, 1, 1})}}, gpipe)},
      {"interleaved", plan_of({{6, 2, interleaved}}, interleaved_1f1b)},
      {"interleaved, several degrees", plan_of({{4, 3, interleaved_tp}}, interleaved_1f1b)},
      {"stages of rising degree", plan_of({{6, 2, three(2, 3, {1, 2, 4})}})},
      {"stages of falling degree", plan_of({{6, 2, three(2, 5, {4, 2, 1})}})},
      {"replicas of other degree", plan_of({{3, 2, whole(2)}, {3, 2, whole(1)}})},
      {"replicas of three degrees", plan_of({{2, 2, whole(4)}, {2, 2, whole(2)}, {2, 2, whole(1)}})},
      {"replicas of other depth", plan_of({{2, 2, three(1, 4, {1, 1, 1})}, {4, 2, whole(1)}})},
      {"other depth and degree", plan_of({{2, 2, two(2, 2, 1)}, {4, 1, three(1, 4, {1, 4, 2})}, {2, 2, whole(1)}})},
      {"sixteen ranks", plan_of({{2, 2, two(2, 4, 4)}, {4, 1, two(4, 2, 2)}, {1, 2, whole(2), 2}})},
      {"zero1", plan_of({{3, 2, whole(1), 2}}, one_f_one_b, zero1)},
      {"zero1 over five", plan_of({{2, 1, whole(1), 4}, {4, 1, whole(1)}}, one_f_one_b, zero1)},
      {"zero1 of several degrees", plan_of({{3, 2, whole(2)}, {3, 2, two(3, 1, 4)}}, one_f_one_b, zero1)},
      {"zero1, interleaved", plan_of({{4, 1, interleaved}, {4, 2, interleaved}}, interleaved_1f1b, zero1)},
      {"zero1, gpipe", plan_of({{2, 3, two(2, 1, 2)}, {2, 3, two(4, 2, 1)}}, gpipe, zero1)},
      {"full recomputation", plan_of({{6, 2, whole(1, Recompute::full)}})},
      {"selective recomputation", plan_of({{6, 2, whole(1, Recompute::selective)}})},
      {"full recomputation, divided", plan_of({{6, 2, two(3, 2, 1, Recompute::full)}})},
      {"selective recomputation, divided", plan_of({{6, 2, two(2, 1, 2, Recompute::selective)}}, gpipe)},
      {"everything at once",
       plan_of({{2, 2, two(3, 2, 4, Recompute::selective)}, {4, 2, three(1, 3, {1, 2, 1})}}, one_f_one_b, zero1)},
  };
}

class EveryModel : public ::testing::TestWithParam<Model> {};

TEST_P(EveryModel, TrainsAlikeInEveryDivision) {
  const Model model = deep(GetParam());
  const Outcome& one = alone(model);
  EXPECT_LT(one.losses.back(), one.losses.front());  // it learns
  for (const auto& [name, plan] : divisions(model.layers())) {
    SCOPED_TRACE(name);
    expect_same(one, train(plan, model), model);
  }
}

INSTANTIATE_TEST_SUITE_P(RuntimeTrainer, EveryModel,
                         ::testing::Values(gpt_model(), opt_model(), neo_model(), llama_model(), mixed_model()),
                         [](const auto& model) { return model.param.name; });

TEST_P(EveryModel, TrainsInBfloat16AsInFloat32) {
  const Model model = deep(GetParam());
  const Outcome& narrow = alone(model, Precision::bf16);
  expect_losses_near(alone(model), narrow);
  EXPECT_NE(alone(model).losses, narrow.losses);
  EXPECT_LT(narrow.losses.back(), narrow.losses.front());  // it learns
}

TEST(RuntimeTrainer, EveryDivisionTrainsAlikeInBfloat16) {
  for (const Model& small : {opt_model(), neo_model(), llama_model()}) {
    const Model model = deep(small);
    SCOPED_TRACE(model.name);
    for (const auto& [name, plan] : divisions(model.layers())) {
      SCOPED_TRACE(name);
      expect_losses_near(alone(model, Precision::bf16), train(in_bfloat16(plan), model));
    }
  }
}

TEST(RuntimeTrainer, RecomputationInBfloat16GivesTheSameBits) {
  for (const Model& small : {gpt_model(), opt_model(), llama_model()}) {
    const Model model = deep(small);
    SCOPED_TRACE(model.name);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      const Outcome again = train(in_bfloat16(plan_of({{6, 2, {{{{0, model.layers()}}, 1, recompute}}}})), model);
      EXPECT_EQ(again.losses, alone(model, Precision::bf16).losses);
      EXPECT_EQ(again.weights, alone(model, Precision::bf16).weights);
    }
  }
}

TEST(RuntimeTrainer, DividedMasterValuesTrainTheSameBits) {
  const Model model = deep(gpt_model());
  const auto plan = [&](OptimizerSharding sharding) {
    return in_bfloat16(plan_of({{2, 2, {{{{0, 3}}}, {{{3, 6}}, 2}}, 3}}, Schedule::one_f_one_b, sharding));
  };
  const Outcome whole = train(plan(OptimizerSharding::none), model, 0.0);
  const Outcome divided = train(plan(OptimizerSharding::zero1), model, 0.0);
  EXPECT_EQ(divided.losses, whole.losses);
  EXPECT_EQ(divided.weights, whole.weights);
}

TEST(RuntimeTrainer, ClippingScalesBySumsOverAllRanks) {
  const Model model = deep(gpt_model());
  const Plan plan = plan_of({{3, 2, {{{{0, 3}}, 2}, {{{3, 6}}}}}, {6, 1, {{{{0, 6}}}}}});
  expect_same(train(plan_of({{6, 2, {{{{0, 6}}}}}}), model, 1e-3), train(plan, model, 1e-3), model);
}

TEST(RuntimeTrainer, AGradientThatIsNotFiniteChangesNothing) {
  const Model model = deep(gpt_model());
  for (const auto sharding : {OptimizerSharding::none, OptimizerSharding::zero1})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const Plan plan = plan_of({{3, 2, {{{{0, 3}}, 2}, {{{3, 6}}}}}, {6, 1, {{{{0, 6}}}}}}, {}, sharding);
      run_ranks(plan.ranks(), [&](Communicator& world) {
        const auto device = make_cpu_device();
        const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
        ASSERT_TRUE(samples.has_value());
        ParameterStorage* storage = nullptr;
        bool poison = false;
        Trainer trainer(plan, model,
                        {.learning_rate = {.peak = 0.004f},
                         .clip_norm = 1.0,
                         .after_layer =
                             [&](int, Pass pass) {
                               if (poison && pass == Pass::backward && world.rank() == 1) storage->gradients()[7] = bad;
                             }},
                        *device, world, *samples);
        storage = &trainer.parameters();
        const auto state = [&] {
          std::vector<float> all;
          for (const Parameter* parameter : storage->parameters())
            for (std::int64_t i = 0; i < parameter->elements(); ++i) all.push_back(load(parameter->value + i));
          for (const AdamW::Part& part : trainer.optimizer().parts())
            for (const float* moments : {trainer.optimizer().first_moments(), trainer.optimizer().second_moments()})
              all.insert(all.end(), moments + part.moment, moments + part.moment + part.count);
          return all;
        };
        EXPECT_FALSE(trainer.run(0).diverged);
        const std::vector<float> before = state();
        poison = true;
        const IterationResult result = trainer.run(1);
        EXPECT_TRUE(result.diverged);
        EXPECT_FALSE(result.updated);
        EXPECT_TRUE(std::isfinite(result.loss));
        EXPECT_FALSE(std::isfinite(result.gradient_norm));
        EXPECT_EQ(state(), before);
        poison = false;
        EXPECT_FALSE(trainer.run(2).diverged);
        EXPECT_NE(state(), before);
      });
    }
}

TEST(RuntimeTrainer, SumsDuringTheBackwardPassAreThoseAfterIt) {
  const Model model = deep(opt_model());
  const Plan plan = plan_of({{3, 2, {{{{0, 3}}}, {{{3, 6}}}}}, {6, 1, {{{{0, 6}}}}}});
  const Outcome after = train(plan, model, 0.5, false);
  const Outcome during = train(plan, model, 0.5, true);
  EXPECT_EQ(after.losses, during.losses);
  EXPECT_EQ(after.weights, during.weights);
}

TEST(RuntimeLearningRate, WarmsUpAndFallsAsACosine) {
  const LearningRate rate{.peak = 1.0f, .least = 0.2f, .warm_up_iterations = 4, .decay_iterations = 12};
  EXPECT_FLOAT_EQ(rate.at(0), 0.25f);
  EXPECT_FLOAT_EQ(rate.at(3), 1.0f);
  EXPECT_FLOAT_EQ(rate.at(4), 1.0f);
  EXPECT_FLOAT_EQ(rate.at(8), 0.6f);  // half-way
  EXPECT_FLOAT_EQ(rate.at(12), 0.2f);
  EXPECT_FLOAT_EQ(rate.at(1000), 0.2f);
  EXPECT_FLOAT_EQ((LearningRate{.peak = 1.0f}.at(1000)), 1.0f);
}

#ifdef SAILOR_HAVE_RAPIDCHECK
RC_GTEST_PROP(RuntimeTrainer, RandomPlansTrainAlike, ()) {
  const std::vector<Model> models{gpt_model(), opt_model(), neo_model(), llama_model(), mixed_model()};
  const Model model = deep(*rc::gen::elementOf(models));
  const auto schedule = *rc::gen::element(Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved_1f1b);
  const bool interleaves = schedule == Schedule::interleaved_1f1b;
  std::vector<PipelineSketch> pipelines;
  int left = 12;  // sequences
  int ranks = 0;
  while (left > 0) {
    PipelineSketch pipeline;
    const int stages = *rc::gen::inRange(interleaves ? 2 : 1, 4);
    // Ranges of layers of all chunks of all stages.
    const int ranges = std::min(interleaves ? 2 * stages : stages, model.layers());
    std::vector<int> cuts{0};
    for (int i = 1; i < ranges; ++i)
      cuts.push_back(*rc::gen::inRange(cuts.back() + 1, model.layers() - (ranges - i) + 1));
    cuts.push_back(model.layers());
    for (int s = 0; s < stages; ++s) {
      StageSketch stage;
      for (int c = s; c < ranges; c += stages)
        stage.chunks.push_back({cuts[static_cast<std::size_t>(c)], cuts[static_cast<std::size_t>(c) + 1]});
      stage.tensor_parallel = model.key_value_heads % 4 == 0 ? *rc::gen::element(1, 1, 2, 4) : *rc::gen::element(1, 2);
      stage.recompute = *rc::gen::element(Recompute::none, Recompute::selective, Recompute::full);
      ranks += stage.tensor_parallel;
      pipeline.stages.push_back(std::move(stage));
    }
    const bool is_last = ranks > 10 || pipelines.size() == 3;
    const int sequences = is_last ? left : *rc::gen::inRange(1, left + 1);
    pipeline.micro_batch = *rc::gen::element(1, 2, 3);
    if (sequences % pipeline.micro_batch != 0) pipeline.micro_batch = 1;
    pipeline.micro_batches = sequences / pipeline.micro_batch;
    RC_PRE(!interleaves || (ranges == 2 * stages && pipeline.micro_batches % stages == 0));
    left -= sequences;
    pipelines.push_back(std::move(pipeline));
  }
  RC_PRE(ranks <= 16);
  Plan plan = plan_of(pipelines, schedule, *rc::gen::element(OptimizerSharding::none, OptimizerSharding::zero1));
  plan.job.precision = *rc::gen::element(Precision::fp32, Precision::fp32, Precision::bf16);
  RC_LOG() << plan_to_toml(plan);
  if (plan.job.precision == Precision::bf16)
    expect_losses_near(alone(model, Precision::bf16), train(plan, model));
  else
    expect_same(alone(model), train(plan, model), model);
  RC_ASSERT(!::testing::Test::HasFailure());
}
#endif

}  // namespace
}  // namespace sailor::runtime::test
