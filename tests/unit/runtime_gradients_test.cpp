// Gradients of whole models: against PyTorch's (tests/data/gradients_pytorch.toml) and against finite differences.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "core/toml_reader.hpp"
#include "runtime_models.hpp"

namespace sailor::runtime::test::runtime_gradients_test {
namespace {

double norm_of(const float* values, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
  return std::sqrt(sum);
}

std::string name_of(const Parameter& parameter) { return fmt::format("{}.{}", parameter.layer, parameter.name); }

TEST(RuntimeGradients, LossAndGradientsOfAllArchitecturesEqualPyTorchs) {
  auto document = TomlDocument::load(SAILOR_SOURCE_DIR "/tests/data/gradients_pytorch.toml");
  ASSERT_TRUE(document) << document.error().message();
  document->require_schema_version(1);
  std::map<std::string, Model> models;
  for (const Model& model : all_models_and_experts()) models.emplace(model.name, model);
  double worst = 0.0;
  std::size_t compared = 0;
  for (const TomlTable& entry : document->root().tables("models")) {
    WholeModel whole(models.at(entry.text("name")), {}, Recompute::none, DataType::float32,
                     static_cast<float>(entry.number_or("router_aux_loss", 0.0)));
    SCOPED_TRACE(entry.text("name"));
    EXPECT_NEAR(whole.loss(true), entry.number("loss"), 1e-6);
    const std::vector<TomlTable> expected = entry.tables("parameters");
    ASSERT_EQ(whole.parameters().size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const Parameter& parameter = *whole.parameters()[i];
      ASSERT_EQ(name_of(parameter), expected[i].text("name"));
      const double norm = expected[i].number("norm");
      const std::int64_t count = parameter.elements();
      // Relative to the tensor's norm: single entries may cancel to nothing.
      const auto compare = [&](double value, double reference) {
        worst = std::max(worst, std::abs(value - reference) / norm);
        EXPECT_NEAR(value, reference, 5e-6 * norm) << name_of(parameter);
        ++compared;
      };
      compare(norm_of(parameter.gradient, count), norm);
      compare(parameter.gradient[0], expected[i].number("first"));
      compare(parameter.gradient[count / 2], expected[i].number("middle"));
      compare(parameter.gradient[count - 1], expected[i].number("last"));
    }
  }
  ASSERT_TRUE(document->finish()) << document->finish().error().message();
  EXPECT_EQ(compared, 4u * (28 + 28 + 26 + 21 + 15 + 23 + 30 + 17 + 18 + 17 + 18));
  RecordProperty("worst_relative_error", fmt::format("{:.2e}", worst));
}

// Along its own gradient g a parameter changes the loss by |g| per unit; along random directions by g . direction.
void expect_finite_differences(const Model& model) {
  SCOPED_TRACE(model.name);
  WholeModel whole(model);
  whole.loss(true);
  struct Direction {
    Parameter* parameter;
    std::vector<float> step;  // norm 1
    double slope = 0.0;
  };
  std::vector<Direction> directions;
  for (Parameter* parameter : whole.parameters()) {
    const std::int64_t count = parameter->elements();
    const double norm = norm_of(parameter->gradient, count);
    std::int64_t steepest = 0;
    Direction along{parameter, {}, norm};
    Direction random{parameter, {}, 0.0};
    Parameter noise{.name = "direction", .shape = {count}, .initial = InitialValue::normal, .deviation = 1.0f};
    random.step = initial_values(noise, 7);
    const double noise_norm = norm_of(random.step.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      along.step.push_back(static_cast<float>(parameter->gradient[i] / norm));
      random.step[at] = static_cast<float>(random.step[at] / noise_norm);
      random.slope += double{random.step[at]} * parameter->gradient[i];
      if (std::abs(parameter->gradient[i]) > std::abs(parameter->gradient[steepest])) steepest = i;
    }
    Direction entry{parameter, std::vector<float>(static_cast<std::size_t>(count)), parameter->gradient[steepest]};
    entry.step[static_cast<std::size_t>(steepest)] = 1.0f;
    for (Direction* direction : {&along, &random, &entry}) directions.push_back(std::move(*direction));
  }
  const double relative = model.activation == Activation::relu ? 2e-2 : 3e-3;  // steps across relu's kinks
  constexpr float h = 4e-3f;  // curvature errs by about h^2, rounding of the loss (about 2e-7) by 2e-7 / h
  for (const Direction& direction : directions) {
    Parameter& parameter = *direction.parameter;
    const std::vector<float> before(parameter.value.floats(), parameter.value.floats() + parameter.elements());
    const auto loss_at = [&](float distance) {
      for (std::size_t i = 0; i < before.size(); ++i)
        parameter.value.floats()[i] = before[i] + distance * direction.step[i];
      return whole.loss();
    };
    const double slope = (loss_at(h) - loss_at(-h)) / (2.0 * h);
    loss_at(0.0f);
    EXPECT_NEAR(slope, direction.slope, 1.5e-4 + relative * std::abs(direction.slope)) << name_of(parameter);
  }
}

TEST(RuntimeGradients, PreNormModelPassesFiniteDifferences) { expect_finite_differences(gpt_model()); }
TEST(RuntimeGradients, PostNormModelWithProjectionsPassesFiniteDifferences) { expect_finite_differences(opt_model()); }
TEST(RuntimeGradients, LocalUnscaledModelPassesFiniteDifferences) { expect_finite_differences(neo_model()); }
TEST(RuntimeGradients, UntiedModelWithoutBiasesPassesFiniteDifferences) { expect_finite_differences(untied_model()); }
TEST(RuntimeGradients, GroupedRotaryGatedModelPassesFiniteDifferences) { expect_finite_differences(llama_model()); }
TEST(RuntimeGradients, TwoFinalNormsPassFiniteDifferences) { expect_finite_differences(llama_sailor_model()); }
TEST(RuntimeGradients, AnUnusualMixturePassesFiniteDifferences) { expect_finite_differences(mixed_model()); }

TEST(RuntimeGradients, ExpertsPassFiniteDifferences) {
  Model model = experts_model();
  model.experts.per_token = model.experts.count;  // a step that sends a token to another expert is no small change
  expect_finite_differences(model);
}
TEST(RuntimeGradients, ASharedExpertPassesFiniteDifferences) { expect_finite_differences(shared_expert_model()); }

TEST(RuntimeGradients, ATiedHeadWithItsOwnCopySplitsTheGradientOfTheEmbedding) {
  // On two stages, the gradients of both copies must sum to that of the shared matrix on one.
  WholeModel whole(gpt_model());
  whole.loss(true);
  const Model& model = whole.model();
  const auto device = make_cpu_device();
  LayerSequence first(model, {0, 2}, {.device = device.get()});
  LayerSequence second(model, {2, model.layers()}, {.device = device.get()});
  std::size_t number = 0;
  for (LayerSequence* stage : {&first, &second})
    for (Parameter* parameter : stage->parameters().parameters()) {
      const bool copy = stage == &second && parameter->name == token_embedding_name;
      fill_by_formula(*parameter, copy ? 0 : number);
      if (!copy) ++number;
    }
  TestBatch batch(model);
  static_cast<void>(second.forward(batch.micro_batch, first.forward(batch.micro_batch, {})));
  EXPECT_GT(first.kept_bytes(), 0.0);
  static_cast<void>(first.backward(batch.micro_batch, second.backward(batch.micro_batch, {})));
  EXPECT_EQ(first.kept_bytes() + second.kept_bytes(), 0.0);
  const Parameter& original = *first.parameters().parameters().front();
  const Parameter& copy = *second.parameters().parameters().back();
  const Parameter& shared = *whole.parameters().front();
  ASSERT_EQ(copy.name, token_embedding_name);
  for (std::int64_t i = 0; i < shared.elements(); ++i)
    EXPECT_NEAR(original.gradient[i] + copy.gradient[i], shared.gradient[i], 1e-6);
}

}  // namespace
}  // namespace sailor::runtime::test::runtime_gradients_test
