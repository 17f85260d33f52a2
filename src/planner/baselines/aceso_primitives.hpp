// Aceso's primitives: changes of one stage, the target, with what other stages must give or take for it.
#pragma once

#include <vector>

#include "planner/baselines/aceso_model.hpp"

namespace sailor::planner::baselines::aceso_detail {

enum class Primitive {
  move_operators,   ///< dec-op: the target hands operators on
  more_replicas,    ///< inc-dp
  fewer_replicas,   ///< dec-dp
  wider_groups,     ///< inc-tp
  narrower_groups,  ///< dec-tp
  larger_batch,     ///< inc-mbs
  smaller_batch,    ///< dec-mbs
};

/// A configuration and what is expected of it.
struct Rated {
  Config config;
  Predicted predicted;
};

/// Which primitives to try, in groups, the most promising first: those that take from the resource of which the target
/// uses the largest share.
std::vector<std::vector<Primitive>> action_groups(const Rated& rated, int target, const CostModel& model);

/// The configurations that a primitive leads to; none where it is not possible. `use_idle`: GPUs that no stage has may
/// be taken, and a stage may have several whole nodes; else, as in the artifact, a plan that leaves GPUs idle can never
/// change who has how many.
std::vector<Config> apply(Primitive primitive, const Rated& rated, int target, const CostModel& model, bool use_idle);

/// Degrees of every stage that are best for the micro-batch. False: a stage has none.
bool choose_degrees(Config& config, const CostModel& model);

}  // namespace sailor::planner::baselines::aceso_detail
