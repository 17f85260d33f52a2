// Clusters described by one word: `sailor-plan --gpus 16x4:GH200-96` plans for 16 nodes with four GH200 each, without
// any file.
#pragma once

#include <string_view>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"

namespace sailor {

/// Whether a value of --gpus describes a cluster, or is meant to, rather than being the path of a GPU catalogue: the
/// path of a file that is there, has a folder or ends in ".toml".
bool are_gpu_counts(std::string_view text);

/// The cluster of "NODESxGPUS:TYPE[@ZONE],...[,network:GB/s]". Links between nodes that no profile has are as fast as
/// `network` says, else 25 GB/s. Errors: usage.
Result<Cluster> cluster_of_gpu_counts(std::string_view text, const GpuCatalogue& gpus);

}  // namespace sailor
