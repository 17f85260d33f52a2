// sailor-simulate --against sums up an elastic training from its run file: where its time went, and its changes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "profile/run_file.hpp"

namespace sailor::apps {

/// Restricts the statistics of an elastic run to the epochs that trained `plan`. True if there are any.
bool use_epochs_of(const Plan& plan, RunRecord& run);

/// Goodput, and a line for each change. Empty if the run was not elastic.
std::string elastic_report(const RunRecord& run);
/// The same; null if the run was not elastic.
nlohmann::ordered_json elastic_to_json(const RunRecord& run);

}  // namespace sailor::apps
