// 16-bit values (bfloat16 or float16) as their bits: the one place that chooses between the two types.
#pragma once

#include <cstdint>

#include "runtime/bfloat16.hpp"
#include "runtime/float16.hpp"
#include "runtime/values.hpp"

namespace sailor::runtime {

/// Rounds to the nearest, ties to even.
inline std::uint16_t to_bits16(DataType type, float value) {
  return type == DataType::float16 ? to_float16(value) : to_bfloat16(value);
}

/// Exact.
inline float from_bits16(DataType type, std::uint16_t bits) {
  return type == DataType::float16 ? from_float16(bits) : from_bfloat16(bits);
}

/// sums[i] += more[i], in float32, each sum rounded to the nearest.
inline void add_bits16(DataType type, std::uint16_t* sums, const std::uint16_t* more, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    sums[i] = to_bits16(type, from_bits16(type, sums[i]) + from_bits16(type, more[i]));
}

}  // namespace sailor::runtime
