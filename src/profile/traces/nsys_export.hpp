// Reads what `nsys export --type sqlite` writes.
#pragma once

#include <filesystem>

#include "core/error.hpp"
#include "profile/traces/recording.hpp"

namespace sailor::traces {

/// Reads kernels, the calls that launched them, and NVTX ranges, which are PyTorch's operations where emit_nvtx()
/// recorded them. Errors: io, invalid_input (damaged, or a table is missing, and how to record it), unavailable (built
/// without SQLite).
Result<Recording> read_nsys_export(const std::filesystem::path& file);

}  // namespace sailor::traces
