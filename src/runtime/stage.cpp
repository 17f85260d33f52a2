#include "runtime/stage.hpp"

namespace sailor::runtime {

namespace {

sailor::Stage undivided(LayerRange range) {
  sailor::Stage stage;
  stage.layers = range;
  return stage;
}

}  // namespace

StageLayers::StageLayers(const Model& model, LayerRange range, Device& device, DataType type, StageHooks hooks)
    : StageLayers(model, undivided(range), {.device = &device, .type = type}, std::move(hooks)) {}

StageLayers::StageLayers(const Model& model, const Stage& stage, LayerContext context, StageHooks hooks,
                         ParameterStorage* parameters)
    : model_(model), recompute_(stage.recompute), hooks_(std::move(hooks)), parameters_(parameters) {
  context.recompute = stage.recompute;
  std::vector<Layer*> layers;
  for (int chunk = 0; chunk < stage.chunks(); ++chunk) {
    std::vector<std::unique_ptr<Layer>>& held = chunks_.emplace_back();
    for (int index = stage.chunk(chunk).first; index < stage.chunk(chunk).last; ++index) {
      held.push_back(make_layer(model, index, context));
      layers.push_back(held.back().get());
      if (model.layer_kind(index) == LayerKind::embedding) context.token_embedding = &token_embedding(*held.back());
    }
  }
  if (parameters_ != nullptr) {
    parameters_->lend_to(layers);
  } else {
    own_ = std::make_unique<ParameterStorage>(*context.device, layers);
    parameters_ = own_.get();
  }
}

bool StageLayers::recomputes(const Layer& layer) const {
  return recompute_ == Recompute::full && model_.layer_kind(layer.index()) == LayerKind::block;
}

Tensor StageLayers::forward(int index, const MicroBatch& micro_batch, Tensor input, int chunk) {
  const auto& layers = chunks_[static_cast<std::size_t>(chunk)];
  std::vector<Slot>& slots = in_flight_[{chunk, index}];
  slots.resize(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (hooks_.before_layer) hooks_.before_layer(layers[i]->index(), Pass::forward);
    input = layers[i]->forward(micro_batch, std::move(input), slots[i]);
    if (recomputes(*layers[i])) {
      Slot only_input;
      only_input.keep(Slot::input, slots[i].take(Slot::input));
      slots[i] = std::move(only_input);
    }
    if (hooks_.after_layer) hooks_.after_layer(layers[i]->index(), Pass::forward);
  }
  return input;
}

Tensor StageLayers::backward(int index, const MicroBatch& micro_batch, Tensor output_gradient, int chunk) {
  const auto& layers = chunks_[static_cast<std::size_t>(chunk)];
  std::vector<Slot>& slots = in_flight_.at({chunk, index});
  for (std::size_t i = layers.size(); i-- > 0;) {
    if (hooks_.before_layer) hooks_.before_layer(layers[i]->index(), Pass::backward);
    if (recomputes(*layers[i])) {
      Tensor input = slots[i].take(Slot::input);
      static_cast<void>(layers[i]->forward(micro_batch, std::move(input), slots[i]));
    }
    output_gradient = layers[i]->backward(micro_batch, std::move(output_gradient), slots[i]);
    slots[i] = Slot();
    if (hooks_.after_layer) hooks_.after_layer(layers[i]->index(), Pass::backward);
  }
  in_flight_.erase({chunk, index});
  return output_gradient;
}

Bytes StageLayers::activation() const {
  Bytes sum;
  for (const auto& [key, slots] : in_flight_)
    for (const Slot& slot : slots) sum += slot.bytes();
  return sum;
}

}  // namespace sailor::runtime
