// Rules for the GPU types of nodes, where Slurm does not give them or names them differently.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sailor::slurm {

struct GpuRule {
  std::string gpu;                          ///< name in the catalogue
  std::vector<std::string> nodes{};         ///< patterns, in which * stands for anything; empty: all nodes
  std::optional<std::string> gres_type{};   ///< GRES type of the GPUs in Slurm; "": no type; std::nullopt: any
  bool where_nothing_else_says_it = false;  ///< true for --gpu-type; a site file overrides what Slurm says
};

}  // namespace sailor::slurm
