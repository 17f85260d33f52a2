// Advice on missing measurements: sailor-profile measures the devices that Sailor computes on, CPUs and NVIDIA GPUs;
// measurements of other devices are imported.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/gpu_catalogue.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// Whether sailor-profile measures devices of this type.
inline bool can_be_measured(const GpuType& type) { return type.backend == "cpu" || type.backend == "cuda"; }

/// Advice for layers of a device of this kind (std::nullopt: not known). `options`: options of sailor-profile layers
/// that would measure them, with a leading blank.
std::string layers_advice(std::optional<DeviceKind> kind, std::string_view options = {});
/// The same of layers in a precision: sailor-profile measures those that sailor-train computes.
std::string layers_advice(Precision precision, std::optional<DeviceKind> kind, std::string_view options = {});
/// The same, with the kind of the named device.
std::string layers_advice(const GpuCatalogue& gpus, std::string_view gpu, std::string_view options = {});

/// The same for links between devices.
std::string links_advice(std::optional<DeviceKind> kind, std::string_view options = {});

}  // namespace sailor
