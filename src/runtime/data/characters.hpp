// Characters of UTF-8 text that may have invalid bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sailor::runtime {

struct DecodedCharacter {
  std::int32_t code = -1;  ///< code point; -1: the first byte is not part of valid UTF-8
  std::size_t length = 1;  ///< bytes
};

/// The first character of the text, which must not be empty.
inline DecodedCharacter first_character(std::string_view text) {
  const auto byte = [&](std::size_t index) {
    return static_cast<std::int32_t>(static_cast<unsigned char>(text[index]));
  };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return {};
  std::int32_t code = byte(0) & (0xff >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3f);
  }
  // Overlong encodings, surrogates, and values beyond Unicode are invalid.
  if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000) || (code >= 0xd800 && code < 0xe000) ||
      code > 0x10ffff)
    return {};
  return {code, length};
}

}  // namespace sailor::runtime
