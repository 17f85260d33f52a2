// On which kind of device a plan is trained.
#pragma once

#include "apps/devices.hpp"
#include "apps/options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

Option device_option();  ///< --device

struct DeviceChoice {
  bool on_gpus = false;
  bool is_the_plans = true;  ///< false: the user wants another kind, whose times say nothing of the plan's
};

/// By --device and the plan. A plan for GPUs must not train on CPUs unnoticed: its times would be taken for the GPUs'.
/// Errors: unavailable (what sailor-train cannot compute on, or not in that precision), not_found (a device that the
/// catalogue does not know).
Result<DeviceChoice> choose_devices(const Options& options, const Plan& plan, const GpuCatalogue& catalogue);

/// Collective: warns on rank 0 of a GPU that is of another type than the plan's.
void warn_of_other_gpus(const RankDevice& own, const Plan& plan, const GpuCatalogue& catalogue,
                        runtime::Control& control);

}  // namespace sailor::apps
