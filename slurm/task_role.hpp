// The role of a job step's task in a plan: its rank, GPU and cores. Derived without communication, from the task's
// environment and Slurm's configuration files on its node, so that every task comes to the same result; shared by the
// SPANK plugin (inside slurmstepd) and sailor-launch. No libslurm here.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor::slurm {

/// The value of a variable of the task's environment; std::nullopt if it is not set.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;
/// A lookup in `environment`, which must outlive it.
Lookup lookup_in(const std::map<std::string, std::string>& environment);

/// A node of the step. What is not known is empty.
struct StepNode {
  std::string name;
  int tasks = 0;
  int component = 0;        ///< of a heterogeneous job; 0 in others
  std::string gres_type{};  ///< "gh200", as slurm.conf has it; "-": it has no GPU
  int gpus = 0;             ///< as slurm.conf has it; 0: not known
  std::string leaf_switch{};
};

/// A job step as one of its tasks sees it.
struct Step {
  std::vector<StepNode> nodes;  ///< components in order, in each as Slurm lists them
  int components = 1;
  std::size_t own_node = 0;  ///< node of this task: an index into nodes
  int local_task = 0;        ///< index among the tasks of its node
  [[nodiscard]] int tasks() const;
};

/// Step from SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, SLURMD_NODENAME, SLURM_LOCALID, SLURM_HET_SIZE and
/// SLURM_JOB_NODELIST_HET_GROUP_n. Errors: unavailable (not a task of a step), invalid_input (variables that do not
/// agree).
Result<Step> read_step(const Lookup& environment);

/// Path of slurm.conf: `named`, the value of SLURM_CONF, unless that is empty; else the usual location; std::nullopt if
/// there is none.
std::optional<std::filesystem::path> configuration_file(const std::filesystem::path& named);

/// Fills in gres_type, gpus and leaf_switch from slurm.conf and the topology.yaml, else topology.conf, beside it (files
/// that they include are read too). Errors: those of reading these files; what a file does not say stays empty.
Result<void> add_node_facts(Step& step, const std::filesystem::path& slurm_conf);
/// The same from the slurm.conf that SLURM_CONF names, or the usual one; nothing where there is none.
Result<void> add_node_facts(Step& step, const Lookup& environment);

/// What add_node_facts() finds for the nodes of a job (SLURM_JOB_NODELIST, and those of its components), as the text of
/// a file: for tasks in a container, which sees no slurm.conf. To be called by the job's script, on the host. If
/// they cannot be read there, the file holds the reason. Errors: unavailable (no job), invalid_input (a list of nodes
/// that cannot be read).
Result<std::string> node_facts_of_job(const Lookup& environment);
/// Fills in the facts of such a file. Errors: not_found, io, invalid_input; unavailable (what could not be read on the
/// host).
Result<void> read_node_facts(Step& step, const std::filesystem::path& file);

/// The place of a task in a plan.
struct TaskRole {
  RankRole role;
  int ranks = 0;       ///< number of ranks of the plan
  int local_rank = 0;  ///< index among the node's ranks, in the order of the plan; also that of its device
  int local_ranks = 0;
  std::string gpu;           ///< the plan's name of its device
  bool on_gpu = true;        ///< false: on cores
  std::string first_node{};  ///< node of the plan's rank 0
};

/// Errors (invalid_input, unavailable), each naming the nodes and what to do: not as many tasks as ranks (with the
/// --nodes and --ntasks-per-node that the plan needs), nodes of other GPU types than the plan's, too few nodes,
/// tensor-parallel groups that do not fit into the tasks of a node.
/// `gpus` maps GRES types to GPUs; null: types are not compared.
Result<TaskRole> find_role(const Plan& plan, const Step& step, const GpuCatalogue* gpus);

/// Variables for a task's environment: SAILOR_STEP (which task of which step it is for), SAILOR_PLAN,
/// SAILOR_PLAN_FINGERPRINT, SAILOR_RANK, SAILOR_RANKS, SAILOR_PIPELINE, SAILOR_STAGE, SAILOR_TENSOR_PARALLEL_INDEX,
/// SAILOR_LOCAL_RANK; for a GPU plan CUDA_VISIBLE_DEVICES, if the task sees more GPUs than its own. Errors:
/// unavailable (fewer GPUs than ranks on the node).
Result<std::vector<std::pair<std::string, std::string>>> role_environment(const TaskRole& task, const Plan& plan,
                                                                          const std::filesystem::path& plan_path,
                                                                          const Lookup& environment);

/// How the ranks of a program of PyTorch are numbered, and where they meet.
struct TorchRanks {
  int port = 0;           ///< TCP port on the node of rank 0
  bool by_stage = false;  ///< by stage, then pipeline; else as the plan does, by pipeline, then stage
};

/// Variables by which PyTorch's env:// finds the other ranks, as torchrun sets them: RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, GROUP_RANK (the node's index in `step`), MASTER_ADDR, MASTER_PORT; and TORCHELASTIC_RUN_ID,
/// without which Lightning would take SLURM_PROCID for the rank. LOCAL_RANK is the index of the task's device among
/// those that it sees: 0 where it sees its own alone, by `role`, role_environment(), or by its own environment.
std::vector<std::pair<std::string, std::string>> torch_environment(
    const TaskRole& task, const Plan& plan, const Step& step, const TorchRanks& ranks,
    const std::vector<std::pair<std::string, std::string>>& role, const Lookup& environment);

/// "12.0.3": job, step and task, as SAILOR_STEP names them; empty outside of a step.
std::string step_name(const Lookup& environment);

/// The share of `allowed` cores that belongs to this task, all of equal size; all of `allowed` when Slurm has already
/// given each task its own (it holds no more than SLURM_CPUS_PER_TASK), or has been told not to bind
/// (SLURM_CPU_BIND=none), or there are fewer cores than ranks.
std::vector<int> cores_of_task(const TaskRole& task, const std::vector<int>& allowed, const Lookup& environment);

/// "rank 5 of 8: pipeline 1, stage 0, tensor-parallel index 1, GH200-96 1 of gh2"
std::string describe(const TaskRole& task, const Step& step);

}  // namespace sailor::slurm
