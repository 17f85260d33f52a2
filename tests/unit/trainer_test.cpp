// The plan changes the speed of training, never its result: every division of the work, over ranks that are threads,
// against one rank.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <thread>
#include <vector>

#include "runtime/token_feed.hpp"
#include "trainer_runs.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor {

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }  // NOLINT(readability-identifier-naming)

}  // namespace sailor

namespace sailor::runtime::test::trainer_test {
namespace {

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

Plan in(Precision precision, Plan plan) {
  plan.job.precision = precision;
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

/// Losses in bfloat16 and float16: what is rounded elsewhere goes on to differ. A loss is a mean over 96 tokens, each
/// with an error of a few roundings of 2^-8 at most in its logits; 1e-3 is the most that was seen over all divisions
/// and models.
void expect_losses_near(const Outcome& one, const Outcome& many) {
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(many.losses[i] / one.losses[i], 1.0, 5e-3) << "loss of iteration " << i;
  EXPECT_EQ(many.spread, 0.0);  // replicas, and the ranks of a tensor-parallel group, stay alike
}

/// Names and plans for the `which`-th model: a share of divisions(), another for every model.
std::vector<Named> divisions_for(int which, int layers) { return share_of(divisions(layers), which, 3); }

/// A share of expert_divisions(), by a number of ranks that divides the experts of a block.
std::vector<Named> expert_divisions_of(const Model& model, int which = 0) {
  if (model.experts.count % 4 == 0) return share_of(expert_divisions(model.layers()), which, 3);
  const std::vector<StageSketch> stages{{{{0, 3}}, 2}, {{{3, model.layers()}}}};
  return {{"expert parallel 3", with_experts_divided(3, plan_of({{2, 2, stages, 3}}))},
          {"expert parallel 3 of six copies",
           with_experts_divided(3, plan_of({{1, 2, {{{{0, model.layers()}}}}, 6}}, {}, OptimizerSharding::zero1))}};
}

const std::vector<Model>& models() {
  static const std::vector<Model> all{gpt_model(),   opt_model(),     neo_model(),          llama_model(),
                                      mixed_model(), experts_model(), shared_expert_model()};
  return all;
}

class EveryModel : public ::testing::TestWithParam<Model> {};

TEST_P(EveryModel, TrainsAlikeInEveryDivision) {
  const Model model = deep(GetParam());
  const Outcome& one = alone(model);
  EXPECT_LT(one.losses.back(), one.losses.front());  // it learns
  const auto found =
      std::find_if(models().begin(), models().end(), [](const Model& known) { return known.name == GetParam().name; });
  for (const auto& [name, plan] : divisions_for(static_cast<int>(found - models().begin()), model.layers())) {
    SCOPED_TRACE(name);
    expect_same(one, train(plan, model), model);
  }
  if (model.experts.count == 0) return;
  for (const auto& [name, plan] : expert_divisions_of(model)) {
    SCOPED_TRACE(name);
    expect_same(one, train(plan, model), model);
  }
}

INSTANTIATE_TEST_SUITE_P(RuntimeTrainer, EveryModel, ::testing::ValuesIn(models()),
                         [](const auto& model) { return model.param.name; });

TEST_P(EveryModel, TrainsInSixteenBitsAsInFloat32) {
  const Model model = deep(GetParam());
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Outcome& narrow = alone(model, precision);
    expect_losses_near(alone(model), narrow);
    EXPECT_NE(alone(model).losses, narrow.losses);
    EXPECT_LT(narrow.losses.back(), narrow.losses.front());  // it learns
  }
}

TEST(RuntimeTrainer, EveryDivisionTrainsAlikeInSixteenBits) {
  int which = 0;
  for (const Model& small : {opt_model(), neo_model(), llama_model()}) {
    const Model model = deep(small);
    SCOPED_TRACE(model.name);
    int turn = which;  // the next model has the other precision in each
    for (const auto& [name, plan] : divisions_for(which++, model.layers())) {
      SCOPED_TRACE(name);
      const Precision precision = turn++ % 2 == 0 ? Precision::bf16 : Precision::fp16;
      expect_losses_near(alone(model, precision), train(in(precision, plan), model));
    }
  }
}

TEST(RuntimeTrainer, ExpertParallelPlansTrainAlikeInSixteenBits) {
  const Model model = deep(experts_model());
  int turn = 0;
  for (const auto& [name, plan] : expert_divisions_of(model, 1)) {
    SCOPED_TRACE(name);
    const Precision precision = turn++ % 2 == 0 ? Precision::bf16 : Precision::fp16;
    expect_losses_near(alone(model, precision), train(in(precision, plan), model));
  }
}

TEST(RuntimeTrainer, TheLoadBalancingLossIsTheSameInEveryDivision) {
  const RunSettings balanced{.router_aux_loss = 0.1f};
  for (const Model& small : {experts_model(), shared_expert_model()}) {
    const Model model = deep(small);
    SCOPED_TRACE(model.name);
    const Outcome one = train(plan_of({{6, 2, {{{{0, model.layers()}}}}}}), model, balanced);
    EXPECT_NE(one.weights, alone(model).weights);
    std::vector<Named> plans = expert_divisions_of(model, 2);
    plans.emplace_back("tensor and context parallel",
                       in_parts(2, plan_of({{12, 1, {{{{0, 3}}, 2}, {{{3, model.layers()}}}}}})));
    for (const auto& [name, plan] : plans) {
      SCOPED_TRACE(name);
      expect_same(one, train(plan, model, balanced), model);
    }
  }
}

TEST(RuntimeTrainer, ARankWhoseExpertsGetNoTokensTrainsOn) {
  // More ranks than the tokens of a micro-batch go to: some get none.
  Model model = deep(experts_model());
  model.experts = {.count = 12, .per_token = 1, .feed_forward = 4};
  const Plan plan = with_experts_divided(12, plan_of({{1, 1, {{{{0, model.layers()}}}}, 12}}));
  expect_same(train(plan_of({{6, 2, {{{{0, model.layers()}}}}}}), model), train(plan, model), model);
}

TEST(RuntimeTrainer, RecomputationInBfloat16GivesTheSameBits) {
  for (const Model& small : {gpt_model(), opt_model(), llama_model()}) {
    const Model model = deep(small);
    SCOPED_TRACE(model.name);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      const Outcome again =
          train(in(Precision::bf16, plan_of({{6, 2, {{{{0, model.layers()}}, 1, recompute}}}})), model);
      EXPECT_EQ(again.losses, alone(model, Precision::bf16).losses);
      EXPECT_EQ(again.weights, alone(model, Precision::bf16).weights);
    }
  }
}

TEST(RuntimeTrainer, DividedMasterValuesTrainTheSameBits) {
  const Model model = deep(gpt_model());
  const auto plan = [&](OptimizerSharding sharding) {
    return in(Precision::bf16, plan_of({{2, 2, {{{{0, 3}}}, {{{3, 6}}, 2}}, 3}}, Schedule::one_f_one_b, sharding));
  };
  const Outcome whole = train(plan(OptimizerSharding::none), model, {.clip_norm = 0.0});
  const Outcome divided = train(plan(OptimizerSharding::zero1), model, {.clip_norm = 0.0});
  EXPECT_EQ(divided.losses, whole.losses);
  EXPECT_EQ(divided.weights, whole.weights);
}

TEST(RuntimeTrainer, ClippingScalesBySumsOverAllRanks) {
  const Model model = deep(gpt_model());
  const Plan plan = plan_of({{3, 2, {{{{0, 3}}, 2}, {{{3, 6}}}}}, {6, 1, {{{{0, 6}}}}}});
  const RunSettings clipped{.clip_norm = 1e-3};
  expect_same(train(plan_of({{6, 2, {{{{0, 6}}}}}}), model, clipped), train(plan, model, clipped), model);
}

TEST(RuntimeTrainer, AGradientThatIsNotFiniteChangesNothing) {
  const Model model = deep(gpt_model());
  for (const auto sharding : {OptimizerSharding::none, OptimizerSharding::zero1})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const Plan plan = plan_of({{3, 2, {{{{0, 3}}, 2}, {{{3, 6}}}}}, {6, 1, {{{{0, 6}}}}}}, {}, sharding);
      run_ranks(plan.ranks(), [&](const World& world) {
        const auto device = make_cpu_device();
        const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
        ASSERT_TRUE(samples.has_value());
        ParameterStorage* storage = nullptr;
        bool poison = false;
        const TrainerSettings settings{
            .learning_rate = {.peak = 0.004f}, .clip_norm = 1.0, .after_layer = [&](int, Pass pass) {
              if (poison && pass == Pass::backward && world.control.rank() == 1) storage->gradients()[7] = bad;
            }};
        TrainingState trained(plan, model, world.rank(), *device);
        trained.initialize(settings);
        Trainer trainer(trained, settings, world, &*samples);
        storage = &trained.parameters();
        const auto state = [&] {
          trainer.settle();
          device->synchronize();
          std::vector<float> all;
          for (const Parameter* parameter : storage->parameters())
            for (std::int64_t i = 0; i < parameter->elements(); ++i) all.push_back(load(parameter->value + i));
          for (const AdamW::Part& part : trained.optimizer().parts())
            for (const float* moments : {trained.optimizer().first_moments(), trained.optimizer().second_moments()})
              all.insert(all.end(), moments + part.moment, moments + part.moment + part.count);
          return all;
        };
        EXPECT_FALSE(trainer.run().diverged);
        const std::vector<float> before = state();
        poison = true;
        const IterationResult result = trainer.run();
        EXPECT_TRUE(result.diverged);
        EXPECT_FALSE(result.updated);
        EXPECT_TRUE(std::isfinite(result.loss));
        EXPECT_FALSE(std::isfinite(result.gradient_norm));
        EXPECT_EQ(state(), before);
        poison = false;
        EXPECT_FALSE(trainer.run().diverged);
        EXPECT_NE(state(), before);
      });
    }
}

TEST(RuntimeTrainer, GradientsThatOverflowInFp16HalveTheLossScaleAndChangeNothing) {
  const Model model = deep(gpt_model());
  const Plan plan = in(Precision::fp16, plan_of({{3, 2, {{{{0, 3}}, 2}, {{{3, 6}}}}}, {6, 1, {{{{0, 6}}}}}}));
  run_ranks(plan.ranks(), [&](const World& world) {
    const auto device = make_cpu_device();
    const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
    ASSERT_TRUE(samples.has_value());
    const LossScaleSettings scale{.initial = 16777216.0, .least = 64.0, .window = 5};
    const TrainerSettings settings{.learning_rate = {.peak = 0.004f}, .loss_scale = scale};
    TrainingState state(plan, model, world.rank(), *device);
    state.initialize(settings);
    Trainer trainer(state, settings, world, &*samples);
    const auto weights = [&] {
      trainer.settle();
      device->synchronize();
      std::vector<float> all;
      for (const Parameter* parameter : state.parameters().parameters())
        for (std::int64_t i = 0; i < parameter->elements(); ++i) all.push_back(load(parameter->value + i));
      return all;
    };
    LossScale expected{.factor = scale.initial};
    std::vector<float> before = weights();
    std::int64_t updates = 0;
    for (std::int64_t iteration = 0; iteration < 30; ++iteration) {
      const IterationResult result = trainer.run();
      EXPECT_FALSE(result.diverged);
      const std::vector<float> after = weights();
      EXPECT_EQ(after != before, result.updated);
      before = after;
      if (result.updated) {
        ++updates;
        EXPECT_LT(result.gradient_norm, 100.0);  // of the loss, whatever its scale
      }
      expected.update(scale, !result.updated);
      EXPECT_EQ(state.loss_scale().factor, expected.factor);
      EXPECT_EQ(state.loss_scale().good, expected.good);
      EXPECT_EQ(state.loss_scale().skipped, expected.skipped);
    }
    EXPECT_GT(expected.skipped, 1);  // 2^24 is too much at first, and again when the scale was doubled
    EXPECT_GT(updates, 10);
  });
}

TEST(RuntimeTrainer, WhatOverflowsAtTheLeastLossScaleDiverges) {
  LossScale scale{.factor = 4.0};
  const LossScaleSettings settings{.initial = 4.0, .least = 2.0, .window = 3};
  EXPECT_TRUE(scale.update(settings, true));
  EXPECT_EQ(scale.factor, 2.0);
  EXPECT_FALSE(scale.update(settings, true));
  EXPECT_EQ(scale.factor, 2.0);
  EXPECT_EQ(scale.skipped, 2);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(scale.update(settings, false));
  EXPECT_EQ(scale.factor, 4.0);
  EXPECT_EQ(scale.good, 0);
}

TEST(RuntimeTrainer, SumsDuringTheBackwardPassAreThoseAfterIt) {
  const Model model = deep(opt_model());
  const Plan plan = plan_of({{3, 2, {{{{0, 3}}}, {{{3, 6}}}}}, {6, 1, {{{{0, 6}}}}}});
  const Outcome after = train(plan, model, {.overlap = false});
  const Outcome during = train(plan, model, {.overlap = true});
  EXPECT_EQ(after.losses, during.losses);
  EXPECT_EQ(after.weights, during.weights);
}

TEST(RuntimeTokenFeed, ReadsAheadOnlyWhenItIsTold) {
  const Model model = gpt_model();
  const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
  ASSERT_TRUE(samples);
  const auto device = make_cpu_device(1);
  TokenFeed feed(*device, &*samples,
                 {.global_batch = 2, .first_sample = 0, .samples = 2, .sequence_length = sequence_length});
  const auto values = [](std::span<const std::int32_t> all) { return std::vector(all.begin(), all.end()); };
  const TokenFeed::View first = feed.at(0, 0, 2);
  const std::vector<std::int32_t> tokens = values(first.tokens);
  const TokenFeed::View second = feed.at(1, 1, 1);
  // The next but one iteration takes the memory of the first: it would be read by now.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(values(first.tokens), tokens);
  feed.read_ahead(2);
  const TokenFeed::View third = feed.at(2, 0, 2);
  EXPECT_EQ(third.tokens.data(), first.tokens.data());
  EXPECT_NE(values(third.tokens), tokens);
  // What is read ahead is what is read when it is asked for.
  TokenFeed other(*device, &*samples,
                  {.global_batch = 2, .first_sample = 0, .samples = 2, .sequence_length = sequence_length});
  EXPECT_EQ(values(other.at(2, 0, 2).tokens), values(third.tokens));
  EXPECT_EQ(values(other.at(1, 1, 1).targets), values(second.targets));
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
  plan.job.precision = *rc::gen::element(Precision::fp32, Precision::fp32, Precision::bf16, Precision::fp16);
  if (ranks <= 8 && check_trainable(in_parts(2, plan), model, 2 * ranks))
    plan.context_parallel = *rc::gen::element(1, 2);
  RC_LOG() << plan_to_toml(plan);
  if (plan.job.precision != Precision::fp32)
    expect_losses_near(alone(model, plan.job.precision), train(plan, model));
  else
    expect_same(alone(model), train(plan, model), model);
  RC_ASSERT(!::testing::Test::HasFailure());
}
#endif

}  // namespace
}  // namespace sailor::runtime::test::trainer_test
