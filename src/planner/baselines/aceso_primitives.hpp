// Aceso's primitives: changes of one stage, the target, with what other stages have to give or take for them.
#pragma once

#include <vector>

#include "planner/baselines/aceso_model.hpp"

namespace sailor::planner::baselines::aceso_detail {

enum class Primitive {
  move_operators,   ///< dec-op: the target passes operators on to other stages
  more_replicas,    ///< inc-dp
  fewer_replicas,   ///< dec-dp
  wider_groups,     ///< inc-tp
  narrower_groups,  ///< dec-tp
  larger_batch,     ///< inc-mbs
  smaller_batch,    ///< dec-mbs
};

/// A configuration and its prediction.
struct Rated {
  Config config;
  Predicted predicted;
};

/// The primitives to try, in groups, the most promising first: those that relieve the resource of which the target uses
/// the largest share.
std::vector<std::vector<Primitive>> action_groups(const Rated& rated, int target, const CostModel& model);

/// The configurations that a primitive leads to; empty if it is not possible. `use_idle`: GPUs that no stage has may be
/// taken, and a stage may have several whole nodes; otherwise, as in the artifact, a plan that leaves GPUs idle can
/// never change the number of GPUs of its stages.
std::vector<Config> apply(Primitive primitive, const Rated& rated, int target, const CostModel& model, bool use_idle);

/// Chooses the best degrees of every stage for the micro-batch. False if a stage has none.
bool choose_degrees(Config& config, const CostModel& model);

}  // namespace sailor::planner::baselines::aceso_detail
