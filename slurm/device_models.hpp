// Which GPUs a node really has, as its driver says: gres.conf may be wrong.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"

namespace sailor::slurm {

/// "NVIDIA GH200 120GB" of each GPU, from `folder`/*/information (in /proc/driver/nvidia/gpus). Empty where there is no
/// such folder; what cannot be read is left out.
std::vector<std::string> device_models(const std::filesystem::path& folder);

/// Errors (invalid_input): the catalogue knows the models, and none is the plan's `gpu`.
Result<void> check_models(const std::vector<std::string>& models, const std::string& gpu,
                          const GpuCatalogue& catalogue);

}  // namespace sailor::slurm
