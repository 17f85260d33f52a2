// The feed-forward part of a block as a mixture of experts (Shazeer et al. 2017), dropless: every expert computes all
// tokens that the router sends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "runtime/layer.hpp"
#include "runtime/layers/expert_exchange.hpp"

namespace sailor::runtime {

/// The experts of one block, each a SwiGLU map. In a tensor-parallel group every rank has its part of the inner values
/// of all experts; the router is whole everywhere, and chooses the same on all ranks. In an expert-parallel group every
/// rank has its part of the experts, and the router of each chooses for its own tokens.
///
/// So that no expert gets all tokens, the gradient is that of the cross-entropy plus LayerContext::router_aux_loss
/// times the mean over sequences of sum f_i P_i over experts i (DeepSeek-AI 2024, DeepSeek-V3, equations 17 to 20): f_i
/// is the number of the sequence's tokens that are routed to expert i, divided by the mean of that number over all
/// experts; P_i is the mean of the expert's softmax probability over the sequence's tokens. The loss is that of each
/// sequence by itself, so that it does not depend on how a batch is divided.
class ExpertMixture {
 public:
  /// Maps of the block. `input` holds (gate, then up; hidden) of one expert after the other, `output` (inner; hidden).
  struct Maps {
    Parameter* router;
    Parameter* input;
    Parameter* output;
  };
  /// Where a forward pass keeps what the backward pass needs, in a Slot.
  struct Places {
    std::size_t inner;            ///< SwiGLU's inputs (pairs of this rank's experts, 2 · inner)
    std::size_t routing;          ///< int32: tokens, places and offsets of Routing
    std::size_t weights;          ///< float32 (pairs of this rank's tokens)
    std::size_t arrived_weights;  ///< float32 (pairs of this rank's experts); only under expert parallelism
  };

  /// `inner`: width of this rank's part of an expert.
  ExpertMixture(const Experts& experts, std::int64_t hidden, std::int64_t inner, const LayerContext& context,
                const Places& places);

  /// sum (tokens, hidden) += the experts' outputs of `input` (tokens, hidden), this rank's part of them. Waits for the
  /// device, which alone knows how many tokens each expert gets.
  void forward(const Maps& maps, const Tensor& input, Tensor& sum, Slot& slot);
  /// Adds to the parameters' gradients. Returns this rank's part of the gradient of `input` (tokens, hidden);
  /// `sum_gradient` (tokens, hidden) is the gradient of the sum.
  [[nodiscard]] Tensor backward(const MicroBatch& micro_batch, const Maps& maps, const Tensor& input,
                                const Tensor& sum_gradient, Slot& slot);

 private:
  [[nodiscard]] Stream& stream() { return device_->main(); }
  [[nodiscard]] RoutingShape shape(std::int64_t tokens) const { return {tokens, experts_, per_token_}; }
  [[nodiscard]] Routing routing(const RoutingShape& shape, Tensor& indices, Tensor& weights) const;
  /// The load-balancing loss, and the tensors that it refers to.
  struct Balance {
    Tensor logits;  // (tokens, experts)
    Tensor counts;  // (sequences, experts)
    RoutingBalance added{};
  };
  [[nodiscard]] Balance balance(const MicroBatch& micro_batch, const Maps& maps, const Tensor& input,
                                const Routing& routing);
  /// The rows of the tokens, one for each pair.
  [[nodiscard]] Tensor of_pairs(const RoutingShape& shape, const Tensor& tokens, const Routing& routing);
  [[nodiscard]] LinearShape router_map(const RoutingShape& shape) const { return {shape.tokens, hidden_, experts_}; }
  [[nodiscard]] LinearShape input_map(std::int64_t rows) const { return {rows, hidden_, 2 * inner_}; }
  [[nodiscard]] LinearShape output_map(std::int64_t rows) const {
    return {.rows = rows, .in = inner_, .out = hidden_, .rows_are_inputs = true};
  }
  // Pairs of this rank's tokens <-> pairs of its experts. Without expert parallelism these are the same.
  [[nodiscard]] ExpertLoad load_of(const RoutingShape& shape, const Routing& routing) const;
  [[nodiscard]] Tensor to_experts(const ExpertLoad& load, Tensor pairs) const {
    return exchange_ ? exchange_->to_experts(load, std::move(pairs)) : std::move(pairs);
  }
  [[nodiscard]] Tensor to_tokens(const ExpertLoad& load, Tensor rows) const {
    return exchange_ ? exchange_->to_tokens(load, std::move(rows)) : std::move(rows);
  }
  /// Where an expert's part of Maps::input and Maps::output begins.
  [[nodiscard]] std::int64_t input_weight(std::int64_t expert) const { return expert * 2 * inner_ * hidden_; }
  [[nodiscard]] std::int64_t output_weight(std::int64_t expert) const { return expert * inner_ * hidden_; }
  /// A linear map without bias.
  void linear(const LinearShape& map, ConstValues input, ConstValues weight, Values output);
  /// Calls `map(expert, first, rows)` for each expert of this rank that has pairs: `rows` of them from `first` on.
  template <class Map>
  void each_expert(const ExpertLoad& load, const Map& map) const {
    for (std::size_t expert = 0; expert + 1 < load.offsets.size(); ++expert) {
      const std::int64_t first = load.offsets[expert];
      const std::int64_t rows = load.offsets[expert + 1] - first;
      if (rows > 0) map(static_cast<std::int64_t>(expert), first, rows);
    }
  }

  Device* device_;
  Shard shard_;
  Group* group_;
  ContextParallel context_parallel_;
  float router_aux_loss_;
  RoutingLoads* loads_;
  DataType type_;
  std::int64_t experts_;  // of all ranks
  std::int64_t per_token_;
  std::int64_t hidden_;
  std::int64_t inner_;
  Places places_;
  std::optional<ExpertExchange> exchange_;
};

}  // namespace sailor::runtime
