#include <cstdint>
#include <string_view>

#include "model/model.hpp"

// Any bytes are either a model or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = sailor::parse_model(text, "fuzz.toml");
  if (!parsed && parsed.error().what.empty()) __builtin_trap();
  return 0;
}
