#include "profiler/layer_chain.hpp"

#include <algorithm>

#include "runtime/parameters.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler {

using runtime::DataType;
using runtime::MemoryUse;
using runtime::Slot;
using runtime::Tensor;

namespace {

constexpr std::uint64_t seed = 1;

}  // namespace

ChainInput::ChainInput(const Model& model, int sequences, int sequence_length, runtime::Device& device)
    : tokens_(device, {sequences, sequence_length}, DataType::int32),
      targets_(device, {sequences, sequence_length}, DataType::int32),
      loss_sum_(device, {1}, DataType::float64) {
  // Scattered over the vocabulary (Knuth's multiplicative hash), so that the embedding's rows are as cold as in text.
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens_.elements()));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 2654435761U) % static_cast<std::size_t>(model.vocabulary));
  device.write(tokens_.data(), ids.data(), tokens_.bytes());
  std::rotate(ids.begin(), ids.begin() + 1, ids.end());
  device.write(targets_.data(), ids.data(), targets_.bytes());
  device.main().zero(loss_sum_.data(), loss_sum_.bytes());
  micro_batch_ = {.sequences = sequences,
                  .sequence_length = sequence_length,
                  .tokens = tokens_.integers(),
                  .targets = targets_.integers(),
                  .loss_sum = loss_sum_.doubles(),
                  .loss_weight = 1.0F / static_cast<float>(ids.size())};
}

LayerChain::LayerChain(const Model& model, int blocks, std::set<LayerKind> kinds, runtime::Device& device,
                       const runtime::TensorParallel& tensor_parallel, Recompute recompute, runtime::DataType type)
    : model_(model), device_(device), tensor_parallel_(tensor_parallel), recompute_(recompute), type_(type) {
  model_.blocks = std::min(model.blocks, blocks);
  runtime::LayerContext context{
      .device = &device, .tensor_parallel = tensor_parallel, .recompute = recompute, .type = type};
  // A tied head shares the matrix, as when embedding and head are on one stage: its time is the same as with a copy,
  // and the matrix is not counted with the head.
  const bool lends_table =
      model_.tied_embedding && kinds.contains(LayerKind::head) && !kinds.contains(LayerKind::embedding);
  if (lends_table) {
    shared_embedding_ = runtime::make_layer(model_, 0, context);
    shared_storage_ =
        std::make_unique<runtime::ParameterStorage>(device, std::vector<runtime::Layer*>{shared_embedding_.get()});
    shared_storage_->initialize(seed);
    context.token_embedding = &runtime::token_embedding(*shared_embedding_);
  }
  for (int index = 0; index < model_.layers(); ++index) {
    const LayerKind kind = model_.layer_kind(index);
    if (!kinds.contains(kind)) continue;
    layers_.push_back(runtime::make_layer(model_, index, context));
    storages_.push_back(
        std::make_unique<runtime::ParameterStorage>(device, std::vector<runtime::Layer*>{layers_.back().get()}));
    storages_.back()->initialize(seed);
    optimizers_.emplace_back(device, *storages_.back());
    if (kind == LayerKind::embedding) context.token_embedding = &runtime::token_embedding(*layers_.back());
    laps_.push_back({.kind = index_of(kind), .begin = device.make_event(), .end = device.make_event()});
    ++count_[index_of(kind)];
  }
  slots_.resize(layers_.size());
}

void LayerChain::forget() {
  for (Slot& slot : slots_) slot = Slot();
}

std::size_t LayerChain::kind_of(std::size_t layer) const { return laps_[layer].kind; }

bool LayerChain::recomputes(std::size_t layer) const {
  return recompute_ == Recompute::full && kind_of(layer) == index_of(LayerKind::block);
}

Tensor LayerChain::run_forward(std::size_t layer, const runtime::MicroBatch& micro_batch, Tensor input) {
  Slot& slot = slots_[layer];
  Tensor output = layers_[layer]->forward(micro_batch, std::move(input), slot);
  if (recomputes(layer)) {
    Slot only_input;
    only_input.keep(Slot::input, slot.take(Slot::input));
    slot = std::move(only_input);
  }
  return output;
}

Tensor LayerChain::run_backward(std::size_t layer, const runtime::MicroBatch& micro_batch, Tensor output_gradient) {
  Slot& slot = slots_[layer];
  if (recomputes(layer)) {
    Tensor input = slot.take(Slot::input);
    static_cast<void>(layers_[layer]->forward(micro_batch, std::move(input), slot));
  }
  return layers_[layer]->backward(micro_batch, std::move(output_gradient), slot);
}

void LayerChain::meet() {
  if (tensor_parallel_.shard.count == 1) return;
  if (meeting_.empty()) meeting_ = Tensor(device_, {1});
  device_.main().zero(meeting_.data(), meeting_.bytes());
  tensor_parallel_.group->all_reduce_sum(device_.main(), meeting_.floats(), 1);
  device_.synchronize();
}

void LayerChain::divide_by_count(KindTimes& times) const {
  for (std::size_t kind = 0; kind < layer_kinds; ++kind)
    if (count_[kind] > 0) times[kind] /= count_[kind];
}

void LayerChain::add_laps(KindTimes& times) {
  device_.synchronize();
  for (const Lap& lap : laps_) times[lap.kind] += device_.elapsed(*lap.begin, *lap.end).value();
}

Tensor LayerChain::hidden_state(const runtime::MicroBatch& micro_batch, float scale) {
  Tensor state(device_, {micro_batch.token_count(), model_.hidden});
  // Values spread over [-scale, scale), as different from one another as those of a trained model.
  std::vector<float> values(static_cast<std::size_t>(state.elements()));
  std::uint32_t random = 1;
  for (float& value : values) {
    random = random * 1664525U + 1013904223U;  // Numerical Recipes, section 7.1
    value = scale * (static_cast<float>(random >> 8U) / 8388608.0F - 1.0F);
  }
  device_.write(state.data(), values.data(), state.bytes());
  if (type_ == DataType::float32) return state;
  Tensor converted(device_, state.shape(), type_);
  device_.main().convert(converted.values(), state.values(), state.elements());
  return converted;
}

Tensor LayerChain::first_input(const runtime::MicroBatch& micro_batch) {
  return has(LayerKind::embedding) ? Tensor() : hidden_state(micro_batch, 1.0F);
}

Tensor LayerChain::last_gradient(const runtime::MicroBatch& micro_batch) {
  return has(LayerKind::head) ? Tensor() : hidden_state(micro_batch, micro_batch.loss_weight);
}

void LayerChain::forward_and_backward(const runtime::MicroBatch& micro_batch, Caches caches, KindTimes& forward,
                                      KindTimes& backward) {
  forward = backward = {};
  const auto begin = [&](std::size_t i) {
    if (caches == Caches::cold) {
      device_.synchronize();
      device_.flush_caches();
      // A layer's time must not include waiting for another rank's flush.
      meet();
    }
    working_on_ = model_.layer_kind(layers_[i]->index());
    device_.main().record(*laps_[i].begin);
  };
  Tensor hidden = first_input(micro_batch);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    begin(i);
    hidden = run_forward(i, micro_batch, std::move(hidden));
    device_.main().record(*laps_[i].end);
  }
  add_laps(forward);
  hidden.reset();
  Tensor gradient = last_gradient(micro_batch);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    begin(i);
    gradient = run_backward(i, micro_batch, std::move(gradient));
    slots_[i] = Slot();
    device_.main().record(*laps_[i].end);
  }
  add_laps(backward);
  divide_by_count(forward);
  divide_by_count(backward);
}

KindTimes LayerChain::update() {
  KindTimes times{};
  ++step_;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    device_.main().record(*laps_[i].begin);
    optimizers_[i].step({.step = step_});
    device_.main().record(*laps_[i].end);
  }
  add_laps(times);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    device_.main().record(*laps_[i].begin);
    storages_[i]->zero_gradients();
    device_.main().record(*laps_[i].end);
  }
  add_laps(times);
  divide_by_count(times);
  return times;
}

std::array<KindBytes, layer_kinds> LayerChain::memory_of_a_pass(const runtime::MicroBatch& micro_batch) {
  std::array<KindBytes, layer_kinds> bytes{};
  Tensor hidden = first_input(micro_batch);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    KindBytes& kind = bytes[kind_of(i)];
    working_on_ = model_.layer_kind(layers_[i]->index());
    device_.reset_peak_memory();
    kind.input += (layers_[i]->index() == 0 ? static_cast<double>(micro_batch.token_count()) * sizeof(std::int32_t)
                                            : static_cast<double>(hidden.bytes())) /
                  count_[kind_of(i)];
    hidden = run_forward(i, micro_batch, std::move(hidden));
    device_.synchronize();
    // Still allocated: what is kept for backward, and the output.
    const MemoryUse use = device_.memory_use();
    kind.activation += slots_[i].bytes().value() / count_[kind_of(i)];
    kind.output += static_cast<double>(hidden.bytes()) / count_[kind_of(i)];
    kind.workspace = std::max(kind.workspace, (use.peak - use.alive).value());
  }
  hidden.reset();
  Tensor gradient = last_gradient(micro_batch);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    KindBytes& kind = bytes[kind_of(i)];
    working_on_ = model_.layer_kind(layers_[i]->index());
    device_.reset_peak_memory();
    const Bytes before = device_.memory_use().alive;
    gradient = run_backward(i, micro_batch, std::move(gradient));
    device_.synchronize();
    kind.workspace = std::max(kind.workspace, (device_.memory_use().peak - before).value());
    slots_[i] = Slot();
  }
  return bytes;
}

std::int64_t LayerChain::parameters(LayerKind kind) const {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (kind_of(i) == index_of(kind)) return storages_[i]->elements();
  return 0;
}

}  // namespace sailor::profiler
