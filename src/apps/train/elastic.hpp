// sailor-train --elastic: a rank of a training whose ranks come and go. A controller (sailor-controller) says who takes
// part, and under which plan; MPI has no part in it.
#pragma once

#include <string>
#include <vector>

#include "apps/options.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// --elastic and what only it reads.
std::vector<Option> elastic_options();

/// Takes part until the training is over; returns the exit status. `command`: for provenance.
Result<int> train_elastically(const Options& options, const Environment& environment, const std::string& command);

}  // namespace sailor::apps
