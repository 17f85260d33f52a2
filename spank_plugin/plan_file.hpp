// A plan as the plugin reads it, in srun, sbatch and salloc and again in every task: always as the user, and only
// up to a maximum size.
#pragma once

#include <filesystem>

#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor::spank {

/// Reads and checks a plan. Errors: not_found, io (no regular file, over 16 MiB, unreadable), invalid_input with file,
/// line, column and reason.
Result<Plan> read_plan_file(const std::filesystem::path& path);

}  // namespace sailor::spank
