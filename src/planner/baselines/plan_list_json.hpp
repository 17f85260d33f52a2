// Lists of pipelines in the JSON of the original Sailor (plan/original_plan.hpp shows it), including those that a Plan
// cannot express.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/units.hpp"
#include "planner/baselines/plan_list.hpp"

namespace sailor::planner::baselines {

struct PlanListFile {
  PlanList list;
  int global_batch = 0;                  ///< `gbs`, sequences
  std::optional<Seconds> measured_time;  ///< `real`: of an iteration
  std::optional<Bytes> measured_memory;  ///< `max_mem`: the maximum over the GPUs
};

/// One line and a line feed. parse_plan_list() of it gives the same list, but for PlanList::grid.
std::string plan_list_to_json(const PlanList& list, int global_batch);

/// `gpu_name`: maps a name in the file ("GH-96") to that in the GPU catalogue. Other keys are ignored. Errors:
/// invalid_input with the path of keys; those of `gpu_name`.
Result<PlanListFile> parse_plan_list(std::string_view text, std::string_view source_name,
                                     const std::function<Result<std::string>(std::string_view)>& gpu_name);

}  // namespace sailor::planner::baselines
