#include "runtime/stage.hpp"

namespace sailor::runtime {

StageLayers::StageLayers(const Model& model, LayerRange range, Device& device, std::function<void()> after_layer)
    : after_layer_(std::move(after_layer)) {
  LayerContext context{device};
  std::vector<Layer*> layers;
  for (int index = range.first; index < range.last; ++index) {
    layers_.push_back(make_layer(model, index, context));
    layers.push_back(layers_.back().get());
    if (model.layer_kind(index) == LayerKind::embedding) context.token_embedding = &token_embedding(*layers_.back());
  }
  parameters_ = std::make_unique<ParameterStorage>(device, layers);
}

Tensor StageLayers::forward(int index, const MicroBatch& micro_batch, Tensor input) {
  std::vector<Slot>& slots = in_flight_[index];
  slots.resize(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    input = layers_[i]->forward(micro_batch, std::move(input), slots[i]);
    if (after_layer_) after_layer_();
  }
  return input;
}

Tensor StageLayers::backward(int index, const MicroBatch& micro_batch, Tensor output_gradient) {
  std::vector<Slot>& slots = in_flight_.at(index);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    output_gradient = layers_[i]->backward(micro_batch, std::move(output_gradient), slots[i]);
    slots[i] = Slot();
    if (after_layer_) after_layer_();
  }
  in_flight_.erase(index);
  return output_gradient;
}

Bytes StageLayers::activation() const {
  Bytes sum;
  for (const auto& [index, slots] : in_flight_)
    for (const Slot& slot : slots) sum += slot.bytes();
  return sum;
}

}  // namespace sailor::runtime
