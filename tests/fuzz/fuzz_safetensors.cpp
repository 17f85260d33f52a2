#include <cstdint>
#include <string_view>

#include "runtime/checkpoint/safetensors.hpp"

// Any header either describes tensors that fill the data without overlaps, or is refused with a reason. The first two
// bytes of the input are the length of the data.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::int64_t bytes = data[0] + 256 * data[1];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto header = sailor::runtime::parse_safetensors_header(text, bytes, "fuzz.safetensors");
  if (!header) {
    if (header.error().what.empty()) __builtin_trap();
    return 0;
  }
  std::int64_t sum = 0;
  for (const auto& [name, entry] : *header) {
    if (entry.begin < 0 || entry.begin > entry.end || entry.end > bytes) __builtin_trap();
    if (sailor::runtime::element_count(entry.shape) > entry.end - entry.begin) __builtin_trap();
    sum += entry.end - entry.begin;
  }
  if (sum != bytes) __builtin_trap();
  return 0;
}
