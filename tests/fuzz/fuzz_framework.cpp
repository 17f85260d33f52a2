#include <cstdint>
#include <string_view>

#include "simulator/framework.hpp"

// Any bytes are either a framework whose numbers make sense, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto framework = sailor::simulator::parse_framework(text, "fuzz.toml");
  if (!framework) {
    if (framework.error().what.empty()) __builtin_trap();
    return 0;
  }
  if (framework->name.empty() || framework->state.empty()) __builtin_trap();
  if (!(framework->reduction_rate >= sailor::BytesPerSecond(0.0)) || !(framework->profiling_overhead >= 0.0))
    __builtin_trap();
  for (const auto& [precision, state] : framework->state)
    if (!(state.weight.value() > 0.0)) __builtin_trap();
  return 0;
}
