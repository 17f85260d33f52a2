// Layers of a transformer with explicit forward and backward passes. A layer runs on one device and knows
// nothing of other ranks' layers. Used by the trainer stage by stage (stage.hpp), and by the profiler.
//
// A layer is stateless between passes except for its parameters: what backward needs of a forward pass is kept
// in a Slot, one per layer and micro-batch in flight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/device.hpp"
#include "runtime/parameters.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

/// What a pass works on besides the hidden state. Only the embedding reads `tokens`; only the head reads the rest.
struct MicroBatch {
  std::int64_t sequences = 1;
  std::int64_t sequence_length = 0;
  const std::int32_t* tokens = nullptr;   ///< device, (sequences, sequence_length)
  const std::int32_t* targets = nullptr;  ///< device, the same shape: the token that follows
  double* loss_sum = nullptr;             ///< device; the head adds the cross-entropies of its tokens
  float loss_weight = 1.0f;               ///< of one token's loss in the gradient: 1 / tokens of the global batch

  [[nodiscard]] std::int64_t token_count() const { return sequences * sequence_length; }
};

/// What a layer keeps of one forward pass until the backward pass.
class Slot {
 public:
  void keep(std::size_t index, Tensor tensor) { tensors_[index] = std::move(tensor); }
  [[nodiscard]] Tensor& at(std::size_t index) { return tensors_[index]; }
  [[nodiscard]] Tensor take(std::size_t index) { return std::move(tensors_[index]); }
  [[nodiscard]] Bytes bytes() const {
    std::size_t sum = 0;
    for (const Tensor& tensor : tensors_) sum += tensor.bytes();
    return Bytes(static_cast<double>(sum));
  }

 private:
  std::array<Tensor, 12> tensors_;
};

class Layer {
 public:
  explicit Layer(Device& device, int index) : device_(device), index_(index) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// input (tokens, hidden), empty for the embedding -> output (tokens, hidden), empty for the head, which adds
  /// to *micro_batch.loss_sum. The input is consumed: what backward needs of it moves into the empty `slot`.
  [[nodiscard]] virtual Tensor forward(const MicroBatch& micro_batch, Tensor input, Slot& slot) = 0;
  /// Gradient of the output (empty for the head) -> gradient of the input (empty for the embedding). Adds to the
  /// gradients of the parameters. Empties `slot`. `micro_batch` as in forward.
  [[nodiscard]] virtual Tensor backward(const MicroBatch& micro_batch, Tensor output_gradient, Slot& slot) = 0;

  /// Own parameters, in a fixed order. They have no memory before a ParameterStorage was made for them.
  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  /// Index in the model.
  [[nodiscard]] int index() const { return index_; }

 protected:
  /// To be called by constructors only: pointers to parameters must stay valid. Returns the position.
  std::size_t declare(std::string name, Shape shape, InitialValue initial, float deviation = 0.0f);
  [[nodiscard]] Parameter& parameter(std::size_t position) { return parameters_[position]; }
  [[nodiscard]] Device& device() { return device_; }

  // Linear maps with weight (out, in) as in PyTorch: output = input · weightᵀ + bias. `bias` may be null.
  void linear_forward(const float* input, const Parameter& weight, const Parameter* bias, std::int64_t tokens,
                      float* output, bool accumulate = false);
  /// Gradients of weight and bias from the map's input and the gradient of its output.
  void linear_backward_parameters(const float* input, const float* output_gradient, Parameter& weight, Parameter* bias,
                                  std::int64_t tokens);
  void linear_backward_input(const float* output_gradient, const Parameter& weight, std::int64_t tokens,
                             float* input_gradient);

 private:
  Device& device_;
  int index_;
  std::vector<Parameter> parameters_;
};

/// Where a layer is built.
struct LayerContext {
  Device& device;
  /// For a tied head on the same rank as the embedding: the embedding's matrix, which the head then uses and adds
  /// its gradients to. Null: a tied head makes its own copy (as on the last of several stages).
  Parameter* token_embedding = nullptr;
};

/// Layer `index` of the model (0 embedding, 1.. blocks, then the head; Model::layer_kind()). The model must have
/// passed check_supported().
std::unique_ptr<Layer> make_layer(const Model& model, int index, const LayerContext& context);

/// The embedding's matrix, for the head of the same rank.
Parameter& token_embedding(Layer& embedding);

/// The name that the embedding's matrix and its copy in a tied head have.
inline constexpr const char* token_embedding_name = "token_embedding.weight";

/// Errors (unavailable): what this runtime cannot train yet, and what it can. Nothing is allocated.
Result<void> check_supported(const Model& model);
Result<void> check_supported(const Plan& plan, const Model& model);

}  // namespace sailor::runtime
