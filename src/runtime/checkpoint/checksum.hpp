// XXH64 of xxHash (github.com/Cyan4973/xxHash): checksums of checkpoint data. It takes one pass at memory speed on any
// processor, and every single flipped bit changes the result. It is part of the format of checkpoints.
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
