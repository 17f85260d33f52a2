// The state that the parts of the cost model share while they price a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/units.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"
#include "simulator/costs.hpp"
#include "simulator/price_list.hpp"
#include "simulator/switches.hpp"

namespace sailor::simulator {

/// Facts about a stage that are known before anything is priced.
struct StageFacts {
  std::uint32_t place = 0;
  int busy_ranks = 1;        ///< on the busiest node of a copy
  Reach next = Reach::leaf;  ///< to the next stage (from the last stage: to the first), of the copy that is farthest
};

/// Load of a node by a reduction: its ranks there, and the number of all-reduces that use the node's network at once.
struct RingLoad {
  int ranks = 0;
  int rings = 0;
};

/// An all-reduce as the ranks of a node see it.
struct Exchange {
  RingLoad load;
  Reach reach = Reach::leaf;
};

/// Prices, and storage that is reused for every plan.
struct PricingState : PriceList {
  explicit PricingState(const Environment& environment)
      : PriceList(environment), switches(environment.cluster, node_sizes) {}

  NodeUse nodes;
  SwitchMap switches;
  std::vector<StageFacts> facts;
  std::vector<int> cuts;
  std::vector<std::size_t> held;
  std::vector<char> holds;          // by stage: whether it takes part in the reduction at hand
  std::vector<RingLoad> loads;      // of the reduction at hand
  std::vector<Exchange> exchanges;  // the same, of one of its all-reduces
  std::vector<double> sizes;        // by chunk
  std::vector<std::uint32_t> ring;  // a place for each zone
};

/// The pipeline and the stage of PlanCosts::stages[stage].
inline const Pipeline& pipeline_at(const Plan& plan, const PlanCosts& costs, std::size_t stage) {
  return plan.pipelines[static_cast<std::size_t>(costs.stages[stage].entry)];
}
inline const Stage& stage_at(const Plan& plan, const PlanCosts& costs, std::size_t stage) {
  return pipeline_at(plan, costs, stage).stages[static_cast<std::size_t>(costs.stages[stage].stage)];
}

/// Adds what traffic from one place to another costs, if they are in different zones.
void add_egress(PricingState& state, PlanCosts& costs, std::uint32_t from, std::uint32_t to, Bytes amount);

}  // namespace sailor::simulator
