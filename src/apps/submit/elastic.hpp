// sailor-submit --elastic MIN-MAX: makes a submission elastic.
#pragma once

#include "apps/submit/submission.hpp"
#include "apps/submit/submit_options.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// Fills in the elastic part of the request, if --elastic is given. Errors: usage (a range that cannot be read, options
/// that do not go with it, no checkpoints).
Result<void> make_elastic(const SubmitOptions& options, const Environment& environment, Submission& submission);

/// Sets the host memory that ranks of an elastic training need for copies of the state (NodeRequest::copies_of_rank),
/// on the nodes that the request names. Errors: those of check_trainable() and nodes_of_ranks().
Result<void> count_copies(Submission& submission);

/// Checks that the controller program of the training exists. Errors: unavailable.
Result<void> check_controller(const Submission& submission);

}  // namespace sailor::apps
