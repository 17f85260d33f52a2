// exp() as straight-line code that compilers turn into vector instructions. For kernel files only.
#pragma once

#include <bit>
#include <cstdint>

namespace sailor::runtime::cpu {

/// Relative error below 2e-7. Arguments are clamped to [-87, 88], so the result is neither 0 nor infinite.
/// Cephes' expf: x = n ln2 + r, a polynomial in r, times 2^n.
inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float round_by_adding = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the rounded integer
  const float shifted = x * 1.44269504088896341f + round_by_adding;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(round_by_adding);
  const float n = shifted - round_by_adding;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

}  // namespace sailor::runtime::cpu
