// Models of a node's GPUs according to its driver: gres.conf may be wrong.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"

namespace sailor::slurm {

/// Model of each GPU ("NVIDIA GH200 120GB"), from `folder`/*/information (in /proc/driver/nvidia/gpus). Empty if there
/// is no such folder; unreadable entries are left out.
std::vector<std::string> device_models(const std::filesystem::path& folder);

/// Errors (invalid_input): the catalogue knows the models, and none is the plan's `gpu`.
Result<void> check_models(const std::vector<std::string>& models, const std::string& gpu,
                          const GpuCatalogue& catalogue);

}  // namespace sailor::slurm
