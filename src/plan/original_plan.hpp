// Plans in the JSON of the original Sailor (github.com/eth-easl/sailor): those of its planner and evaluator, and those
// that its authors published with what they measured.
//
// {"pipeline_list": [{"num_stages": 2,
//                     "layers_per_stage": [[0, 1], [2]],
//                     "tmp_per_stage": [[[[["GH-96", 4, "zone"]], 4], ...one per data-parallel replica], ...per stage],
//                     "dp": [...replicas of every stage]}],
//  "mbs": 8, "gbs": 1024, "real": 1.5, "max_mem": 25e9}
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// Settings that the files do not contain. The model must outlive the call.
struct OriginalPlanOptions {
  const Model& model;
  Precision precision = Precision::fp32;
  /// Maps a name in the file ("GH-96") to the name in the GPU catalogue.
  std::function<Result<std::string>(std::string_view)> gpu_name;
  int sequence_length = 0;  ///< tokens; 0: the model's maximum
};

struct OriginalPlan {
  /// One pipeline per data-parallel replica: replica i of every stage. Equal ones are folded. Micro-batches are divided
  /// as evenly as possible; the first pipelines take one more.
  Plan plan;
  std::optional<Seconds> measured_time;  ///< `real`: time of an iteration
  std::optional<Bytes> measured_memory;  ///< `max_mem`: the largest of any GPU
};

/// Keys that are not named above are ignored. Errors: invalid_input with the path of keys, also for a plan that Sailor
/// cannot represent: stages with unequal numbers of replicas, tensor-parallel groups of several GPU types or zones.
Result<OriginalPlan> parse_original_plan(std::string_view text, std::string_view source_name,
                                         const OriginalPlanOptions& options);
/// Errors: also not_found, io.
Result<OriginalPlan> load_original_plan(const std::filesystem::path& path, const OriginalPlanOptions& options);

/// A GPU type of the catalogue as the original spells it ("GH-96").
std::string original_gpu_name(const std::string& gpu);

/// The plan in that JSON, one entry of pipeline_list; parse_original_plan() of it gives the same plan, except for its
/// origin, prediction and order of pipelines. `devices_per_node` by GPU type; a missing type has nodes as large as its
/// largest tensor-parallel group. Errors: invalid_input, naming what the format cannot express.
Result<std::string> original_plan_to_json(const Plan& plan, const std::map<std::string, int>& devices_per_node);

}  // namespace sailor
