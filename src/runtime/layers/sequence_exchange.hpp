// Exchange among the ranks that divide every sequence: a rank gives away other heads' values of its tokens, and gets
// its own heads' values of all tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/layer.hpp"

namespace sailor::runtime {

class SequenceExchange {
 public:
  /// context.context_parallel must have a group.
  explicit SequenceExchange(const LayerContext& context)
      : device_(context.device),
        group_(context.context_parallel.group),
        ranks_(context.context_parallel.shard.count),
        type_(context.type) {}

  /// Rows of this rank's tokens, sequence after sequence, with all heads -> rows of all tokens with this rank's heads.
  /// `widths`: the segments of a row with the heads of one rank, e.g. of [query | key | value].
  [[nodiscard]] Tensor to_heads(const Tensor& tokens, std::int64_t sequences,
                                const std::vector<std::int64_t>& widths) const;
  /// The inverse of to_heads(). For gradients each is the backward pass of the other.
  [[nodiscard]] Tensor to_tokens(const Tensor& heads, std::int64_t sequences,
                                 const std::vector<std::int64_t>& widths) const;

 private:
  /// An all-to-all of slices along the rows.
  [[nodiscard]] Tensor exchanged(const Tensor& from) const;

  Device* device_;
  Group* group_;
  std::int64_t ranks_;
  DataType type_;
};

}  // namespace sailor::runtime
