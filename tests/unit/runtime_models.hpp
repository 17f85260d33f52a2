// Small models that together use everything the runtime's layers can do, and the formulas for their weights and tokens
// that tests/data/make_gradient_fixture.py uses too.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bits16.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/layer.hpp"

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

inline Model llama_model() {  // like LLaMA 3
  Model model = gpt_model();
  model.name = "llama";
  model.hidden = model.embedding_width = 32;
  model.attention_heads = 8;
  model.key_value_heads = 4;
  model.feed_forward = 24;
  model.norm = NormKind::rms_norm;
  model.norm_epsilon = 1e-6;
  model.activation = Activation::swiglu;
  model.position = PositionKind::rotary;
  model.rotary_base = 100.0;
  model.tied_embedding = false;
  model.linear_bias = model.attention_input_bias = model.attention_output_bias = false;
  return model;
}

inline Model llama_sailor_model() {  // like what the Sailor authors measured as LLaMA: biases, tied, two final norms
  Model model = gpt_model();
  model.name = "llama-sailor";
  model.norm = NormKind::rms_norm;
  model.final_norm = FinalNorm::separate_and_in_head;
  model.activation = Activation::swiglu;
  model.position = PositionKind::rotary;
  return model;
}

inline Model mixed_model() {  // what no known model has together
  Model model = opt_model();
  model.name = "mixed";
  model.key_value_heads = 2;
  model.final_norm = FinalNorm::separate;
  model.activation = Activation::gelu;
  model.position = PositionKind::rotary;
  model.rotary_base = 50.0;
  model.local_attention_window = 3;
  model.tied_embedding = false;
  return model;
}

inline Model experts_model() {  // like Mixtral
  Model model = llama_model();
  model.name = "experts";
  model.experts = {.count = 4, .per_token = 2, .feed_forward = 12};
  return model;
}

inline Model shared_expert_model() {  // two experts for each token beside one for all, after a block without experts
  Model model = llama_model();
  model.name = "shared_expert";
  model.experts = {.count = 3, .per_token = 2, .feed_forward = 20, .shared_feed_forward = 8, .first_dense = 1};
  return model;
}

inline std::vector<Model> all_models() {
  return {gpt_model(), opt_model(), neo_model(), untied_model(), llama_model(), llama_sailor_model(), mixed_model()};
}

/// Models with experts, too. They are apart since rounding may send a token to another expert.
inline std::vector<Model> all_models_and_experts() {
  std::vector<Model> models = all_models();
  models.push_back(experts_model());
  models.push_back(shared_expert_model());
  return models;
}

/// A value on the host, of any type.
inline float load(ConstValues value) {
  return value.is_float32() ? *value.floats() : from_bits16(value.type, *value.bits16());
}
inline void store(float number, Values value) {
  if (value.is_float32())
    *value.floats() = number;
  else
    *value.bits16() = to_bits16(value.type, number);
}

/// Element `element` of the whole of the model's parameter `number` (in the order of the layers).
inline float formula_weight(const Parameter& parameter, std::size_t number, std::size_t element) {
  const double i = static_cast<double>(element);
  const double wave = 0.15 * std::sin(1.0 + static_cast<double>(number) + 0.73 * i + 0.0011 * i * i);
  return static_cast<float>(wave + (parameter.initial == InitialValue::one ? 1.0 : 0.0));
}

inline void fill_by_formula(Parameter& parameter, std::size_t number) {
  for (const Piece& piece : parameter.pieces())
    for (std::int64_t i = 0; i < piece.count; ++i)
      store(formula_weight(parameter, number, static_cast<std::size_t>(piece.whole + i)),
            parameter.value + (piece.local + i));
}

/// Layers on one rank, with one micro-batch in flight.
class LayerSequence {
 public:
  LayerSequence(const Model& model, LayerRange range, LayerContext context) {
    std::vector<Layer*> layers;
    for (int index = range.first; index < range.last; ++index) {
      layers.push_back(layers_.emplace_back(make_layer(model, index, context)).get());
      if (model.layer_kind(index) == LayerKind::embedding) context.token_embedding = &token_embedding(*layers_.back());
    }
    parameters_ = std::make_unique<ParameterStorage>(*context.device, layers);
    slots_.resize(layers_.size());
  }

  Tensor forward(const MicroBatch& micro_batch, Tensor input) {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      input = layers_[i]->forward(micro_batch, std::move(input), slots_[i]);
    return input;
  }
  Tensor backward(const MicroBatch& micro_batch, Tensor gradient) {
    for (std::size_t i = layers_.size(); i-- > 0;)
      gradient = layers_[i]->backward(micro_batch, std::move(gradient), slots_[i]);
    return gradient;
  }

  [[nodiscard]] ParameterStorage& parameters() { return *parameters_; }
  /// Kept for the backward pass.
  [[nodiscard]] double kept_bytes() const {
    double sum = 0.0;
    for (const Slot& slot : slots_) sum += slot.bytes().value();
    return sum;
  }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<ParameterStorage> parameters_;
  std::vector<Slot> slots_;
};

/// A micro-batch of 2 x 9 tokens with its own loss.
struct TestBatch {
  explicit TestBatch(const Model& model) {
    for (int i = 0; i < tokens; ++i) {
      ids.push_back((i * 7 + 3) % model.vocabulary);
      targets.push_back((i * 5 + 1) % model.vocabulary);
    }
    micro_batch = {.sequences = sequences,
                   .sequence_length = sequence_length,
                   .tokens = ids.data(),
                   .targets = targets.data(),
                   .loss_sum = &loss_sum,
                   .loss_weight = 1.0f / tokens};
  }
  TestBatch(const TestBatch&) = delete;
  TestBatch& operator=(const TestBatch&) = delete;

  static constexpr int sequences = 2;
  static constexpr int sequence_length = 9;
  static constexpr int tokens = sequences * sequence_length;

  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;
  double loss_sum = 0.0;
  MicroBatch micro_batch;
};

/// A whole model on one device, or one rank's part of a tensor-parallel one, with weights by the formula and a
/// TestBatch.
class WholeModel {
 public:
  explicit WholeModel(const Model& model, const TensorParallel& tensor_parallel = {},
                      Recompute recompute = Recompute::none, DataType type = DataType::float32,
                      float router_aux_loss = 0.0f)
      : model_(model),
        device_(make_cpu_device()),
        layers_(model, {0, model.layers()},
                {.device = device_.get(),
                 .tensor_parallel = tensor_parallel,
                 .recompute = recompute,
                 .router_aux_loss = router_aux_loss,
                 .type = type}),
        batch_(model) {
    for (std::size_t number = 0; number < parameters().size(); ++number) fill_by_formula(*parameters()[number], number);
  }

  /// Mean cross-entropy; gradients are added to the parameters' when `backward`.
  double loss(bool backward = false) {
    batch_.loss_sum = 0.0;
    static_cast<void>(layers_.forward(batch_.micro_batch, {}));
    kept_bytes_ = layers_.kept_bytes();
    static_cast<void>(layers_.backward(batch_.micro_batch, {}));
    if (!backward) storage().zero_gradients();
    return batch_.loss_sum / TestBatch::tokens;
  }

  [[nodiscard]] ParameterStorage& storage() { return layers_.parameters(); }
  [[nodiscard]] const std::vector<Parameter*>& parameters() { return storage().parameters(); }
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] Device& device() { return *device_; }
  /// After the last forward pass, of all layers.
  [[nodiscard]] double kept_bytes() const { return kept_bytes_; }

 private:
  Model model_;
  std::unique_ptr<Device> device_;
  LayerSequence layers_;
  TestBatch batch_;
  double kept_bytes_ = 0.0;
};

}  // namespace sailor::runtime::test
