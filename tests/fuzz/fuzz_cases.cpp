#include <cstdint>
#include <string_view>

#include "simulator/cases.hpp"

// Any bytes are either cases that can be compared with, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = sailor::simulator::parse_cases(text, "fuzz.toml", "/no/such/folder");
  if (!file) {
    if (file.error().what.empty()) __builtin_trap();
    return 0;
  }
  if (file->cases.empty()) __builtin_trap();
  for (const auto& entry : file->cases)
    if (!(entry.iteration_time.value() > 0.0) || !sailor::check_plan(entry.plan)) __builtin_trap();
  return 0;
}
