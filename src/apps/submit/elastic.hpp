// sailor-submit --elastic MIN-MAX: makes a submission elastic.
#pragma once

#include "apps/options.hpp"
#include "apps/submit/submission.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// Fills in the elastic part of the request, if --elastic is given. Errors: usage (a range that cannot be read, options
/// that do not go with it, no checkpoints).
Result<void> make_elastic(const Options& options, const Environment& environment, Submission& submission);

/// Checks that the controller program of the training exists. Errors: unavailable.
Result<void> check_controller(const Submission& submission);

}  // namespace sailor::apps
