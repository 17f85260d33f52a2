// Groups, channels and the control plane over MPI. Internal to runtime/mpi.
#pragma once

#include <memory>

#include "core/error.hpp"
#include "runtime/control.hpp"
#include "runtime/mpi/mpi_session.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

struct MpiWorld {
  std::unique_ptr<Control> control;
  std::unique_ptr<Transport> transport;
};

/// Creates the world of all ranks of the job. MPI must be initialised. With `rank` -1 ranks are in MPI's order, else
/// every process states its own rank. Errors (unavailable), the same on all ranks: they do not number 0, 1, 2, ...
Result<MpiWorld> make_mpi_world(const MpiSettings& settings, int rank);

}  // namespace sailor::runtime
