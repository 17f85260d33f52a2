#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

#include "profile/traces/megatron_timers.hpp"

// Any bytes are either a log, whose timers are finite, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sailor::Model model{.name = "tiny", .blocks = 2, .hidden = 64};
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
  const auto timers = sailor::traces::read_megatron_timers(stream, model, {}, "fuzz.log");
  if (!timers) {
    if (timers.error().what.empty()) __builtin_trap();
    return 0;
  }
  if (timers->stages.empty()) __builtin_trap();
  for (const sailor::traces::MegatronStage& stage : timers->stages)
    for (const sailor::traces::StageTimes& times : stage.iterations)
      for (const auto& range : {times.forward, times.backward})
        if (!std::isfinite(range.largest) || range.smallest < 0.0 || range.largest < range.smallest) __builtin_trap();
  return 0;
}
