#include "runtime/checkpoint/checksum.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>

namespace sailor::runtime {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

std::uint64_t checksum(const void* data, std::size_t bytes) { return XXH64(data, bytes, 0); }

std::string checksum_text(const void* data, std::size_t bytes) { return fmt::format("{:016x}", checksum(data, bytes)); }

}  // namespace sailor::runtime
