// The world communicator over MPI. Internal to runtime/mpi; programs start with MpiSession.
#pragma once

#include <memory>

#include "runtime/communicator.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor::runtime {

/// Collective; MPI must be initialised. `rank` is what this process is to be, negative: no matter. Errors
/// (unavailable): only some ranks have a number, or the numbers are not 0, 1, 2, ...
Result<std::unique_ptr<Communicator>> make_mpi_world(const MpiSettings& settings, int rank);

}  // namespace sailor::runtime
