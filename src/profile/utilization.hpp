// Model FLOP utilisation (MFU) of a plan.
#pragma once

#include <optional>

#include "cluster/gpu_catalogue.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// Model FLOP of an iteration (forward, and twice that backward; recomputation does not count) over the peak FLOP of
/// all devices in `time` (PaLM, Chowdhery et al. 2022, appendix B). std::nullopt if a device's rate is not known.
std::optional<double> model_flop_utilization(const Plan& plan, const Model& model, const GpuCatalogue& gpus,
                                             Seconds time);

}  // namespace sailor
