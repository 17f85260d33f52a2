// Stands in for query.cpp in a build without Slurm.
#include "slurm/query.hpp"

namespace sailor::slurm {

bool has_libslurm() { return false; }

Result<ControllerAnswer> query_controller(const std::filesystem::path&) {
  return fail(ErrorCode::unavailable, "this Sailor was built without Slurm",
              "build it with -DSAILOR_SLURM=ON, or use --cluster FILE");
}

}  // namespace sailor::slurm
