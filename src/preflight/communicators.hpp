// Number of communicators that training a plan creates.
#pragma once

#include <cstdint>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::preflight {

struct Communicators {
  int most_per_rank = 0;    ///< maximum over ranks
  std::int64_t of_job = 0;  ///< of the whole job, each once
};

/// Counts the communicators that sailor-train creates: sets of ranks that sum gradients of the same elements,
/// tensor-parallel and context-parallel groups, and the world.
Communicators count_communicators(const Plan& plan, const Model& model);

}  // namespace sailor::preflight
