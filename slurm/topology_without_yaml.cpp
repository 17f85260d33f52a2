// Replaces topology_yaml.cpp in a build without libyaml.
#include "slurm/topology.hpp"

namespace sailor::slurm {

Result<Topology> parse_topology_yaml(std::string_view, std::string_view) {
  return fail(ErrorCode::unavailable, "topology.yaml cannot be read: this Sailor was built without libyaml",
              "build it with -DSAILOR_YAML=ON");
}

}  // namespace sailor::slurm
