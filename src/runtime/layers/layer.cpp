#include "runtime/layer.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "runtime/layers/make_layers.hpp"

namespace sailor::runtime {

std::size_t Layer::declare(std::string name, Shape shape, InitialValue initial, float deviation) {
  parameters_.push_back({.name = std::move(name),
                         .shape = std::move(shape),
                         .layer = index_,
                         .initial = initial,
                         .deviation = deviation,
                         .decays = initial == InitialValue::normal});  // just the matrices
  return parameters_.size() - 1;
}

void Layer::linear_forward(const float* input, const Parameter& weight, const Parameter* bias, std::int64_t tokens,
                           float* output, bool accumulate) {
  const std::int64_t out = weight.shape[0];
  const std::int64_t in = weight.shape[1];
  device_.matmul({.transpose_b = true, .m = tokens, .n = out, .k = in, .accumulate = accumulate}, input, weight.value,
                 output);
  if (bias != nullptr) device_.add_bias(output, bias->value, tokens, out);
}

void Layer::linear_backward_parameters(const float* input, const float* output_gradient, Parameter& weight,
                                       Parameter* bias, std::int64_t tokens) {
  const std::int64_t out = weight.shape[0];
  const std::int64_t in = weight.shape[1];
  device_.matmul({.transpose_a = true, .m = out, .n = in, .k = tokens, .accumulate = true}, output_gradient, input,
                 weight.gradient);
  if (bias != nullptr) device_.add_bias_gradient(bias->gradient, output_gradient, tokens, out);
}

void Layer::linear_backward_input(const float* output_gradient, const Parameter& weight, std::int64_t tokens,
                                  float* input_gradient) {
  device_.matmul({.m = tokens, .n = weight.shape[1], .k = weight.shape[0]}, output_gradient, weight.value,
                 input_gradient);
}

std::unique_ptr<Layer> make_layer(const Model& model, int index, const LayerContext& context) {
  switch (model.layer_kind(index)) {
    case LayerKind::embedding:
      return make_embedding(model, index, context.device);
    case LayerKind::block:
      return make_block(model, index, context.device);
    case LayerKind::head:
      return make_head(model, index, context);
    case LayerKind::final_norm:
      break;
  }
  throw std::logic_error("a separate final norm passed check_supported()");
}

Parameter& token_embedding(Layer& embedding) {
  Parameter& parameter = embedding.parameters().front();
  if (parameter.name != token_embedding_name)
    throw std::logic_error(fmt::format("layer {} is not the embedding", embedding.index()));
  return parameter;
}

}  // namespace sailor::runtime
