// sailor-train --rehearse: runs a plan for devices that are not there, to see whether it ends, how long an iteration
// takes and what it needs.
#pragma once

#include <vector>

#include "apps/train/train_options.hpp"
#include "runtime/world.hpp"

namespace sailor::apps {

/// --rehearse and the options that go only with it.
std::vector<Option> rehearsal_options(TrainOptions& options);

/// Collective: rehearses PLAN on all ranks and prints the report on rank 0. `world` should wait idly. Errors are agreed
/// on (agree()): those of the inputs; infeasible if the memory of a rank does not fit, after the report.
Result<void> rehearse(const TrainOptions& options, const Environment& environment, const runtime::World& world);

}  // namespace sailor::apps
