#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/checkpoint/manifest.hpp"

namespace {

/// A manifest is whole and stays itself when it is written and read again, or is refused with a reason.
void check(std::string_view text) {
  const auto manifest = sailor::runtime::parse_manifest(text, "fuzz.json");
  if (!manifest) {
    if (manifest.error().what.empty()) __builtin_trap();
    return;
  }
  for (const auto& tensor : manifest->tensors)
    for (const auto array : sailor::runtime::stored_arrays) {
      std::int64_t end = 0;
      for (const auto& piece : tensor.of(array)) {
        if (piece.first != end || piece.count < 1) __builtin_trap();
        end += piece.count;
        if (piece.offset < 0 || piece.bytes() > manifest->files.at(piece.file).bytes - piece.offset) __builtin_trap();
      }
      if (end != tensor.elements() && !tensor.of(array).empty()) __builtin_trap();
    }
  const auto again = sailor::runtime::parse_manifest(sailor::runtime::manifest_text(*manifest), "again.json");
  if (!again || again->tensors.size() != manifest->tensors.size()) __builtin_trap();
}

}  // namespace

// As it stands, where the checksum at the end refuses nearly everything, and with a new one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text);
  check(sailor::runtime::seal_manifest(std::string(text)));
  return 0;
}
