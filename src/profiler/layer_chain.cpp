#include "profiler/layer_chain.hpp"

#include <algorithm>
#include <chrono>

#include "runtime/parameters.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler {

using runtime::DataType;
using runtime::MemoryUse;
using runtime::Slot;
using runtime::Tensor;

namespace {

constexpr int most_blocks = 4;
constexpr std::uint64_t seed = 1;

/// Seconds since the last call (or since construction), when the device has finished.
class LapClock {
 public:
  explicit LapClock(runtime::Device& device) : device_(device) {
    device_.synchronize();
    last_ = std::chrono::steady_clock::now();
  }
  double lap() {
    device_.synchronize();
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> elapsed = now - last_;
    last_ = now;
    return elapsed.count();
  }

 private:
  runtime::Device& device_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace

ChainInput::ChainInput(const Model& model, int sequences, int sequence_length, runtime::Device& device)
    : tokens_(device, {sequences, sequence_length}, DataType::int32),
      targets_(device, {sequences, sequence_length}, DataType::int32),
      loss_sum_(device, {1}, DataType::float64) {
  // Scattered over the vocabulary (Knuth's multiplicative hash), so that the embedding's rows are as cold as in text.
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens_.elements()));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 2654435761U) % static_cast<std::size_t>(model.vocabulary));
  device.copy_from_host(tokens_.data(), ids.data(), tokens_.bytes());
  std::rotate(ids.begin(), ids.begin() + 1, ids.end());
  device.copy_from_host(targets_.data(), ids.data(), targets_.bytes());
  device.zero(loss_sum_.data(), loss_sum_.bytes());
  micro_batch_ = {.sequences = sequences,
                  .sequence_length = sequence_length,
                  .tokens = tokens_.integers(),
                  .targets = targets_.integers(),
                  .loss_sum = loss_sum_.doubles(),
                  .loss_weight = 1.0F / static_cast<float>(ids.size())};
}

int LayerChain::blocks_of(const Model& model) { return std::min(model.blocks, most_blocks); }

std::int64_t LayerChain::parameters_of(const Model& model) {
  Model chain = model;
  chain.blocks = blocks_of(model);
  return chain.total_parameters();
}

LayerChain::LayerChain(const Model& model, runtime::Device& device) : model_(model), device_(device) {
  model_.blocks = blocks_of(model);
  runtime::LayerContext context{device};
  for (int index = 0; index < model_.layers(); ++index) {
    layers_.push_back(runtime::make_layer(model_, index, context));
    storages_.push_back(
        std::make_unique<runtime::ParameterStorage>(device, std::vector<runtime::Layer*>{layers_.back().get()}));
    storages_.back()->initialize(seed);
    // A tied head shares the matrix, as when embedding and head are on one stage: its time is the same as with a copy.
    if (model_.layer_kind(index) == LayerKind::embedding)
      context.token_embedding = &runtime::token_embedding(*layers_.back());
    ++count_[kind_of(layers_.size() - 1)];
  }
  slots_.resize(layers_.size());
}

std::size_t LayerChain::kind_of(std::size_t layer) const {
  return index_of(model_.layer_kind(static_cast<int>(layer)));
}

void LayerChain::divide_by_count(KindTimes& times) const {
  for (std::size_t kind = 0; kind < layer_kinds; ++kind)
    if (count_[kind] > 0) times[kind] /= count_[kind];
}

void LayerChain::forward_and_backward(const runtime::MicroBatch& micro_batch, KindTimes& forward, KindTimes& backward) {
  forward = backward = {};
  LapClock clock(device_);
  Tensor hidden;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    hidden = layers_[i]->forward(micro_batch, std::move(hidden), slots_[i]);
    forward[kind_of(i)] += clock.lap();
  }
  Tensor gradient;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    gradient = layers_[i]->backward(micro_batch, std::move(gradient), slots_[i]);
    slots_[i] = Slot();
    backward[kind_of(i)] += clock.lap();
  }
  divide_by_count(forward);
  divide_by_count(backward);
}

KindTimes LayerChain::update() {
  KindTimes times{};
  ++step_;
  LapClock clock(device_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    storages_[i]->update({.step = step_});
    times[kind_of(i)] += clock.lap();
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    storages_[i]->zero_gradients();
    times[kind_of(i)] += clock.lap();
  }
  divide_by_count(times);
  return times;
}

std::array<KindBytes, layer_kinds> LayerChain::memory_of_a_pass(const runtime::MicroBatch& micro_batch) {
  std::array<KindBytes, layer_kinds> bytes{};
  Tensor hidden;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    KindBytes& kind = bytes[kind_of(i)];
    device_.reset_peak_memory();
    hidden = layers_[i]->forward(micro_batch, std::move(hidden), slots_[i]);
    device_.synchronize();
    // Alive afterwards: what is kept for backward, and the output.
    const MemoryUse use = device_.memory_use();
    kind.activation += slots_[i].bytes().value() / count_[kind_of(i)];
    kind.output += static_cast<double>(hidden.bytes()) / count_[kind_of(i)];
    kind.workspace = std::max(kind.workspace, (use.peak - use.alive).value());
  }
  Tensor gradient;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    KindBytes& kind = bytes[kind_of(i)];
    device_.reset_peak_memory();
    const Bytes before = device_.memory_use().alive;
    gradient = layers_[i]->backward(micro_batch, std::move(gradient), slots_[i]);
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
