#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

#include "profile/traces/measure.hpp"
#include "profile/traces/torch_trace.hpp"

// Any bytes are either a trace, whose passes have finite times, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
  const auto recording = sailor::traces::read_torch_trace(stream, "fuzz.json");
  if (!recording) {
    if (recording.error().what.empty()) __builtin_trap();
    return 0;
  }
  for (const int tensor_parallel : {1, 2}) {
    const auto times = sailor::traces::measure(*recording, 2, tensor_parallel, "fuzz.json");
    if (!times) {
      if (times.error().what.empty()) __builtin_trap();
      continue;
    }
    if (times->passes.empty()) __builtin_trap();
    for (const sailor::traces::PassTimes& pass : times->passes)
      for (const auto* list : {&pass.forward, &pass.backward, &pass.forward_idle, &pass.backward_idle})
        for (const double time : *list)
          if (!(time >= 0.0) || !std::isfinite(time)) __builtin_trap();
  }
  return 0;
}
