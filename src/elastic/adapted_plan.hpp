// Adapts an existing plan to other devices without a planner, as no times are needed.
#pragma once

#include <span>

#include "core/error.hpp"
#include "elastic/roles.hpp"
#include "plan/plan.hpp"

namespace sailor::elastic {

/// As many pipelines of the plan as the members have devices for: copies are removed or added, and the micro-batches
/// are divided among the pipelines in proportion to what they had, so that the global batch stays. Copies that divide
/// experts among them come and go together. Errors: infeasible, when there are not enough devices for one pipeline, or
/// the global batch cannot be divided.
Result<Plan> adapt_plan(const Plan& plan, std::span<const MemberFacts> members);

}  // namespace sailor::elastic
