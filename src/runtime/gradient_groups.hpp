// Which ranks sum the gradients of which parameters: a pure function of plan and model, the same on every rank.
#pragma once

#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::runtime {

/// Parameters that exactly `ranks` hold.
struct GradientGroup {
  std::vector<int> ranks;        ///< ascending
  std::vector<int> layers;       ///< indices, ascending; of layer 0 everything but a tied token embedding
  bool token_embedding = false;  ///< the tied token embedding (held by first and last stages) belongs to it
};

/// All groups, in the order in which every rank creates and reduces them: by the first parameter of the group, the
/// tied token embedding before layer 0. Groups of one rank are there too; they have nothing to sum.
std::vector<GradientGroup> gradient_groups(const Plan& plan, const Model& model);

}  // namespace sailor::runtime
