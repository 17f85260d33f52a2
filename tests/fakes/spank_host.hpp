// A program that has loaded the SPANK plugin: srun, sbatch, slurmd or slurmstepd as Slurm 22.05 has them. The plugin's
// hooks are looked up as Slurm does it, in this program or in the shared object that the variable SAILOR_SPANK_MODULE
// names; its calls into Slurm end here, and are checked against spank.h's rules.
#pragma once

extern "C" {
#include <slurm/spank.h>
}
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace sailor::fakes {

using Variables = std::map<std::string, std::string>;

/// What a program did before it ended.
struct Outcome {
  bool ended = false;                 ///< in a hook, by _exit()
  int signal = 0;                     ///< that ended it, else 0
  int status = 0;                     ///< of _exit(); else what the body returned
  std::vector<std::string> log{};     ///< "error: sailor: ..."
  std::vector<std::string> misuse{};  ///< calls that Slurm does not allow where they were made
  Variables own{};                    ///< its own environment
  Variables task{};                   ///< the task's
  Variables job_control{};
  std::vector<std::string> options{};  ///< registered, "name=ARGUMENT usage"
  std::vector<int> cores{};            ///< it may run on at its end
  /// Of the log, one line each.
  [[nodiscard]] std::string said() const;
};

class SpankHost {
 public:
  explicit SpankHost(spank_context_t program) : context(program) {}

  // How it is, set by a test.
  spank_context_t context;
  std::vector<std::string> arguments{};  ///< of plugstack.conf
  Variables own{};                       ///< set in its environment; SAILOR_* and SLURM_* of the test's are not
  Variables task{};
  std::uint32_t step = 0;
  uid_t user = ::geteuid();         ///< of the job
  std::set<std::string> failing{};  ///< functions of spank.h that report an error: "spank_setenv"

  // The hooks; 0 for those that the plugin has not.
  int hook(const std::string& name);
  int init() { return hook("slurm_spank_init"); }
  int init_post_opt() { return hook("slurm_spank_init_post_opt"); }
  int task_init() { return hook("slurm_spank_task_init"); }
  /// --sailor-plan=TEXT. What the callback returns.
  int option(const std::string& text);

  /// Runs `body` with this host in a process of its own.
  Outcome run(const std::function<int(SpankHost&)>& body);

  /// For the functions of spank.h.
  struct Record;
  Record* record = nullptr;
};

/// A symbol of the plugin; null if it has none of this name.
void* plugin_symbol(const std::string& name);

/// All hooks that spank.h declares.
inline const std::vector<std::string> all_hooks{"slurm_spank_init",          "slurm_spank_job_prolog",
                                                "slurm_spank_init_post_opt", "slurm_spank_local_user_init",
                                                "slurm_spank_user_init",     "slurm_spank_task_init_privileged",
                                                "slurm_spank_task_init",     "slurm_spank_task_post_fork",
                                                "slurm_spank_task_exit",     "slurm_spank_job_epilog",
                                                "slurm_spank_slurmd_exit",   "slurm_spank_exit"};

}  // namespace sailor::fakes
