// A plan for other devices, made of one that is there: without times, so without a planner.
#pragma once

#include <span>

#include "core/error.hpp"
#include "elastic/roles.hpp"
#include "plan/plan.hpp"

namespace sailor::elastic {

/// The same pipelines, as many as the members' devices are enough for: pipelines of the plan that are fewer or more,
/// the micro-batches divided among them in proportion to what they had, so that the global batch stays. Errors:
/// infeasible, when not even one pipeline finds its devices, or the global batch cannot be divided.
Result<Plan> adapt_plan(const Plan& plan, std::span<const MemberFacts> members);

}  // namespace sailor::elastic
