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
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/device.hpp"
#include "runtime/parameters.hpp"
#include "runtime/tensor.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

/// Input of a pass besides the hidden state. Only the embedding reads `tokens`; only the head reads the rest.
struct MicroBatch {
  std::int64_t sequences = 1;
  std::int64_t sequence_length = 0;       ///< of this rank's part of each sequence
  const std::int32_t* tokens = nullptr;   ///< device, (sequences, sequence_length)
  const std::int32_t* targets = nullptr;  ///< device, the same shape: the next tokens
  /// Device memory; the head adds the cross-entropies of its tokens, the same sum on every rank of a tensor-parallel
  /// group.
  double* loss_sum = nullptr;
  float loss_weight = 1.0f;  ///< weight of one token's loss in the gradient: loss scale / tokens of the global batch

  [[nodiscard]] std::int64_t token_count() const { return sequences * sequence_length; }
};

/// Pairs of tokens and experts of one forward pass (RoutingShape), as the host knows them.
struct ExpertLoad {
  /// Place of the first pair of each expert of this rank, then the number of pairs that its experts compute.
  std::vector<std::int32_t> offsets;
  // Under expert parallelism:
  std::vector<std::int32_t> sent;      ///< pairs of this rank's tokens, by the rank that has the expert
  std::vector<std::int32_t> received;  ///< (ranks, experts of this rank): pairs that come from each rank

  /// Pairs that this rank's experts compute.
  [[nodiscard]] std::int64_t pairs() const { return offsets.back(); }
};

/// How evenly routers spread tokens, summed over forward passes of blocks with experts.
struct RoutingLoads {
  int passes = 0;
  double experts = 0.0;  ///< tokens of the busiest expert over the mean of all experts, summed over passes
  double ranks = 0.0;    ///< the same of the ranks of the expert-parallel group
};

/// Tensors that a layer keeps from one forward pass until the backward pass.
class Slot {
 public:
  /// Index at which every layer keeps its input.
  static constexpr std::size_t input = 0;

  void keep(std::size_t index, Tensor tensor) { tensors_[index] = std::move(tensor); }
  [[nodiscard]] Tensor& at(std::size_t index) { return tensors_[index]; }
  [[nodiscard]] Tensor take(std::size_t index) { return std::move(tensors_[index]); }
  [[nodiscard]] Bytes bytes() const {
    std::size_t sum = 0;
    for (const Tensor& tensor : tensors_) sum += tensor.bytes();
    return Bytes(static_cast<double>(sum));
  }

  ExpertLoad experts;  ///< empty without experts

 private:
  std::array<Tensor, 13> tensors_;
};

/// The tensor-parallel group over which a layer is divided: linear maps by their outputs, then by their inputs
/// (Shoeybi et al. 2019, section 3), attention by heads, token embedding and logits by the vocabulary. Hidden states
/// and their gradients are whole on every rank.
struct TensorParallel {
  Shard shard{};           ///< this rank's part
  Group* group = nullptr;  ///< rank shard.index of shard.count, used on the main stream; may be null where shard.count
                           ///< is 1, and where layers are only declared, not run
};

/// The ranks among which every sequence is divided. Each has the tokens of its part, and all heads of its
/// tensor-parallel part; for attention they exchange these for whole sequences of a part of the heads (Jacobs et al.
/// 2023, DeepSpeed-Ulysses).
struct ContextParallel {
  Shard shard{};           ///< this rank's part of every sequence
  Group* group = nullptr;  ///< as in TensorParallel
};

/// The ranks that divide the experts of every layer. Each has the tokens of its own micro-batches, or of its part of
/// their sequences, and one part of the experts; everything else of a layer is whole on all of them.
struct ExpertParallel {
  Shard shard{};           ///< this rank's part of the experts
  Group* group = nullptr;  ///< as in TensorParallel
};

/// Context in which a layer is built.
struct LayerContext {
  Device* device = nullptr;  ///< null: layers are only declared, not run
  /// For a tied head on the same rank as the embedding: the embedding's matrix, which the head then uses and adds
  /// its gradients to. Null: a tied head makes its own copy (as on the last of several stages).
  Parameter* token_embedding = nullptr;
  TensorParallel tensor_parallel{};
  ContextParallel context_parallel{};
  ExpertParallel expert_parallel{};
  /// selective: a block runs its attention again in the backward pass instead of keeping its output (Korthikanti et al.
  /// 2022). Full recomputation is done by StageLayers, not by the layers.
  Recompute recompute = Recompute::none;
  /// Coefficient of the load-balancing loss of routers, see ExpertMixture; 0: none.
  float router_aux_loss = 0.0f;
  RoutingLoads* loads = nullptr;  ///< layers with experts add to it; null: nobody wants to know
  /// Data type of activations, of their gradients and of parameters' values.
  DataType type = DataType::float32;
};

/// Optional arguments of a linear map, see Stream::linear_forward.
struct LinearExtras {
  ConstValues residual = nullptr;
  PointwiseActivation activation = PointwiseActivation::none;
  Values pre_activation = nullptr;
};

class Layer {
 public:
  Layer(const LayerContext& context, int index)
      : device_(context.device),
        index_(index),
        tensor_parallel_(context.tensor_parallel),
        context_parallel_(context.context_parallel),
        type_(context.type) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// input (tokens, hidden), empty for the embedding -> output (tokens, hidden), empty for the head, which adds
  /// to *micro_batch.loss_sum. The input is consumed: what backward needs of it moves into the empty `slot`.
  [[nodiscard]] virtual Tensor forward(const MicroBatch& micro_batch, Tensor input, Slot& slot) = 0;
  /// Gradient of the output (empty for the head) -> gradient of the input (empty for the embedding). Adds to the
  /// gradients of the parameters. Empties `slot`. `micro_batch` as in forward.
  [[nodiscard]] virtual Tensor backward(const MicroBatch& micro_batch, Tensor output_gradient, Slot& slot) = 0;

  /// Own parameters, in an order that is the same for every shard. They have no memory before a ParameterStorage was
  /// made for them.
  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  /// Index in the model.
  [[nodiscard]] int index() const { return index_; }

 protected:
  // To be called by constructors only: pointers to parameters must stay valid. They return the position.
  /// Declares a parameter that is whole on every rank of the tensor-parallel group.
  std::size_t declare(std::string name, Shape shape, InitialValue initial, float deviation = 0.0f);
  /// Declares a weight (rows, width) whose rows come in `segments`. This rank holds its tensor-parallel part of each
  /// segment that it has: of all segments, or of part `of_segments` of them (experts).
  std::size_t declare_divided(std::string name, std::vector<std::int64_t> segments, std::int64_t width, float deviation,
                              const Shard& of_segments = {});
  /// Declares a bias that is divided like the rows of its weight.
  std::size_t declare_divided_bias(std::string name, std::vector<std::int64_t> segments);
  [[nodiscard]] Parameter& parameter(std::size_t position) { return parameters_[position]; }
  [[nodiscard]] Device& device() { return *device_; }
  /// The stream of all passes.
  [[nodiscard]] Stream& stream() { return device_->main(); }
  [[nodiscard]] const Shard& shard() const { return tensor_parallel_.shard; }
  [[nodiscard]] bool is_divided() const { return shard().count > 1; }
  /// A tensor for activations or their gradients. Contents are undefined.
  [[nodiscard]] Tensor make_activation(Shape shape) { return {*device_, std::move(shape), type_}; }
  /// All-reduces `values` over the tensor-parallel group; does nothing if that is this rank alone.
  void sum_over_group(Tensor& values);
  /// The tensor-parallel group, if there is one.
  [[nodiscard]] Group& group() { return *tensor_parallel_.group; }
  [[nodiscard]] const ContextParallel& context_parallel() const { return context_parallel_; }

  /// Shape of the linear map of a weight.
  static LinearShape linear_shape(const Parameter& weight, std::int64_t tokens);
  // Linear maps: output = input · weightᵀ + bias with weight (out, in) as in PyTorch, or input · weight + bias where
  // it is stored (in, out). `bias` may be null.
  void linear_forward(ConstValues input, const Parameter& weight, const Parameter* bias, std::int64_t tokens,
                      Values output, const LinearExtras& extras = {});
  /// Gradients of weight and bias from the map's input and the gradient of its output.
  void linear_backward_parameters(ConstValues input, ConstValues output_gradient, Parameter& weight, Parameter* bias,
                                  std::int64_t tokens);
  void linear_backward_input(ConstValues output_gradient, const Parameter& weight, std::int64_t tokens,
                             Values input_gradient);
  /// The same, and back through the activation before the map: see Stream::linear_backward_input.
  void linear_backward_input(ConstValues output_gradient, const Parameter& weight, std::int64_t tokens,
                             PointwiseActivation activation, Values kept_to_output, Values input_gradient);

 private:
  Device* device_;
  int index_;
  TensorParallel tensor_parallel_;
  ContextParallel context_parallel_;
  DataType type_;
  std::vector<Parameter> parameters_;
};

/// Layer `index` of the model (0 embedding, 1.. blocks, perhaps a final norm, then the head; Model::layer_kind()). The
/// model must have passed check_supported(), and check_divisible() by the groups' sizes. Allocates nothing on the
/// device: the parameters of any shard can be asked for without their memory.
std::unique_ptr<Layer> make_layer(const Model& model, int index, const LayerContext& context);

/// Data type that layers compute with under a precision. (TF32 is how GPUs multiply float32 matrices.)
constexpr DataType working_type(Precision precision) {
  if (precision == Precision::fp16) return DataType::float16;
  return precision == Precision::bf16 ? DataType::bfloat16 : DataType::float32;
}

/// The embedding's matrix, for the head of the same rank.
Parameter& token_embedding(Layer& embedding);

/// The name that the embedding's matrix and its copy in a tied head have.
inline constexpr const char* token_embedding_name = "token_embedding.weight";

/// Errors: invalid_input (no transformer, an odd width of rotary heads), unavailable (latent attention, experts
/// with biases or a limited capacity, and other parts that this runtime does not compute).
Result<void> check_supported(const Model& model);
/// Errors (infeasible): the model's feed-forward part cannot be divided by tensor_parallel, or its heads or key-value
/// heads by tensor_parallel x context_parallel, or the vocabulary is smaller than tensor_parallel. The vocabulary may
/// be divided unevenly.
Result<void> check_divisible(const Model& model, int tensor_parallel, int context_parallel = 1);
/// Errors: unavailable (what this runtime cannot train yet, and what it can), and those of the two above. Nothing is
/// allocated.
Result<void> check_supported(const Plan& plan, const Model& model);

}  // namespace sailor::runtime
