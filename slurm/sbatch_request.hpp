// Resources that a batch script requests from Slurm, and the program that it runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"

namespace sailor::slurm {

/// Why a job requests this amount of host memory.
enum class MemoryReason {
  predicted,    ///< the predicted peak of a rank, and a margin
  all_there,    ///< the prediction is more than the nodes have
  given,        ///< the user said it
  site,         ///< the site file says it
  whole_nodes,  ///< there is no prediction, and the job has whole nodes
};

/// The nodes for one kind of device of a plan: a GPU type in a zone, see kinds_of().
struct NodeRequest {
  std::string partition;                     ///< or several, "a,b", of which Slurm takes one; empty: its default
  DeviceKind device_kind = DeviceKind::gpu;  ///< of the kind's device type
  std::string gres_type;                     ///< "gh200", where a partition holds several GPU types; empty: any
  int devices_per_node = 0;                  ///< GPUs, or cores for a CPU plan; must be given
  int cpus_per_rank = 1;
  Bytes copies_of_rank{};  ///< host memory of a rank for copies of its and its peers' state; only if elastic
  // Host memory: at most one of these is set; none: the partition's default
  std::optional<Bytes> memory_per_cpu;
  std::optional<Bytes> memory_per_rank{};
  std::optional<Bytes> memory_per_node{};  ///< 0: all that the node has
  MemoryReason memory_reason = MemoryReason::predicted;
  std::vector<int> memory_nodes;  ///< NUMA nodes that ranks allocate from; empty: any
};

/// Who assigns the plan's ranks to tasks.
enum class Placer {
  slurm,     ///< nobody: srun numbers the tasks in the order of the plan
  launcher,  ///< sailor-launch, started by srun in front of the program
  plugin,    ///< the SPANK plugin, by --sailor-plan
};

/// Fate of a job that was stopped before its end, by the time limit, preemption or a failed node.
enum class Continuation {
  none,
  requeue,   ///< goes back into the queue under its own id
  resubmit,  ///< first submits its script again, to run when this job has ended; job_name must be the training's own
};

/// A task of a job array, which runs a plan.
struct ArrayTask {
  std::filesystem::path directory;  ///< absolute; the task runs there, and it holds the task's plan.toml
  std::string plan;                 ///< one-line description: describe()
};

/// Min and max nodes of an elastic training: its job takes what is available, companion jobs add the rest one by one.
struct ElasticNodes {
  int least = 1;
  int most = 1;
  std::filesystem::path controller = "sailor-controller";
  std::vector<std::string> controller_arguments{};  ///< "--profile=/scratch/anna/store.h5"
};

/// A program of another training framework, which runs in place of sailor-train: by sailor-launch, which gives its
/// ranks their places and the variables of PyTorch.
struct FrameworkProgram {
  std::string framework;                  ///< "Megatron-Core"
  std::vector<std::string> command;       ///< program and arguments
  std::filesystem::path directory;        ///< absolute; the ranks run there
  std::string title{};                    ///< what `settings` are, for people
  std::string settings{};                 ///< the plan for the framework: commands of bash, or the contents of `file`
  std::string array{};                    ///< array that the commands set, whose words follow `command`; empty: none
  std::string file{};                     ///< name of a file in the run directory; empty: `settings` are commands
  std::vector<std::string> last_words{};  ///< further arguments, behind all others
  std::optional<int> port{};              ///< TCP port on which rank 0 listens; none: by the job's id
  bool ranks_by_stage = false;            ///< it numbers ranks by stage, then pipeline
};

struct SbatchRequest {
  // What Slurm is asked for
  std::string job_name = "sailor";
  std::vector<NodeRequest> nodes;          ///< in the order of kinds_of() of the plan
  std::string account;                     ///< empty: the user's default
  std::string reservation;                 ///< empty: none
  std::string qos{};                       ///< empty: Slurm's choice
  std::string licenses{};                  ///< "matlab:2"; empty: none
  std::string comment{};                   ///< for people who look at jobs; empty: none
  std::string mail_type{};                 ///< "END,FAIL"; empty: no mail
  std::string mail_user{};                 ///< empty: the user who submits
  int array_limit = 0;                     ///< max tasks of an array that run at once; 0: all
  std::string switches{};                  ///< max leaf switches and max wait: "1@5:00"; empty: any
  int segment = 0;                         ///< nodes per segment of a block topology; 0: not set
  std::optional<Seconds> time_limit;       ///< none: the partition's default
  bool exclusive = false;                  ///< whole nodes
  std::string constraint;                  ///< features of the nodes; empty: any
  std::vector<std::string> extra_options;  ///< "--qos=high": further #SBATCH lines

  // What is run
  Placer placer = Placer::slurm;
  bool one_gpu_per_task = false;        ///< Slurm gives each rank its GPU; otherwise the placer does, if there is one
  std::filesystem::path run_directory;  ///< absolute; the job runs there
  /// Tasks of a job array, whose plans have the same layout; plan_path, checkpoints and run_file are then relative to
  /// each task's directory. Empty: no array.
  std::vector<ArrayTask> array;
  std::filesystem::path plan_path;  ///< absolute
  std::filesystem::path log_path;  ///< absolute, Slurm's patterns such as %j allowed; empty: RUN_DIRECTORY/slurm-%j.out
  std::filesystem::path program = "sailor-train";
  std::optional<FrameworkProgram> framework{};       ///< what runs instead of `program`, without data and checkpoints
  bool runs_sailor_train = true;                     ///< the meaning of `program`'s exit statuses is known
  std::filesystem::path launcher = "sailor-launch";  ///< for Placer::launcher
  std::filesystem::path models_folder;               ///< empty: the program's default
  std::filesystem::path gpus_file;                   ///< for the launcher; empty: its default
  std::string data;                                  ///< prefix of the data files
  std::filesystem::path run_file;                    ///< measurements; empty: RUN_DIRECTORY/run-JOBID.h5, one per job
  std::filesystem::path checkpoints;                 ///< folder; empty: none are kept
  std::filesystem::path script_path;  ///< absolute: where the script will be; empty: RUN_DIRECTORY/job.sbatch
  Continuation continuation = Continuation::none;  ///< all but none need checkpoints
  int retries = 3;                        ///< of starts in a row that failed without a new checkpoint, if continued
  std::optional<Seconds> stop_lead{};     ///< from the signal to the time limit; none: stop_lead_of()
  std::string stop_lead_reason{};         ///< "a checkpoint takes about 40 s"; empty: none
  bool check_nodes = false;               ///< run `checker` on the nodes before the program
  int spare_nodes = 0;                    ///< of each component, to replace unfit nodes; needs check_nodes
  std::optional<ElasticNodes> elastic{};  ///< for a plan with one kind of nodes; needs Continuation::requeue
  std::filesystem::path checker = "sailor-check";
  std::vector<std::string> checker_arguments{};  ///< "--site=alps-clariden"
  std::int64_t iterations = 0;
  std::optional<double> learning_rate;       ///< none: the program's default
  std::optional<std::int64_t> seed;          ///< none: the program's default
  std::vector<std::string> extra_arguments;  ///< "--weight-decay=0": further arguments of the program
  std::string mpi = "pmix";                  ///< srun --mpi
  bool in_image = false;                     ///< srun starts it in a container or uenv: tasks may see no slurm.conf
  bool no_core_files = false;
  std::vector<std::string> srun_options;  ///< "--uenv=prgenv-gnu/24.11:v1": not allowed on #SBATCH lines
  std::vector<std::pair<std::string, std::string>> environment;  ///< exported before the program starts
};

/// Variables of an environment with which sbatch would override the script, or the request by which its nodes were
/// counted: SBATCH_PARTITION, SBATCH_TIMELIMIT, ... Variables for what the request leaves open (SBATCH_ACCOUNT,
/// SBATCH_QOS, SBATCH_CONSTRAINT, memory) are the user's choice, and not included.
std::vector<std::string> overriding_variables(const SbatchRequest& request,
                                              const std::map<std::string, std::string>& environment);

/// The time from the signal to the limit: as the request says, else 60 s, or 180 s where there are checkpoints to be
/// written, and at most a quarter of the time limit.
Seconds stop_lead_of(const SbatchRequest& request);

/// Checks that a script can express the request. Errors: invalid_input (a name, path, number or option that is
/// impossible).
Result<void> check_request(const Plan& plan, const SbatchRequest& request);

}  // namespace sailor::slurm
