// Expert parallelism: each rank of a group has some of the experts of a layer, and sends its tokens to the ranks that
// have the experts that they go to (Lepikhin et al. 2021, GShard, section 3). Ranks get as many tokens as the router
// sends to their experts: nothing is padded or dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/layer.hpp"

namespace sailor::runtime {

class ExpertExchange {
 public:
  /// `experts`: of the layer, a multiple of the group's size. Rank i of the group has the i-th part of them.
  ExpertExchange(const LayerContext& context, std::int64_t experts);

  /// Collective: tells all ranks how many of this rank's pairs go to each expert. Waits for the device, which alone
  /// knows.
  [[nodiscard]] ExpertLoad agree(const RoutingShape& shape, const Routing& routing) const;
  /// Collective: rows (pairs, width) of this rank's pairs, in the order of Routing -> rows of the pairs that go to this
  /// rank's experts, by expert, then by the rank that they come from.
  [[nodiscard]] Tensor to_experts(const ExpertLoad& load, const Tensor& pairs) const;
  /// The same; `pairs` are released as soon as they have left.
  [[nodiscard]] Tensor to_experts(const ExpertLoad& load, Tensor&& pairs) const;
  /// The reverse. `rows` are released as soon as they are in the order of the ranks.
  [[nodiscard]] Tensor to_tokens(const ExpertLoad& load, Tensor rows) const;

 private:
  /// Calls use(number, by_rank, by_expert) for all pairs of a rank and an expert of this one: the first places of its
  /// `number` rows in the two orders.
  template <class Use>
  void for_blocks(const ExpertLoad& load, const Use& use) const;
  /// Rows that arrived, rank after rank.
  [[nodiscard]] Tensor arrived(const ExpertLoad& load, const Tensor& pairs) const;
  [[nodiscard]] Tensor by_expert(const ExpertLoad& load, Tensor by_rank) const;
  [[nodiscard]] Tensor by_rank(const ExpertLoad& load, Tensor by_expert) const;
  [[nodiscard]] std::vector<std::int64_t> sent(const ExpertLoad& load, std::int64_t width) const;
  [[nodiscard]] std::vector<std::int64_t> received(const ExpertLoad& load, std::int64_t width) const;

  Device* device_;
  Group* group_;
  std::int64_t ranks_;
  std::int64_t experts_;  // of the layer
  std::int64_t held_;     // of this rank
};

}  // namespace sailor::runtime
