// Replaces query.cpp in a build without Slurm.
#include "slurm/query.hpp"

namespace sailor::slurm {

namespace {

tl::unexpected<Error> built_without() {
  return fail(ErrorCode::unavailable, "this Sailor was built without Slurm",
              "build it with -DSAILOR_SLURM=ON, or use --cluster FILE");
}

}  // namespace

bool has_libslurm() { return false; }

Result<ControllerAnswer> query_controller(const std::filesystem::path&, const std::string&) { return built_without(); }

Result<ExpectedStart> query_start(const std::filesystem::path&, const StartQuestion&) { return built_without(); }

}  // namespace sailor::slurm
