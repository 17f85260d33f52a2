// What GPUs a node has where Slurm's own words do not say it, or say it in another way.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sailor::slurm {

struct GpuRule {
  std::string gpu;                          ///< name in the catalogue
  std::vector<std::string> nodes{};         ///< patterns, in which * stands for anything; empty: all nodes
  std::optional<std::string> gres_type{};   ///< of nodes whose GPUs Slurm calls so; "": that have no type; none: any
  bool where_nothing_else_says_it = false;  ///< --gpu-type; a site file counts more than what Slurm says
};

}  // namespace sailor::slurm
