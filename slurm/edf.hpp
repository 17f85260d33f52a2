// Environment definition files (EDF) of CSCS's container engine: which of the host's folders a container sees.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace sailor::slurm {

struct ContainerMounts {
  std::filesystem::path file;                   ///< the EDF
  std::vector<std::filesystem::path> inside{};  ///< paths in the container where the host's are mounted
  std::vector<std::string> unknown{};           ///< mounts with variables that are not set here
};

/// The mounts of an EDF and of those that it is based on. `image` is what srun --environment takes: a path, or the name
/// of a file in the search path (EDF_PATH, ~/.edf). Errors: not_found (of a path), unavailable (of a name: the site may
/// have folders of its own), io, invalid_input.
Result<ContainerMounts> read_edf_mounts(const std::string& image,
                                        const std::map<std::string, std::string>& environment);

/// The paths that no mount contains; empty if some mounts are unknown.
std::vector<std::filesystem::path> not_mounted(const ContainerMounts& mounts,
                                               const std::vector<std::filesystem::path>& paths);

}  // namespace sailor::slurm
