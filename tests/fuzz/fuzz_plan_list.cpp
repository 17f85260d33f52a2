#include <cstdint>
#include <string>
#include <string_view>

#include "planner/baselines/plan_list_json.hpp"

// Any bytes are either a list of pipelines, which is written and read again as it was, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace baselines = sailor::planner::baselines;
  const auto gpu_name = [](std::string_view name) -> sailor::Result<std::string> {
    if (name == "GH-96") return "GH200-96";
    return sailor::fail(sailor::ErrorCode::not_found, "not known");
  };
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = baselines::parse_plan_list(text, "fuzz.json", gpu_name);
  if (!file) {
    if (file.error().what.empty()) __builtin_trap();
    return 0;
  }
  const std::string written = baselines::plan_list_to_json(file->list, file->global_batch);
  const auto again = baselines::parse_plan_list(written, "again.json", gpu_name);
  if (!again || baselines::plan_list_to_json(again->list, again->global_batch) != written) __builtin_trap();
  if (baselines::describe(file->list).empty()) __builtin_trap();
  const auto plan =
      baselines::to_plan(file->list, {.model = "four", .global_batch = file->global_batch, .sequence_length = 16});
  if (!plan && plan.error().what.empty()) __builtin_trap();
  return 0;
}
