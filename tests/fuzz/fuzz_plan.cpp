#include <cstdint>
#include <string_view>

#include "plan/plan.hpp"

// Any bytes are either a plan, which can be written and read again, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto plan = sailor::parse_plan(text, "fuzz.toml");
  if (!plan) {
    if (plan.error().what.empty()) __builtin_trap();
    return 0;
  }
  const std::string written = sailor::plan_to_toml(*plan);
  const auto again = sailor::parse_plan(written, "again.toml");
  if (!again || sailor::plan_to_toml(*again) != written) __builtin_trap();
  return 0;
}
