// sailor-submit --elastic MIN-MAX: what it makes of a submission.
#pragma once

#include "apps/options.hpp"
#include "apps/submit/submission.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// Fills in the elastic part of the request, where --elastic is given. Errors: usage (a range that cannot be read,
/// options that do not go with it, no checkpoints).
Result<void> make_elastic(const Options& options, const Environment& environment, Submission& submission);

/// Whether the training's controller is there. Errors: unavailable.
Result<void> check_controller(const Submission& submission);

}  // namespace sailor::apps
