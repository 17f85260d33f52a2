// Metis' search: device groups for the stages, then data and tensor parallelism of each, then layers in proportion to
// speed (search_space/ of the artifact).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/baselines/baseline.hpp"
#include "planner/baselines/metis_model.hpp"

namespace sailor::planner::baselines::metis_detail {

struct Found {
  Arrangement plan;
  std::size_t sequence = 0;  ///< index of the order of GPU types
  double ms = 0.0;
};

struct SearchResult {
  std::vector<Found> found;          ///< in the order of the search
  std::size_t uncosted = 0;          ///< plans with times that were not measured
  std::uint64_t work_limit_hit = 0;  ///< the limit that ended the search; 0: none did
  bool out_of_time = false;
};

/// Permutations of the GPU types, by name. The artifact's first one is the order of a Python set, which changes from
/// run to run; with Faults::kept the seed selects it. Seed 0 has V100 first, as in the golden runs of figures 8b and
/// 12, seed 1 A100, as in that of figure 11.
std::vector<std::vector<int>> sequences_of(const Tables& tables, const Problem& problem);

SearchResult search_plans(const Problem& problem, const Tables& tables, const std::vector<std::vector<int>>& sequences);

}  // namespace sailor::planner::baselines::metis_detail
