// sailor-simulate --copies: what it costs an elastic training to keep copies of its state in the memory of peers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/error.hpp"
#include "elastic/copies_estimate.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

/// The host of each rank, placed as sailor-launch does. Without a cluster (null) every rank has one of its own. Errors:
/// those of place_on_nodes().
Result<std::vector<std::string>> hosts_of_ranks(const Plan& plan, const Cluster* cluster);

std::string copies_report(const elastic::CopiesEstimate& estimate, bool has_cluster);
nlohmann::ordered_json copies_to_json(const elastic::CopiesEstimate& estimate);

}  // namespace sailor::apps
