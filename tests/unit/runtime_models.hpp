// Small models that together use everything the runtime's layers can do, and the formulas for their weights and tokens
// that tests/data/make_gradient_fixture.py uses too.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu/cpu_device.hpp"
#include "runtime/stage.hpp"

namespace sailor::runtime::test {

inline Model gpt_model() {
  Model model;
  model.name = "gpt";
  model.blocks = 2;
  model.hidden = 16;
  model.embedding_width = 16;
  model.attention_heads = 4;
  model.key_value_heads = 4;
  model.feed_forward = 32;
  model.vocabulary = 23;
  model.max_sequence_length = 12;
  model.activation = Activation::gelu;
  return model;
}

inline Model opt_model() {  // like OPT-350M: post-norm, relu, projections, no final norm
  Model model = gpt_model();
  model.name = "opt";
  model.embedding_width = 8;
  model.norm_placement = NormPlacement::post;
  model.final_norm = FinalNorm::none;
  model.activation = Activation::relu;
  return model;
}

inline Model neo_model() {  // like GPT-Neo: unscaled scores, a local block, no biases of queries, keys and values
  Model model = gpt_model();
  model.name = "neo";
  model.scale_attention = false;
  model.local_attention_window = 3;
  model.attention_input_bias = false;
  return model;
}

inline Model untied_model() {
  Model model = gpt_model();
  model.name = "untied";
  model.tied_embedding = false;
  model.linear_bias = model.attention_input_bias = model.attention_output_bias = false;
  return model;
}

inline std::vector<Model> all_models() { return {gpt_model(), opt_model(), neo_model(), untied_model()}; }

/// Element `element` of the model's parameter number `parameter` (in the order of the layers).
inline float formula_weight(const Parameter& parameter, std::size_t number, std::size_t element) {
  const double i = static_cast<double>(element);
  const double wave = 0.15 * std::sin(1.0 + static_cast<double>(number) + 0.73 * i + 0.0011 * i * i);
  return static_cast<float>(wave + (parameter.initial == InitialValue::one ? 1.0 : 0.0));
}

/// A whole model on one device, with weights by the formula and one micro-batch of 2 x 9 tokens.
class WholeModel {
 public:
  explicit WholeModel(const Model& model)
      : model_(model), device_(make_cpu_device()), stage_(model, {0, model.layers()}, *device_) {
    const std::vector<Parameter*>& parameters = stage_.parameters().parameters();
    for (std::size_t number = 0; number < parameters.size(); ++number)
      for (std::size_t i = 0; i < static_cast<std::size_t>(parameters[number]->elements()); ++i)
        parameters[number]->value[i] = formula_weight(*parameters[number], number, i);
    for (int i = 0; i < tokens; ++i) {
      tokens_.push_back((i * 7 + 3) % model.vocabulary);
      targets_.push_back((i * 5 + 1) % model.vocabulary);
    }
  }

  static constexpr int sequences = 2;
  static constexpr int sequence_length = 9;
  static constexpr int tokens = sequences * sequence_length;

  /// Mean cross-entropy; gradients are added to the parameters' when `backward`.
  double loss(bool backward = false) {
    double sum = 0.0;
    const MicroBatch micro_batch{.sequences = sequences,
                                 .sequence_length = sequence_length,
                                 .tokens = tokens_.data(),
                                 .targets = targets_.data(),
                                 .loss_sum = &sum,
                                 .loss_weight = 1.0f / tokens};
    static_cast<void>(stage_.forward(0, micro_batch, {}));
    static_cast<void>(stage_.backward(0, micro_batch, {}));
    if (!backward) stage_.parameters().zero_gradients();
    return sum / tokens;
  }

  [[nodiscard]] const std::vector<Parameter*>& parameters() { return stage_.parameters().parameters(); }
  [[nodiscard]] StageLayers& stage() { return stage_; }
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] Device& device() { return *device_; }

 private:
  Model model_;
  std::unique_ptr<Device> device_;
  StageLayers stage_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
};

}  // namespace sailor::runtime::test
