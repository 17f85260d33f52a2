// A model with few blocks on one rank, or on a tensor-parallel group, run like a stage of the trainer, with events
// between its layers. Internal to the profiler.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/layer.hpp"
#include "runtime/optimizer.hpp"

namespace sailor::profiler {

inline constexpr std::size_t layer_kinds = 4;
constexpr std::size_t index_of(LayerKind kind) { return static_cast<std::size_t>(kind); }

/// Mean seconds per layer of each kind, for one pass; 0 for kinds that the chain lacks.
using KindTimes = std::array<double, layer_kinds>;

/// Memory of a layer of a kind: means over the layers of the kind, except workspace (largest).
struct KindBytes {
  double activation = 0.0;
  double output = 0.0;
  double input = 0.0;
  double workspace = 0.0;
};

enum class Caches { warm, cold };

/// Placeholder tokens on the device.
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
  /// The layers of the model whose kind is in `kinds`, with at most `blocks` blocks. With several blocks, a block does
  /// not find its weights in a cache where the trainer would not, and local and global attention alternate. A failed
  /// allocation throws runtime::OutOfMemoryError, here and in all passes. The ranks of a tensor-parallel group make the
  /// same calls; waiting for each other in a layer's all-reduces is part of the layer's time.
  LayerChain(const Model& model, int blocks, std::set<LayerKind> kinds, runtime::Device& device,
             const runtime::TensorParallel& tensor_parallel = {}, Recompute recompute = Recompute::none,
             runtime::DataType type = runtime::DataType::float32);

  /// Cold: the device's caches are flushed before every layer's pass.
  void forward_and_backward(const runtime::MicroBatch& micro_batch, Caches caches, KindTimes& forward,
                            KindTimes& backward);
  /// Runs AdamW over every layer, then zeroes all gradients, as after the last micro-batch of an iteration.
  KindTimes update();
  /// The same passes as forward_and_backward(), measuring memory instead of time.
  std::array<KindBytes, layer_kinds> memory_of_a_pass(const runtime::MicroBatch& micro_batch);
  /// Own parameters of this rank per layer of a kind (a tied head: without the shared matrix).
  [[nodiscard]] std::int64_t parameters(LayerKind kind) const;
  [[nodiscard]] bool has(LayerKind kind) const { return count_[index_of(kind)] > 0; }
  /// After an OutOfMemoryError: the layer that asked for memory. forget() frees what the failed pass left.
  [[nodiscard]] LayerKind working_on() const { return working_on_; }
  void forget();

 private:
  [[nodiscard]] std::size_t kind_of(std::size_t layer) const;
  [[nodiscard]] bool recomputes(std::size_t layer) const;
  // Like runtime::StageLayers: under full recomputation a block keeps only its input.
  [[nodiscard]] runtime::Tensor run_forward(std::size_t layer, const runtime::MicroBatch& micro_batch,
                                            runtime::Tensor input);
  [[nodiscard]] runtime::Tensor run_backward(std::size_t layer, const runtime::MicroBatch& micro_batch,
                                             runtime::Tensor output_gradient);
  /// The ranks of the tensor-parallel group wait for each other.
  void meet();
  void divide_by_count(KindTimes& times) const;
  void add_laps(KindTimes& times);
  /// The input from the layer before the first one, and the gradient from the layer after the last; empty where there
  /// is none.
  [[nodiscard]] runtime::Tensor first_input(const runtime::MicroBatch& micro_batch);
  [[nodiscard]] runtime::Tensor last_gradient(const runtime::MicroBatch& micro_batch);
  [[nodiscard]] runtime::Tensor hidden_state(const runtime::MicroBatch& micro_batch, float scale);

  /// A layer's pass between two events.
  struct Lap {
    std::size_t kind = 0;
    std::unique_ptr<runtime::Event> begin;
    std::unique_ptr<runtime::Event> end;
  };

  Model model_;  // with few blocks
  runtime::Device& device_;
  runtime::TensorParallel tensor_parallel_;
  Recompute recompute_;
  runtime::DataType type_;
  std::unique_ptr<runtime::Layer> shared_embedding_;  // for a tied head, if the embedding is not in the chain
  std::unique_ptr<runtime::ParameterStorage> shared_storage_;
  std::vector<std::unique_ptr<runtime::Layer>> layers_;
  std::vector<std::unique_ptr<runtime::ParameterStorage>> storages_;  // one per layer, to time updates apart
  std::vector<runtime::AdamW> optimizers_;
  std::vector<runtime::Slot> slots_;
  std::vector<Lap> laps_;  // one per layer
  std::array<int, layer_kinds> count_{};
  runtime::Tensor meeting_;  // array for meet()
  LayerKind working_on_ = LayerKind::embedding;
  std::int64_t step_ = 0;
};

}  // namespace sailor::profiler
