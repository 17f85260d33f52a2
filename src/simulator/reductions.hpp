// The part of the cost model that prices gradient reductions and what sharding exchanges besides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "simulator/costs.hpp"
#include "simulator/framework.hpp"
#include "simulator/pricing_state.hpp"

namespace sailor::simulator {

/// Fills PlanCosts::reductions of a plan whose pipelines are priced; under ZeRO-3 their times are added to the passes.
class ReductionPricer {
 public:
  ReductionPricer(const Plan& plan, const StateBytes& bytes, PricingState& state, PlanCosts& costs)
      : plan_(plan), state_(bytes), s_(state), costs_(costs), has_groups_(plan.sharding_groups() > 1) {}

  /// Gradients of a layer are all-reduced over exactly the ranks that hold it; layers with the same holders share a
  /// reduction.
  Result<void> run();
  // After run(); `stage` is an index into PlanCosts::stages.
  /// Number of replicas that share what is sharded of a stage: the maximum over its reductions.
  [[nodiscard]] int shards_of(std::size_t stage) const;
  /// Bytes of a stage's largest reduction, or bucket; 0 if the framework does not copy what it reduces.
  [[nodiscard]] Bytes largest(std::size_t stage) const;

 private:
  /// ZeRO-3: every pass gathers the weights of its layers, and a backward pass scatters their gradients and, between
  /// sharding groups, all-reduces the shards, so that nothing is left for the end of an iteration. Within a group a
  /// reduction's time is that of an all-reduce of the gradients, half of which is the reduce-scatter; the all-gather of
  /// the weights takes as long, in proportion to their bytes.
  void move_into_passes();
  /// Bytes of weights for each byte of gradients.
  [[nodiscard]] double gathered_for_each_scattered() const;
  /// Time of passes through `layers` layers that compute and communicate. With prefetching both overlap, except for the
  /// first or the last layer.
  [[nodiscard]] Seconds beside(Seconds computing, Seconds exchanging, int layers) const;
  /// Appends the holders of `layer` to s_.held, which is cleared first unless `also`.
  void hold(int layer, bool also = false);
  void add_layers(int first, int last);
  void add_tied();
  struct ReductionKind {
    bool tied = false;
    bool experts = false;
  };
  /// `parameters`: of one rank of those that hold the layers, if it had no tensor parallelism.
  void add_reduction(int first, int last, double parameters, const ReductionKind& kind);
  [[nodiscard]] int least_tensor_parallel() const;
  /// Bytes that cross links, as a share of the bytes of the gradients.
  [[nodiscard]] double exchanged_share() const;
  /// Number of the reduction's replicas that share what is sharded; all of them where nothing is. The tied embedding is
  /// taken to be summed over all ranks of both its stages at once.
  [[nodiscard]] int group_of(const Reduction& reduction) const;
  Result<void> price_reduction(Reduction& reduction);
  /// Times that an iteration reduces gradients: ZeRO-3 does it in every backward pass.
  [[nodiscard]] double scatters_of(std::span<const std::size_t> holders) const;
  /// All-reduces of the gradients that move as many bytes as an iteration does: ZeRO-3 gathers the weights twice for
  /// every reduce-scatter.
  [[nodiscard]] double exchanges_of(std::span<const std::size_t> holders) const;
  /// Number of sharding groups with replicas in more than one place. Groups are consecutive replicas.
  [[nodiscard]] int groups_over_places(std::span<const std::size_t> holders) const;
  /// Time of an all-reduce of `amount` bytes in `pieces` over `replicas`, by the loads in s_.exchanges: over different
  /// devices or zones as slow as over their slowest pair, unless all holders are in one place (`alike`) or replicas of
  /// different places do not exchange (`apart`); over different nodes as slow as if all were like the worst one.
  Result<Seconds> all_reduce(std::span<const std::size_t> holders, bool alike, int replicas, Bytes amount,
                             double pieces, bool apart);
  [[nodiscard]] bool is_in_one_place(std::span<const std::size_t> holders) const;
  /// Fills s_.loads with the loads of the nodes that hold stages of s_.holds, and returns the number of these nodes.
  /// Every rank of a node takes part in some all-reduce; those of one tensor-parallel group in different ones.
  std::int64_t find_loads();
  /// Every expert_parallel-th of the ranks on a node holds the same experts: fewer take part in one all-reduce, and
  /// more all-reduces use the node's network.
  void spread_experts(bool one_node);
  /// A ring that visits zone after zone leaves each one once: a `share` of the gradients, in all slices, crosses there;
  /// 2(n - 1)/n in an all-reduce over n replicas.
  void add_reduction_egress(const Reduction& reduction, std::span<const std::size_t> holders, double share);

  const Plan& plan_;
  const StateBytes& state_;
  PricingState& s_;
  PlanCosts& costs_;
  bool has_groups_;  // replicas shard within groups, of plan_.sharding_degree
};

}  // namespace sailor::simulator
