// Measures how fast a folder stores what is written to it.
#pragma once

#include <filesystem>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::preflight {

/// Writes `amount` of incompressible data and waits until it is stored (fsync). The file is unnamed (O_TMPFILE), or
/// unlinked as soon as it is created: it disappears with the process, unless that is killed between the two calls.
/// Errors: io (no such folder, no access, free space below twice `amount`). `with_name`: create and unlink, as on
/// network file systems without O_TMPFILE.
Result<Seconds> write_and_sync(const std::filesystem::path& folder, Bytes amount, bool with_name = false);

/// Time after which writing `amount` is called a hang: a minute, plus the time at 20 MB/s.
Seconds longest_writing(Bytes amount);

}  // namespace sailor::preflight
