#include "runtime/data/sample_order.hpp"

#include <bit>

namespace sailor::runtime {

namespace {

/// SplitMix64's output function (Steele et al. 2014).
constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

std::int64_t sample_at(std::uint64_t seed, std::int64_t position, std::int64_t samples) {
  const std::uint64_t key = mix(mix(seed) ^ static_cast<std::uint64_t>(position / samples));
  // A Feistel network permutes [0, 4^half_bits); values that fall outside [0, samples) are permuted again until one
  // falls inside ("cycle walking", Black & Rogaway 2002), which leaves a permutation of [0, samples).
  const auto count = static_cast<std::uint64_t>(samples);
  const int half_bits = (static_cast<int>(std::bit_width(count - 1)) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto value = static_cast<std::uint64_t>(position % samples);
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t next = left ^ (mix(key + round * 0x632be59bd9b4e019u + right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= count);
  return static_cast<std::int64_t>(value);
}

}  // namespace sailor::runtime
