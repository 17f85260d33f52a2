// The kind of device on which a plan is trained.
#pragma once

#include "apps/devices.hpp"
#include "apps/train/train_options.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

Option device_option();  ///< --device

struct DeviceChoice {
  bool on_gpus = false;
  bool is_the_plans = true;  ///< false: the user chose another kind, whose times are not those of the plan
};

/// Chooses the devices by --device and the plan. A plan for GPUs must not train on CPUs unnoticed: its times would be
/// taken for those of the GPUs. Errors: unavailable (devices that sailor-train cannot compute on, or not in that
/// precision), not_found (a device that the catalogue does not know).
Result<DeviceChoice> choose_devices(const TrainOptions& options, const Plan& plan, const GpuCatalogue& catalogue);

/// Collective: warns on rank 0 of a GPU whose type is not that of the plan.
void warn_of_other_gpus(const RankDevice& own, const Plan& plan, const GpuCatalogue& catalogue,
                        runtime::Control& control);

}  // namespace sailor::apps
