// Expert parallelism: each rank of a group has some of the experts of a layer, and sends its tokens to the ranks that
// have the experts that they go to (Lepikhin et al. 2021, GShard, section 3). Ranks get as many tokens as the router
// sends to their experts: nothing is padded or dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/layer.hpp"

namespace sailor::runtime {

/// A device that does not compute (in a rehearsal) routes nothing: then each expert gets an equal share of `pairs`.
/// `offsets`: Routing::offsets.
void share_if_not_routed(std::span<std::int32_t> offsets, std::int64_t pairs);

/// Adds a pass to `loads`: pairs of tokens and experts, by expert and by rank of the expert-parallel group.
void add_loads(const std::vector<std::int64_t>& by_expert, const std::vector<std::int64_t>& by_rank,
               RoutingLoads& loads);

class ExpertExchange {
 public:
  /// `experts`: of the layer, a multiple of the group's size. Rank i of the group has the i-th part of them.
  ExpertExchange(const LayerContext& context, std::int64_t experts);
  ~ExpertExchange();
  ExpertExchange(const ExpertExchange&) = delete;
  ExpertExchange& operator=(const ExpertExchange&) = delete;

  /// Collective: tells all ranks how many of this rank's pairs go to each expert. Waits for the device, which alone
  /// knows. Adds to `loads`, unless it is null. Throws TransportError.
  [[nodiscard]] ExpertLoad agree(const RoutingShape& shape, const Routing& routing, RoutingLoads* loads) const;
  /// Collective: rows (pairs, width) of this rank's pairs, in the order of Routing -> rows of the pairs that go to this
  /// rank's experts, by expert, then by the rank that they come from.
  [[nodiscard]] Tensor to_experts(const ExpertLoad& load, const Tensor& pairs) const;
  /// The same; `pairs` are released as soon as they have left.
  [[nodiscard]] Tensor to_experts(const ExpertLoad& load, Tensor&& pairs) const;
  /// The reverse. `rows` are released as soon as they are in the order of the ranks.
  [[nodiscard]] Tensor to_tokens(const ExpertLoad& load, Tensor rows) const;

 private:
  /// Offsets of Routing of all ranks (ranks, experts + 1), from the device.
  [[nodiscard]] std::span<const std::int32_t> gathered_offsets(const RoutingShape& shape, const Routing& routing) const;
  /// Calls use(number, by_rank, by_expert) for each source rank and expert of this rank with number > 0 rows: by_rank
  /// and by_expert are the indices of the first of these rows in the order by rank and in the order by expert.
  template <class Use>
  void for_blocks(const ExpertLoad& load, const Use& use) const;
  /// Rows that arrived, rank after rank.
  [[nodiscard]] Tensor arrived(const ExpertLoad& load, const Tensor& pairs) const;
  /// Rows of this rank's experts: rank after rank, or expert after expert.
  enum class Order { ranks, experts };
  /// Rows that are in the other order.
  [[nodiscard]] Tensor in_order_of(Order order, const ExpertLoad& load, Tensor rows) const;
  [[nodiscard]] std::vector<std::int64_t> sent(const ExpertLoad& load, std::int64_t width) const;
  [[nodiscard]] std::vector<std::int64_t> received(const ExpertLoad& load, std::int64_t width) const;

  Device* device_;
  Group* group_;
  std::int64_t ranks_;
  std::int64_t experts_;   // of the layer
  std::int64_t held_;      // of this rank
  std::int32_t* offsets_;  // pinned, so that the host's wait for them has a timeout: (ranks, experts + 1)
};

}  // namespace sailor::runtime
