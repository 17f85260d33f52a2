// A model with few blocks on one rank, run like a stage of the trainer, with a clock after every layer. Internal to
// the profiler.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/model.hpp"
#include "runtime/layer.hpp"

namespace sailor::profiler {

inline constexpr std::size_t layer_kinds = 4;
constexpr std::size_t index_of(LayerKind kind) { return static_cast<std::size_t>(kind); }

/// Mean seconds per layer of each kind, for one pass; 0 for kinds that the model lacks.
using KindTimes = std::array<double, layer_kinds>;

/// What a layer of a kind takes besides time: means over the layers of the kind, except workspace (largest).
struct KindBytes {
  double activation = 0.0;
  double output = 0.0;
  double workspace = 0.0;
};

/// Tokens on the device that stand for text.
class ChainInput {
 public:
  ChainInput(const Model& model, int sequences, int sequence_length, runtime::Device& device);
  [[nodiscard]] const runtime::MicroBatch& micro_batch() const { return micro_batch_; }

 private:
  runtime::Tensor tokens_;
  runtime::Tensor targets_;
  runtime::Tensor loss_sum_;
  runtime::MicroBatch micro_batch_;
};

class LayerChain {
 public:
  /// Embedding, min(blocks, 4) blocks, head. So many blocks that one does not find its weights in a cache where the
  /// trainer would not, and that local and global attention alternate.
  LayerChain(const Model& model, runtime::Device& device);
  static int blocks_of(const Model& model);
  /// Parameters of the chain, shared ones counted once.
  static std::int64_t parameters_of(const Model& model);

  void forward_and_backward(const runtime::MicroBatch& micro_batch, KindTimes& forward, KindTimes& backward);
  /// AdamW over every layer, then all gradients to zero, as after the last micro-batch of an iteration.
  KindTimes update();
  /// The same as forward_and_backward(), with an eye on memory instead of the clock.
  std::array<KindBytes, layer_kinds> memory_of_a_pass(const runtime::MicroBatch& micro_batch);
  /// Own parameters per layer of a kind (a tied head: without the shared matrix).
  [[nodiscard]] std::int64_t parameters(LayerKind kind) const;
  [[nodiscard]] bool has(LayerKind kind) const { return count_[index_of(kind)] > 0; }

 private:
  [[nodiscard]] std::size_t kind_of(std::size_t layer) const;
  void divide_by_count(KindTimes& times) const;

  Model model_;  // with few blocks
  runtime::Device& device_;
  std::vector<std::unique_ptr<runtime::Layer>> layers_;
  std::vector<std::unique_ptr<runtime::ParameterStorage>> storages_;  // one per layer, to time updates apart
  std::vector<runtime::Slot> slots_;
  std::array<int, layer_kinds> count_{};
  std::int64_t step_ = 0;
};

}  // namespace sailor::profiler
