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

/// Counts the communicators that sailor-train creates: groups that all-reduce the gradients of the same
/// elements, groups of tensor, context and expert parallelism, and the world.
Communicators count_communicators(const Plan& plan, const Model& model);

}  // namespace sailor::preflight
