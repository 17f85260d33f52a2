// Several plans as tasks of job arrays.
#pragma once

#include <vector>

#include "apps/submit/submission.hpp"
#include "apps/submit/submit_options.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// Groups the plans into job arrays: plans that need as many nodes of the same kind are tasks of one array, which the
/// request of its first plan describes. Errors: invalid_input (plans of several kinds of nodes, or of one name).
Result<std::vector<std::vector<Submission>>> make_arrays(const SubmitOptions& options, std::vector<Submission> all);

}  // namespace sailor::apps
