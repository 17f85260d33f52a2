// Times of messages and collectives between a plan's ranks, by the simulator.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "runtime/rehearsal/rehearsal_transport.hpp"
#include "simulator/costs.hpp"

namespace sailor::rehearsal {

/// The simulator's times, by rank. The costs must outlive it.
class PlanTimes final : public runtime::CommunicationTimes {
 public:
  PlanTimes(const Plan& plan, const simulator::PlanCosts& costs)
      : costs_(costs), roles_(rank_roles(plan)), divides_experts_(plan.expert_parallel > 1) {}

  /// Index among the stages of all pipeline entries.
  [[nodiscard]] std::size_t stage_of(int rank) const;
  /// Throws std::logic_error for other messages than activations and gradients, of which the costs know nothing.
  [[nodiscard]] Seconds message(int from, int to, runtime::MessageKind kind, Bytes amount) const override;
  [[nodiscard]] Seconds collective(runtime::Collective collective, const std::vector<int>& ranks,
                                   Bytes amount) const override;
  [[nodiscard]] bool messages_block() const override { return !costs_.overlaps_transfers; }

 private:
  /// Stages whose replicas all-reduce gradients, and whether these are gradients of experts that ranks divide.
  using Reduced = std::pair<std::set<std::size_t>, bool>;
  /// Time of an all-reduce per byte, averaged over the simulator's reductions between exactly these stages.
  [[nodiscard]] Seconds rate(const Reduced& what) const;

  const simulator::PlanCosts& costs_;
  std::vector<RankRole> roles_;
  bool divides_experts_;
  mutable std::map<Reduced, Seconds> rates_;  // cached: needed for every bucket
};

}  // namespace sailor::rehearsal
