// The feed-forward part of a block as a mixture of experts (Shazeer et al. 2017), dropless: every expert computes all
// tokens that the router sends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/layer.hpp"

namespace sailor::runtime {

/// The experts of one block, each a SwiGLU map. In a tensor-parallel group every rank has its part of the inner values
/// of all experts; the router is whole everywhere, and chooses the same on all ranks.
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
    std::size_t inner;    ///< SwiGLU's inputs (pairs, 2 · inner)
    std::size_t routing;  ///< int32: tokens, places and offsets of Routing
    std::size_t weights;  ///< float32 (pairs)
  };

  /// `inner`: width of this rank's part of an expert.
  ExpertMixture(const Experts& experts, std::int64_t hidden, std::int64_t inner, const LayerContext& context,
                const Places& places);

  /// sum (tokens, hidden) += the experts' outputs of `input` (tokens, hidden), this rank's part of them. Waits for the
  /// device, which alone knows how many tokens each expert gets.
  void forward(const Maps& maps, const Tensor& input, Tensor& sum, Slot& slot);
  /// Adds to the parameters' gradients; this rank's part of the gradient of `input`, given that of the sum.
  [[nodiscard]] Tensor backward(const Maps& maps, const Tensor& input, const Tensor& sum_gradient, Slot& slot);

 private:
  [[nodiscard]] Stream& stream() { return device_->main(); }
  [[nodiscard]] RoutingShape shape(std::int64_t tokens) const { return {tokens, experts_, per_token_}; }
  [[nodiscard]] Routing routing(const RoutingShape& shape, Tensor& indices, Tensor& weights) const;
  /// The rows of the tokens, one for each pair.
  [[nodiscard]] Tensor of_pairs(const RoutingShape& shape, const Tensor& tokens, const Routing& routing);
  [[nodiscard]] LinearShape router_map(const RoutingShape& shape) const { return {shape.tokens, hidden_, experts_}; }
  [[nodiscard]] LinearShape input_map(std::int64_t rows) const { return {rows, hidden_, 2 * inner_}; }
  [[nodiscard]] LinearShape output_map(std::int64_t rows) const {
    return {.rows = rows, .in = inner_, .out = hidden_, .rows_are_inputs = true};
  }
  /// Where an expert's part of Maps::input and Maps::output begins.
  [[nodiscard]] std::int64_t input_weight(std::int64_t expert) const { return expert * 2 * inner_ * hidden_; }
  [[nodiscard]] std::int64_t output_weight(std::int64_t expert) const { return expert * inner_ * hidden_; }
  /// A linear map without bias.
  void linear(const LinearShape& map, ConstValues input, ConstValues weight, Values output);
  /// Calls `map(expert, first, rows)` for each expert that has pairs: `rows` of them from `first` on.
  template <class Map>
  void each_expert(const std::vector<std::int32_t>& offsets, const Map& map) const {
    for (std::int64_t expert = 0; expert < experts_; ++expert) {
      const std::int64_t first = offsets[static_cast<std::size_t>(expert)];
      const std::int64_t rows = offsets[static_cast<std::size_t>(expert + 1)] - first;
      if (rows > 0) map(expert, first, rows);
    }
  }

  Device* device_;
  Shard shard_;
  Group* group_;
  DataType type_;
  std::int64_t experts_;
  std::int64_t per_token_;
  std::int64_t hidden_;
  std::int64_t inner_;
  Places places_;
};

}  // namespace sailor::runtime
