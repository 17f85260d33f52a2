#include <cstdint>
#include <string_view>

#include "cluster/availability_trace.hpp"

// Any bytes are either a trace whose steps follow each other, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto gpus = sailor::GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto steps = sailor::parse_availability_trace(text, "fuzz.csv", gpus, sailor::Seconds(3600.0));
  if (!steps) {
    if (steps.error().what.empty()) __builtin_trap();
    return 0;
  }
  for (const auto& step : *steps)
    if (!(step.duration.value() > 0.0)) __builtin_trap();
  return 0;
}
