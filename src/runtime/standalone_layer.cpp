#include "runtime/standalone_layer.hpp"

#include <algorithm>
#include <vector>

namespace sailor::runtime {

namespace {

/// A random tensor of hidden states: initial values of a parameter of that shape.
Tensor random_tensor(Device& device, const char* name, Shape shape, std::uint64_t seed) {
  Parameter like{.name = name, .shape = shape, .initial = InitialValue::normal, .deviation = 1.0f};
  const std::vector<float> values = initial_values(like, seed);
  Tensor tensor(device, std::move(shape));
  device.copy_from_host(tensor.data(), values.data(), tensor.bytes());
  return tensor;
}

Tensor copy_of(Device& device, const Tensor& source) {
  if (source.empty()) return {};
  Tensor copy(device, source.shape());
  device.copy(copy.data(), source.data(), source.bytes());
  device.synchronize();
  return copy;
}

}  // namespace

StandaloneLayer::StandaloneLayer(const Model& model, int index, Device& device, std::uint64_t seed)
    : model_(model), device_(device), seed_(seed) {
  LayerContext context{device};
  if (model.tied_embedding && model.layer_kind(index) == LayerKind::head) {
    shared_matrix_ = {.name = token_embedding_name,
                      .shape = {model.vocabulary, model.embedding_width},
                      .initial = InitialValue::normal,
                      .deviation = 0.02f};
    shared_ = std::make_unique<ParameterStorage>(device, std::vector<Parameter*>{&shared_matrix_});
    shared_->initialize(seed);
    context.token_embedding = &shared_matrix_;
  }
  layer_ = make_layer(model, index, context);
  own_ = std::make_unique<ParameterStorage>(device, std::vector<Layer*>{layer_.get()});
  own_->initialize(seed);
}

void StandaloneLayer::prepare(int sequences, int sequence_length) {
  for (Tensor* tensor : {&input_, &output_, &output_gradient_, &input_gradient_, &input_template_, &gradient_template_})
    tensor->reset();
  slot_ = Slot();
  activation_ = output_bytes_ = workspace_ = Bytes();
  const std::int64_t tokens = std::int64_t{sequences} * sequence_length;

  // Any tokens do; neighbours differ, as in text.
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 2654435761u + seed_) % static_cast<std::size_t>(model_.vocabulary));
  tokens_ = Tensor(device_, {sequences, sequence_length}, DataType::int32);
  device_.copy_from_host(tokens_.data(), ids.data(), tokens_.bytes());
  std::rotate(ids.begin(), ids.begin() + 1, ids.end());
  targets_ = Tensor(device_, {sequences, sequence_length}, DataType::int32);
  device_.copy_from_host(targets_.data(), ids.data(), targets_.bytes());
  loss_sum_ = Tensor(device_, {1}, DataType::float64);
  device_.zero(loss_sum_.data(), loss_sum_.bytes());

  const LayerKind kind = model_.layer_kind(layer_->index());
  if (kind != LayerKind::embedding) input_template_ = random_tensor(device_, "input", {tokens, model_.hidden}, seed_);
  if (kind != LayerKind::head) gradient_template_ = random_tensor(device_, "gradient", {tokens, model_.hidden}, seed_);
  micro_batch_ = {.sequences = sequences,
                  .sequence_length = sequence_length,
                  .tokens = tokens_.integers(),
                  .targets = targets_.integers(),
                  .loss_sum = loss_sum_.doubles(),
                  .loss_weight = 1.0f / static_cast<float>(tokens)};
}

void StandaloneLayer::stage_input() {
  output_.reset();
  input_gradient_.reset();
  input_ = copy_of(device_, input_template_);
}

void StandaloneLayer::forward() {
  device_.reset_peak_memory();
  output_ = layer_->forward(micro_batch_, std::move(input_), slot_);
  device_.synchronize();
  const MemoryUse use = device_.memory_use();
  activation_ = slot_.bytes();
  output_bytes_ = Bytes(static_cast<double>(output_.bytes()));
  workspace_ = std::max(workspace_, use.peak - use.alive);  // now alive: what is kept, and the output
}

void StandaloneLayer::stage_gradient() { output_gradient_ = copy_of(device_, gradient_template_); }

void StandaloneLayer::backward() {
  device_.reset_peak_memory();
  const Bytes before = device_.memory_use().alive;
  input_gradient_ = layer_->backward(micro_batch_, std::move(output_gradient_), slot_);
  device_.synchronize();
  workspace_ = std::max(workspace_, device_.memory_use().peak - before);
}

void StandaloneLayer::update() {
  own_->update({.step = ++steps_});
  own_->zero_gradients();
  device_.synchronize();
}

double StandaloneLayer::loss_sum() {
  double sum = 0.0;
  device_.copy_to_host(&sum, loss_sum_.data(), sizeof(sum));
  return sum;
}

}  // namespace sailor::runtime
