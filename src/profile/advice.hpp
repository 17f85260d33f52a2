// What a user can do about measurements that are not there: sailor-profile measures what Sailor computes on, CPUs and
// NVIDIA's GPUs; what is known of other devices is imported.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/gpu_catalogue.hpp"

namespace sailor {

/// Whether sailor-profile measures devices of this type.
inline bool can_be_measured(const GpuType& type) { return type.backend == "cpu" || type.backend == "cuda"; }

/// For layers of a device of this kind (none: not known); `options` are those of sailor-profile layers that would
/// measure them, with a blank before.
std::string layers_advice(std::optional<DeviceKind> kind, std::string_view options = {});
/// The kind of the device of this name.
std::string layers_advice(const GpuCatalogue& gpus, std::string_view gpu, std::string_view options = {});

/// The same for links between devices.
std::string links_advice(std::optional<DeviceKind> kind, std::string_view options = {});

}  // namespace sailor
