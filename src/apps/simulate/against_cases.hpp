// sailor-simulate --against CASES: compares every measured case of a file with its prediction.
#pragma once

#include "apps/simulate/simulate_options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

/// Prints the table (or JSON) and draws the box plot of --plot. Errors: usage (options that only a plan takes), those
/// of the file, and those of its cases, by name.
Result<void> compare_with_cases(const SimulateOptions& options, const Environment& environment,
                                const GpuCatalogue& gpus, const Profile& profile);

}  // namespace sailor::apps
