// The world communicator over MPI. Internal to runtime/mpi; programs start with MpiSession.
#pragma once

#include <memory>

#include "runtime/communicator.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor::runtime {

/// MPI must be initialised.
std::unique_ptr<Communicator> make_mpi_world(const MpiSettings& settings);

}  // namespace sailor::runtime
