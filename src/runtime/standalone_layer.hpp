// One layer by itself, on random input: what the profiler measures and what tests check.
//
//   StandaloneLayer layer(model, index, device);
//   layer.prepare(micro_batch, sequence_length);
//   repeat: forward(), backward(), update()      // each returns when the device is done
#pragma once

#include <cstdint>
#include <memory>

#include "core/units.hpp"
#include "model/model.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

class StandaloneLayer {
 public:
  /// `index` counts the model's layers: 0 the embedding, 1 the first block, model.layers() - 1 the head. Blocks
  /// alternate when the model has local_attention_window: block index 1 is global, 2 is local.
  StandaloneLayer(const Model& model, int index, Device& device, std::uint64_t seed = 0);

  /// Random tokens and hidden states of `sequences` sequences. Forgets earlier measurements of memory.
  void prepare(int sequences, int sequence_length);

  // In this order: forward, backward, forward, backward, ...; update whenever. They consume fresh copies of the
  // inputs, made outside: call stage_input() before forward() and stage_gradient() before backward() (untimed).
  void stage_input();
  void forward();
  void stage_gradient();
  void backward();
  /// AdamW over the layer's own parameters (not the matrix that a tied head shares), gradients set to zero.
  void update();

  /// Own parameters (a tied head: without the shared matrix).
  [[nodiscard]] std::int64_t parameters() const { return own_->elements(); }
  /// Kept from forward until backward, including the layer's input; known after forward().
  [[nodiscard]] Bytes activation() const { return activation_; }
  /// Handed to the next layer; 0 for the head.
  [[nodiscard]] Bytes output() const { return output_bytes_; }
  /// Largest excess over parameters, activation, and the hidden states that come in and go out (backward: also the
  /// gradient of the input, which the layer makes while the gradient of its output is alive).
  [[nodiscard]] Bytes workspace() const { return workspace_; }
  /// Sum of cross-entropies since prepare(); the head only.
  [[nodiscard]] double loss_sum();

  [[nodiscard]] Layer& layer() { return *layer_; }
  [[nodiscard]] const Tensor& last_output() const { return output_; }
  [[nodiscard]] const Tensor& last_input_gradient() const { return input_gradient_; }

 private:
  Model model_;
  Device& device_;
  std::uint64_t seed_;
  std::unique_ptr<Layer> layer_;
  Parameter shared_matrix_;                    // of a tied head
  std::unique_ptr<ParameterStorage> shared_;
  std::unique_ptr<ParameterStorage> own_;
  MicroBatch micro_batch_;
  Tensor tokens_;
  Tensor targets_;
  Tensor loss_sum_;
  Tensor input_template_;
  Tensor gradient_template_;
  Tensor input_;
  Tensor output_;
  Tensor output_gradient_;
  Tensor input_gradient_;
  Slot slot_;
  std::int64_t steps_ = 0;
  Bytes activation_{};
  Bytes output_bytes_{};
  Bytes workspace_{};
};

}  // namespace sailor::runtime
