// What a stage chooses besides its pool, tensor-parallel degree, micro-batch size and layers: what changes the times
// and the memory of this stage, and nothing of others. A further choice is a field of StageChoice, a digit of
// its number(), its values in stage_choices(), and the two functions that hand it to the simulator and to the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "planner/request.hpp"
#include "profile/profile.hpp"
#include "simulator/framework.hpp"

namespace sailor::planner {

struct StageChoice {
  Recompute recompute = Recompute::none;
  bool operator==(const StageChoice&) const = default;

  /// Equal only for equal choices, since prices of stages are kept by it; less than 16.
  [[nodiscard]] std::uint64_t number() const { return static_cast<std::uint64_t>(recompute); }
};

/// What a stage may choose, quickest first. Errors: usage (a pin of what the framework does not have).
Result<std::vector<StageChoice>> stage_choices(const Request& request, const simulator::Framework& framework);

/// Sets the choice in what is asked of the simulator, and in a stage of a plan.
void choose(const StageChoice& choice, LayerKey& key);
void choose(const StageChoice& choice, Stage& stage);

}  // namespace sailor::planner
