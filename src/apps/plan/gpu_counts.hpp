// Clusters in a word: `sailor-plan --gpus 16x4:GH200-96` plans for 16 nodes of four GH200, without any file.
#pragma once

#include <string_view>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// Whether a value of --gpus is such a word, rather than the path of a GPU catalogue.
bool are_gpu_counts(std::string_view text);

/// The cluster of "NODESxGPUS:TYPE[@ZONE],...". Errors: usage.
Result<Cluster> cluster_of_gpu_counts(std::string_view text, const GpuCatalogue& gpus);

}  // namespace sailor::apps
