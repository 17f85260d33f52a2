#include <cstdint>
#include <string_view>

#include "cluster/gpu_catalogue.hpp"

// Any bytes are either a GPU catalogue or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = sailor::GpuCatalogue::parse(text, "fuzz.toml");
  if (!parsed && parsed.error().what.empty()) __builtin_trap();
  return 0;
}
