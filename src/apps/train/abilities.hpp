// The abilities of this build of sailor-train, for programs that queue jobs for it (preflight/program.hpp reads them).
#pragma once

#include <string>

#include "apps/options.hpp"

namespace sailor::apps {

/// A JSON object: `devices` (kind and precisions of each), `schedules`, `optimizer_sharding`, `recompute`, `mpi`.
std::string train_abilities(const Environment& environment);

}  // namespace sailor::apps
