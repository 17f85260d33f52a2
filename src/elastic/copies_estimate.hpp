// Estimate of what copies of the state in the memory of peers (runtime/copy_layout.hpp) cost under a plan.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "simulator/simulator.hpp"

namespace sailor::elastic {

struct CopiesEstimate {
  int senders = 0;  ///< ranks whose state a peer keeps; 0: replicas on other hosts hold all state, nothing is copied
  Bytes kept_by_rank{};  ///< host memory, largest over ranks
  Bytes kept_on_host{};  ///< host memory, largest over hosts
  Bytes sent{};          ///< by a rank, per iteration, largest over ranks
  Seconds transfer{};    ///< of the slowest copy, while no activations and gradients are sent
  Seconds longer{};      ///< increase of the iteration time: what the passes do not overlap
};

/// `hosts`: the host of each rank. Errors: those of check_trainable(); not_found for links that are not known.
Result<CopiesEstimate> estimate_copies(const Plan& plan, const std::vector<std::string>& hosts,
                                       const simulator::Environment& environment,
                                       const simulator::Prediction& prediction);

/// Max increase of the iteration time, as a share of it, at which copies are made automatically. They save the work
/// since the last checkpoint at every loss of ranks.
inline constexpr double max_cost_of_copies = 0.1;

}  // namespace sailor::elastic
