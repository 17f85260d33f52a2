#include "runtime/layer.hpp"

#include <fmt/format.h>

#include <span>
#include <stdexcept>

#include "runtime/layers/make_layers.hpp"

namespace sailor::runtime {

namespace {

std::int64_t rows_held(std::span<const std::int64_t> segments, const Shard& shard) {
  std::int64_t rows = 0;
  for (const std::int64_t segment : segments) rows += cut(segment, shard).size();
  return rows;
}

}  // namespace

std::size_t Layer::declare(std::string name, Shape shape, InitialValue initial, float deviation) {
  parameters_.push_back({.name = std::move(name),
                         .shape = std::move(shape),
                         .layer = index_,
                         .initial = initial,
                         .deviation = deviation,
                         .decays = initial == InitialValue::normal,  // only the matrices
                         .value = {nullptr, type_}});
  return parameters_.size() - 1;
}

std::size_t Layer::declare_divided(std::string name, std::vector<std::int64_t> segments, std::int64_t width,
                                   float deviation, const Shard& of_segments) {
  const Range held = cut(std::ssize(segments), of_segments);
  const std::span here(segments.begin() + held.first, segments.begin() + held.last);
  const std::size_t position =
      declare(std::move(name), {rows_held(here, shard()), width}, InitialValue::normal, deviation);
  parameters_[position].segments = std::move(segments);
  parameters_[position].shard = shard();
  parameters_[position].of_segments = of_segments;
  return position;
}

std::size_t Layer::declare_divided_bias(std::string name, std::vector<std::int64_t> segments) {
  const std::size_t position = declare(std::move(name), {rows_held(segments, shard())}, InitialValue::zero);
  parameters_[position].segments = std::move(segments);
  parameters_[position].shard = shard();
  return position;
}

void Layer::sum_over_group(Tensor& values) {
  if (is_divided()) group().all_reduce_sum(stream(), values.values(), values.elements());
}

LinearShape Layer::linear_shape(const Parameter& weight, std::int64_t tokens) {
  if (weight.rows_are_inputs)
    return {.rows = tokens, .in = weight.shape[0], .out = weight.shape[1], .rows_are_inputs = true};
  return {.rows = tokens, .in = weight.shape[1], .out = weight.shape[0]};
}

void Layer::linear_forward(ConstValues input, const Parameter& weight, const Parameter* bias, std::int64_t tokens,
                           Values output, const LinearExtras& extras) {
  stream().linear_forward(linear_shape(weight, tokens), input, weight.value,
                          bias != nullptr ? ConstValues(bias->value) : ConstValues(nullptr), extras.residual,
                          extras.activation, extras.pre_activation, output);
}

void Layer::linear_backward_parameters(ConstValues input, ConstValues output_gradient, Parameter& weight,
                                       Parameter* bias, std::int64_t tokens) {
  stream().linear_backward_parameters(linear_shape(weight, tokens), input, output_gradient, weight.gradient,
                                      bias != nullptr ? bias->gradient : nullptr);
}

void Layer::linear_backward_input(ConstValues output_gradient, const Parameter& weight, std::int64_t tokens,
                                  Values input_gradient) {
  stream().linear_backward_input(linear_shape(weight, tokens), output_gradient, weight.value, input_gradient);
}

void Layer::linear_backward_input(ConstValues output_gradient, const Parameter& weight, std::int64_t tokens,
                                  PointwiseActivation activation, Values kept_to_output, Values input_gradient) {
  stream().linear_backward_input(linear_shape(weight, tokens), output_gradient, weight.value, activation,
                                 kept_to_output, input_gradient);
}

std::unique_ptr<Layer> make_layer(const Model& model, int index, const LayerContext& context) {
  switch (model.layer_kind(index)) {
    case LayerKind::embedding:
      return make_embedding(model, index, context);
    case LayerKind::block:
      return make_block(model, index, context);
    case LayerKind::final_norm:
      return make_final_norm(model, index, context);
    case LayerKind::head:
      return make_head(model, index, context);
  }
  throw std::logic_error("no such kind of layer");
}

Parameter& token_embedding(Layer& embedding) {
  Parameter& parameter = embedding.parameters().front();
  if (parameter.name != token_embedding_name)
    throw std::logic_error(fmt::format("layer {} is not the embedding", embedding.index()));
  return parameter;
}

}  // namespace sailor::runtime
