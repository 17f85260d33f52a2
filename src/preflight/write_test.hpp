// Measures how fast a folder stores what is written to it.
#pragma once

#include <filesystem>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::preflight {

/// Writes `amount` of data that no compression makes smaller, and waits until it is stored (fsync). The file has no
/// name, or loses it as soon as it is open: nothing stays, also if the process is killed meanwhile, unless it is killed
/// between these two. Errors: io (no such folder, no access, less than twice as much free). `with_name`: as on network
/// file systems, which do not support files without one.
Result<Seconds> write_and_sync(const std::filesystem::path& folder, Bytes amount, bool with_name = false);

/// Time after which writing `amount` is called a hang: a minute, plus the time at 20 MB/s.
Seconds longest_writing(Bytes amount);

}  // namespace sailor::preflight
