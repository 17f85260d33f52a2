// float16 (IEEE 754 binary16) as its bits: one sign, five exponent and ten fraction bits.
#pragma once

#include <bit>
#include <cstdint>

namespace sailor::runtime {

/// Rounds to the nearest, ties to even; values from 65,520 on become infinity. NaN stays NaN (quiet, the same sign).
/// Branch-free, so that loops over it become vector instructions.
inline std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t size = bits & 0x7fffffffu;
  // A normal number: exponent bias 15 instead of 127, 13 fraction bits fewer.
  const std::uint32_t normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  // A subnormal number, below 2^-14: a multiple of 2^-24, to which the sum with 0.5 rounds.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  const std::uint32_t finite = size < 0x38800000u ? small : normal;
  const std::uint32_t large = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<std::uint16_t>(sign | (size >= 0x477ff000u ? large : finite));
}

/// Exact.
inline float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = (std::uint32_t{bits} & 0x8000u) << 16;
  const std::uint32_t size = (std::uint32_t{bits} & 0x7fffu) << 13;
  const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) * 0x1p112f);
  const std::uint32_t special = size | 0x7f800000u;
  return std::bit_cast<float>(sign | (size >= 0x0f800000u ? special : finite));
}

}  // namespace sailor::runtime
