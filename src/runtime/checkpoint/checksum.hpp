// XXH64 (github.com/Cyan4973/xxHash, the specification's algorithm): checksums of checkpoint data. It takes one pass at
// memory speed on any processor, and every single flipped bit changes the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sailor::runtime {

/// XXH64 with seed 0.
std::uint64_t checksum(const void* data, std::size_t bytes);
/// The checksum as 16 hexadecimal digits.
std::string checksum_text(const void* data, std::size_t bytes);

}  // namespace sailor::runtime
