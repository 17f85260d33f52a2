#include "runtime/mpi/mpi_session.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <array>

#include "core/parse.hpp"
#include "runtime/mpi/mpi_start_guard.hpp"
#include "runtime/mpi/mpi_transport.hpp"

namespace sailor::runtime {

namespace {

/// Number of tasks that Slurm started, if Slurm started this process itself. (Under mpirun inside an allocation
/// SLURM_NTASKS is the allocation's, and mpirun's own -n counts.)
std::string slurm_tasks(const std::map<std::string, std::string>& environment) {
  if (environment.contains("OMPI_COMM_WORLD_SIZE") || environment.contains("HYDI_CONTROL_FD")) return {};
  const auto tasks = environment.find("SLURM_NTASKS");
  return tasks == environment.end() ? std::string() : tasks->second;
}

}  // namespace

Result<std::unique_ptr<MpiSession>> MpiSession::start(const MpiSettings& settings,
                                                      const std::map<std::string, std::string>& environment) {
  MpiStartGuard guard(settings.program, version());
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
    return fail(ErrorCode::unavailable, "MPI_Init_thread failed", "start with srun --mpi=pmix or mpirun");
  guard.initialized();
  std::unique_ptr<MpiSession> session(new MpiSession);
  const std::string tasks = slurm_tasks(environment);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (!tasks.empty() && tasks != std::to_string(size)) {
    // Each singleton would report it: one of them is enough.
    const auto process = environment.find("SLURM_PROCID");
    if (size == 1 && process != environment.end() && process->second != "0")
      return fail(reported_elsewhere(ErrorCode::unavailable));
    return fail(
        ErrorCode::unavailable,
        fmt::format("Slurm started {} tasks (SLURM_NTASKS) but MPI sees {} rank{}", tasks, size, size == 1 ? "" : "s"),
        "start with srun --mpi=pmix (srun --mpi=list shows what is there), or use mpirun");
  }
  const auto placed = environment.find("SAILOR_RANK");
  auto world = make_mpi_world(settings, placed == environment.end() ? -1 : parse_count(placed->second).value_or(-1));
  if (!world) {
    // The error is the same on all ranks: one of them reports it.
    int process = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    return process == 0 ? fail(world.error()) : fail(reported_elsewhere(world.error().code));
  }
  session->control_ = std::move(world->control);
  session->transport_ = std::move(world->transport);
  return session;
}

MpiSession::~MpiSession() {
  transport_.reset();
  control_.reset();
  MPI_Finalize();
}

std::string MpiSession::version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  // "Open MPI v4.1.4, package: ..." or several lines
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace sailor::runtime
