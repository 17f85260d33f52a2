// How fast a folder takes what is written to it.
#pragma once

#include <filesystem>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::preflight {

/// Writes so much that no compression makes it less, and waits until it is stored (fsync). The file has no name, or
/// loses it as soon as it is open: nothing stays, also when the process is killed meanwhile, unless it is killed
/// between these two. Errors: io (no such folder, no access, less than twice as much free). `with_name`: as on network
/// file systems, which know no files without one.
Result<Seconds> write_and_sync(const std::filesystem::path& folder, Bytes amount, bool with_name = false);

/// Writing so much may take so long before it is called a hang: a minute, and as at 20 MB/s.
Seconds longest_writing(Bytes amount);

}  // namespace sailor::preflight
