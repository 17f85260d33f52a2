// Exit statuses of sailor-train that job scripts act on, beside those of exit_status() (core/error.hpp). The first two:
// a signal ended it after an iteration, before the last one.
#pragma once

namespace sailor {

constexpr int stopped_with_checkpoint = 75;    ///< EX_TEMPFAIL: the same command goes on from there
constexpr int stopped_without_checkpoint = 6;  ///< the progress is lost
constexpr int mpi_did_not_start = 69;          ///< EX_UNAVAILABLE: MPI crashed in MPI_Init; another start may succeed

}  // namespace sailor
