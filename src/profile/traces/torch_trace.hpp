// Reads the traces that torch.profiler's export_chrome_trace() writes.
#pragma once

#include <istream>
#include <string_view>

#include "core/error.hpp"
#include "profile/traces/recording.hpp"

namespace sailor::traces {

/// Reads a trace event by event: it needs a few dozen bytes for each, not the JSON. Kernels, operations,
/// record_function() ranges and modules are kept. `file` stands for the trace in messages. Errors: invalid_input (no
/// JSON, where; no trace).
Result<Recording> read_torch_trace(std::istream& stream, std::string_view file);

}  // namespace sailor::traces
