#include <cstdint>
#include <string_view>

#include "profile/text.hpp"

// Any bytes are either the text of a store, which then reads back as the same text, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto store = sailor::parse_profile_toml(text, "fuzz.toml");
  if (!store) {
    if (store.error().what.empty()) __builtin_trap();
    return 0;
  }
  const std::string written = sailor::to_toml(*store);
  const auto again = sailor::parse_profile_toml(written, "written.toml");
  if (!again || sailor::to_toml(*again) != written) __builtin_trap();
  return 0;
}
