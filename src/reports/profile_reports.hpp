// What sailor-profile check and diff print: tables for people, JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "profile/check.hpp"
#include "profile/diff.hpp"
#include "profile/run_file.hpp"
#include "simulator/simulator.hpp"

namespace sailor::reports {

/// Findings by problem: why it matters and what to do, then a line for each.
std::string findings_report(const std::vector<Finding>& findings);
nlohmann::ordered_json findings_to_json(const std::vector<Finding>& findings);

/// Names of the two sides, and what is shown.
struct DiffView {
  std::string name_a{};
  std::string name_b{};
  double threshold = 0.0;  ///< differences up to this share are left out: 0.05 = 5%
  bool all = false;        ///< list every row
};
std::string difference_report(const ProfileDifference& difference, const DiffView& view);
nlohmann::ordered_json difference_to_json(const ProfileDifference& difference, const DiffView& view);

/// Predicted and measured memory of a stage: the largest over its ranks.
struct StageMemory {
  int pipeline_entry = 0;
  int stage = 0;
  Bytes predicted{};
  Bytes measured{};
};
/// One per stage that the run has ranks of.
std::vector<StageMemory> compare_stage_memory(const Plan& plan, const simulator::Prediction& prediction,
                                              const RunRecord& run);
std::string stage_memory_report(const std::vector<StageMemory>& stages);
nlohmann::ordered_json stage_memory_to_json(const std::vector<StageMemory>& stages);

}  // namespace sailor::reports
