// How many communicators training a plan makes.
#pragma once

#include <cstdint>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::preflight {

struct Communicators {
  int most_per_rank = 0;    ///< of the rank that is in most
  std::int64_t of_job = 0;  ///< all, each once
};

/// Sets of ranks that sum gradients of the same elements, tensor-parallel groups, and the world: what sailor-train
/// makes.
Communicators count_communicators(const Plan& plan, const Model& model);

}  // namespace sailor::preflight
