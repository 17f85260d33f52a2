// A timeline as Chrome trace events (trace_events.hpp): a process per pipeline, a track per rank, and further ones for
// communication that overlaps its computation.
#pragma once

#include <filesystem>
#include <string>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "plan/timeline.hpp"

namespace sailor {

enum class TraceRanks {
  all,        ///< events without a rank are repeated for the copies of their pipeline and the members of their group
  one_alike,  ///< only for the first of these
};

/// Every rank's track is filled from 0 to the length of the timeline: what is not forward, backward, send, receive,
/// reduce or update is an event "idle". Arrows lead from a send to its receive. Errors: invalid_input (more than
/// most_trace_events, or an invalid time), failure (an event of a stage or rank that the plan does not have).
Result<std::string> to_trace_json(const Plan& plan, const Timeline& timeline, TraceRanks ranks = TraceRanks::all);

/// The same into a file, atomically and without holding it in memory. Errors: also io.
Result<void> save_trace(const Plan& plan, const Timeline& timeline, const std::filesystem::path& path,
                        TraceRanks ranks = TraceRanks::all);

}  // namespace sailor
