// Finds the GPU of the catalogue from the names that Slurm, its nodes' features and drivers use.
//
// Slurm matches a configured GRES type to a device if it is a part of the name that the driver gives ("a100" of
// "nvidia_a100-sxm4-40gb"). Here the parts are whole words: "h200" is no part of "nvidia_gh200_120gb".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/units.hpp"

namespace sailor {

struct GpuMatch {
  const GpuType* type = nullptr;           ///< null: none, or ambiguous
  std::vector<const GpuType*> candidates;  ///< if ambiguous: those it may be; in the catalogue's order
};

/// Matches the type of a node's GRES (empty: "gpu:4" has none) and the node's features ("a100", "GPU_SKU:H100_SXM5",
/// "80gb"). A type that is a GPU's slurm_gres means that GPU, unless the features single out another one that it may
/// mean. Types of GPU instances (MIG, "a100_1g.5gb") match none.
GpuMatch match_gres(const GpuCatalogue& catalogue, std::string_view gres_type,
                    std::span<const std::string> features = {});

/// Whether GPUs of this GRES type can be the `gpu` of the catalogue: false only if the catalogue knows the type as that
/// of other GPUs.
bool may_be(const GpuCatalogue& catalogue, std::string_view gres_type, std::string_view gpu);

/// Matches the name that the driver gives ("NVIDIA A100-SXM4-40GB") and the memory that it reports (std::nullopt: not
/// known, not compared). Null: none, or ambiguous.
const GpuType* match_device(const GpuCatalogue& catalogue, std::string_view device_name, std::optional<Bytes> memory);

}  // namespace sailor
