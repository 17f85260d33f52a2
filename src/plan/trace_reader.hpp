// Reads the traces that save_trace() writes (trace.hpp).
#pragma once

#include <filesystem>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "plan/timeline.hpp"

namespace sailor {

/// Reads what the first rank of every stage did (of identical pipelines, that of the first) from a trace of all ranks
/// or of one of those that are alike. Events have no rank. Errors: not_found, io (also over 256 MiB); invalid_input
/// (not a trace of Sailor, or one of a plan with other ranks).
Result<Timeline> load_trace(const std::filesystem::path& path, const Plan& plan);

}  // namespace sailor
