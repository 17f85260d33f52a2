// sailor-train --elastic: a rank of a training whose ranks come and go. A controller (sailor-controller) decides which
// ranks take part, and under which plan; MPI is not used.
#pragma once

#include <string>
#include <vector>

#include "apps/train/train_options.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// --elastic and the options that go only with it.
std::vector<Option> elastic_options(TrainOptions& options);

/// Takes part until the training is over; returns the exit status. `command`: for provenance.
Result<int> train_elastically(const TrainOptions& options, const Environment& environment, const std::string& command);

}  // namespace sailor::apps
