// Aceso's search for one number of stages: iterative bottleneck alleviation (Liu et al., EuroSys 2024).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/baselines/aceso_primitives.hpp"

namespace sailor::planner::baselines::aceso_detail {

struct SearchLimits {
  /// Max number of configurations to rate, in place of the original's 200 s.
  std::uint64_t ratings = 0;
  std::function<bool()> is_over;
};

/// The initial configuration of the search: operators divided evenly by number, GPUs doubled stage by stage while there
/// are any. There may not be more stages than GPUs or operators.
Config initial_config(const CostModel& model, int stages);

/// The best accepted configurations, fastest first; those that do not fit only if there are no others. `use_idle` as in
/// apply().
std::vector<Rated> alleviate(const CostModel& model, int stages, bool use_idle, const SearchLimits& limits);

}  // namespace sailor::planner::baselines::aceso_detail
