// sailor-simulate --against CASES: every measured case of a file beside its prediction.
#pragma once

#include "apps/options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "profile/profile.hpp"

namespace sailor::apps {

/// Prints the table (or JSON) and draws the box plot of --plot. Errors: usage (options that only a plan takes), the
/// file's, and those of its cases, named.
Result<void> compare_with_cases(const Options& options, const Environment& environment, const GpuCatalogue& gpus,
                                const Profile& profile);

}  // namespace sailor::apps
