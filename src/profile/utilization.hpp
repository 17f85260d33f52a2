// How much of what the devices of a plan could compute its model needs.
#pragma once

#include <optional>

#include "cluster/gpu_catalogue.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// Model FLOP of an iteration (forward, and twice that backward; recomputation is no work of the model's) over what all
/// devices could do in `time` (PaLM, Chowdhery et al. 2022, appendix B). Nothing when a device's rate is not known.
std::optional<double> model_flop_utilization(const Plan& plan, const Model& model, const GpuCatalogue& gpus,
                                             Seconds time);

}  // namespace sailor
