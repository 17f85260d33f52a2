// The whole search for the artifact's evaluator: over micro-batches, data-parallel degrees and orders of zones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/artifact/search.hpp"

namespace sailor::planner::artifact {

struct Ranked {
  Pipelines pipelines;
  ArtifactScore score;
  double value = unlimited;  ///< Goal::value
};

struct SearchLimits {
  std::optional<double> seconds;
  std::optional<std::uint64_t> work;  ///< stages priced
  int threads = 0;
};

struct Outcome {
  std::vector<Ranked> plans;  ///< best first, no two with the same stages' GPU types and tensor parallelism
  double bound = unlimited;   ///< no plan has a smaller value
  Stop stop = Stop::done;
  Counters counters;
};

/// `micro_batches` divide the batch. `replicas`: only that data-parallel degree; 0: any.
Outcome search_space(const Inputs& inputs, const std::vector<int>& micro_batches, int replicas,
                     const SearchLimits& limits);

/// Devices that a plan uses.
std::int64_t devices_of(const Pipelines& pipelines);

}  // namespace sailor::planner::artifact
