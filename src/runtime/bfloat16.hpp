// bfloat16, the upper half of a float32, as its bits: one sign, eight exponent and seven fraction bits.
#pragma once

#include <bit>
#include <cstdint>

namespace sailor::runtime {

/// Rounds to the nearest, ties to even; values beyond the largest finite one become infinity. NaN stays NaN (quiet, the
/// same sign).
inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// Exact.
inline float from_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace sailor::runtime
