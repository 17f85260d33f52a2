// Plans under the cost model of the Sailor artifact (github.com/eth-easl/sailor): its evaluator's time, its prices, its
// memory rule, over the plans that its format can express. For comparison with published figures only: the model has
// known faults, which are kept (see evaluator.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "planner/planner.hpp"
#include "planner/request.hpp"
#include "profile/profile.hpp"

namespace sailor::planner {

/// The evaluator's figures of a plan.
struct ArtifactScore {
  Seconds iteration_time{};
  Seconds pipeline_time{};
  Seconds synchronization_time{};
  Usd cost_per_iteration{};
  Usd egress_cost_per_iteration{};
  Bytes peak_memory{};
  bool fits = true;
};

struct ArtifactPlan {
  Plan plan;  ///< replica i of every stage as a pipeline; carries the score as its prediction
  ArtifactScore score;
  double memory_headroom = 0.0;  ///< by the evaluator's memory rule and the artifact's GPU sizes
};

struct ArtifactResult {
  std::vector<ArtifactPlan> plans;  ///< best first
  Bound bound;
  Stop stop = Stop::done;
  std::uint64_t considered = 0;
  std::uint64_t did_not_fit = 0;
  std::vector<std::string> left_out;
};

/// The counterpart of find_plans(). Request::memory_margin counts; schedule, recompute and optimizer sharding must be
/// what the artifact's runtime does (1f1b, none, none). Errors as find_plans(); also invalid_input for pins that the
/// artifact cannot express.
Result<ArtifactResult> find_artifact_plans(const Request& request, const Model& model, const Profile& profile,
                                           const Cluster& cluster, const GpuCatalogue& gpus);

/// Scores any plan whose pipelines have the same number of stages and the same layers in each. Errors: invalid_input
/// (no counterpart in the artifact's format), not_found (times, memory or links that the artifact does not have).
Result<ArtifactScore> artifact_score(const Plan& plan, const Model& model, const Profile& profile,
                                     const GpuCatalogue& gpus);

}  // namespace sailor::planner
