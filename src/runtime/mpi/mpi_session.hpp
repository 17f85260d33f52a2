// MPI from start to end of a program. Only .cpp files of this folder include mpi.h.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

struct MpiSettings {
  std::string program = "sailor-train";  ///< for messages
  Seconds timeout{600.0};                ///< of every wait for another rank
  bool idle_waits = false;               ///< all waits yield the core to others, as Control::idle_barrier()
};

/// One per process. Its destructor finalizes MPI, so all ranks must get there.
class MpiSession {
 public:
  /// Initialises MPI. The ranks are MPI's, or those that sailor-launch or the SPANK plugin assigned (SAILOR_RANK).
  /// Errors (unavailable): this process is alone although Slurm started several tasks, which happens when srun and the
  /// MPI library do not work together; SAILOR_RANK does not number the ranks. `environment` is the process environment.
  static Result<std::unique_ptr<MpiSession>> start(const MpiSettings& settings,
                                                   const std::map<std::string, std::string>& environment);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  [[nodiscard]] World world() { return {*control_, *transport_}; }
  /// "Open MPI 4.1.4".
  [[nodiscard]] static std::string version();

 private:
  MpiSession() = default;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace sailor::runtime
