// Finds plans for a training job on a cluster.
//
// Today: every homogeneous plan, that is one GPU type, the same stages in every pipeline, for all combinations of
// data parallelism, pipeline parallelism, tensor parallelism and micro-batch size that were measured (micro-batches
// also between measured ones; a GPU type without any measurement of the model is estimated, see
// profile/layer_costs.hpp); the layers are divided so that the slowest stage is as fast as possible. All are priced by
// the simulator's closed form; the best of those that fit are simulated event by event and ranked again.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"
#include "simulator/simulator.hpp"

namespace sailor::planner {

/// What to search over.
struct Request {
  TrainingJob job;
  std::string partition;        ///< only its nodes; empty: all nodes
  bool only_idle = false;       ///< only nodes that are free now; else all that are up
  double memory_margin = 0.0;   ///< share of each device's memory to leave free, 0 to 0.9
  std::size_t most_plans = 10;  ///< how many to return
};

struct Candidate {
  Plan plan;  ///< carries its prediction
  simulator::Prediction prediction;
  double memory_headroom = 0.0;  ///< smallest share of a device's memory that stays free; 1 when not known
};

struct SearchResult {
  std::vector<Candidate> plans;  ///< that fit, fastest first; ties: cheapest, then fewest ranks
  std::size_t considered = 0;    ///< plans that were simulated
  std::size_t did_not_fit = 0;
  std::size_t not_measured = 0;  ///< plans that could not be simulated: the profile lacks something they need
  std::string missing;           ///< what the first of them needs; empty when there are none
};

/// Errors: not_found (partition, no measurement for any GPU of the cluster), infeasible (no plan fits; says by how
/// much the nearest one misses), invalid_input.
Result<SearchResult> find_plans(const Request& request, const simulator::Environment& environment,
                                const std::function<void(std::size_t done, std::size_t of)>& progress = {});

/// Divides `layers` consecutive layers with these times into `stages` ranges, none empty, so that the largest sum is
/// smallest. Ties: later stages get fewer layers. 1 <= stages <= times.size().
std::vector<LayerRange> balance_layers(const std::vector<double>& times, int stages);

}  // namespace sailor::planner
