// An elastic training, from its events (FOLDER/events.jsonl), as Chrome trace events (plan/trace_events.hpp): what
// happened when, over all epochs and starts of the job. A track per member, grouped by host, and tracks of epochs,
// interruptions and events; goodput and tokens per second as counters.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace sailor::elastic {

/// `events`: in the order in which they happened. Time 0 is the first of them. Events of controllers that did not name
/// the members of an epoch give no tracks of members. Errors: invalid_input (no events, no times, more than
/// most_trace_events).
Result<std::string> to_run_trace_json(const std::vector<nlohmann::json>& events);
/// The same into a file, atomically. Errors: also io.
Result<void> save_run_trace(const std::vector<nlohmann::json>& events, const std::filesystem::path& path);

}  // namespace sailor::elastic
