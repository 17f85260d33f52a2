#include <cstdint>
#include <string_view>

#include "plan/original_plan.hpp"

// Any bytes are either a plan, which can be written and read again, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sailor::Model model = [] {
    sailor::Model four{.name = "four", .blocks = 2};
    four.max_sequence_length = 16;
    return four;
  }();
  const sailor::OriginalPlanOptions options{.model = model,
                                            .gpu_name = [](std::string_view name) -> sailor::Result<std::string> {
                                              if (name == "GH-96") return "GH200-96";
                                              return sailor::fail(sailor::ErrorCode::not_found, "not known");
                                            }};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto original = sailor::parse_original_plan(text, "fuzz.json", options);
  if (!original) {
    if (original.error().what.empty()) __builtin_trap();
    return 0;
  }
  const auto again = sailor::parse_plan(sailor::plan_to_toml(original->plan), "again.toml");
  if (!again || sailor::plan_fingerprint(*again) != sailor::plan_fingerprint(original->plan)) __builtin_trap();
  return 0;
}
