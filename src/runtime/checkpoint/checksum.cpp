#include "runtime/checkpoint/checksum.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

namespace sailor::runtime {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

namespace {

constexpr std::uint64_t prime1 = 0x9e3779b185ebca87u;
constexpr std::uint64_t prime2 = 0xc2b2ae3d27d4eb4fu;
constexpr std::uint64_t prime3 = 0x165667b19e3779f9u;
constexpr std::uint64_t prime4 = 0x85ebca77c2b2ae63u;
constexpr std::uint64_t prime5 = 0x27d4eb2f165667c5u;

template <class T>
T load(const unsigned char* data) {
  T value;  // `data` may be unaligned
  std::memcpy(&value, data, sizeof(T));
  return value;
}

constexpr std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
  return std::rotl(lane + input * prime2, 31) * prime1;
}

constexpr std::uint64_t merge(std::uint64_t hash, std::uint64_t lane) {
  return (hash ^ round(0, lane)) * prime1 + prime4;
}

}  // namespace

std::uint64_t checksum(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  const unsigned char* const end = at + bytes;
  std::uint64_t hash = prime5;
  if (bytes >= 32) {
    std::array<std::uint64_t, 4> lanes{prime1 + prime2, prime2, 0, 0 - prime1};
    for (; end - at >= 32; at += 32)
      for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = round(lanes[i], load<std::uint64_t>(at + 8 * i));
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const std::uint64_t lane : lanes) hash = merge(hash, lane);
  }
  hash += bytes;
  for (; end - at >= 8; at += 8) hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * prime1 + prime4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at) * prime1, 23) * prime2 + prime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ *at * prime5, 11) * prime1;
  hash = (hash ^ (hash >> 33)) * prime2;
  hash = (hash ^ (hash >> 29)) * prime3;
  return hash ^ (hash >> 32);
}

std::string checksum_text(const void* data, std::size_t bytes) { return fmt::format("{:016x}", checksum(data, bytes)); }

}  // namespace sailor::runtime
