// In place of topology_yaml.cpp where libyaml is not there.
#include "slurm/topology.hpp"

namespace sailor::slurm {

Result<Topology> parse_topology_yaml(std::string_view, std::string_view) {
  return fail(ErrorCode::unavailable, "topology.yaml cannot be read: this Sailor was built without libyaml",
              "build it with -DSAILOR_YAML=ON");
}

}  // namespace sailor::slurm
