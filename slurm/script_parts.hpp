// Parts that all job scripts share, below their #SBATCH lines.
#pragma once

#include <string>
#include <string_view>

#include "slurm/job_layout.hpp"
#include "slurm/sbatch_request.hpp"
#include "slurm/script_text.hpp"

namespace sailor::slurm {

inline constexpr std::string_view cpus_reason = "srun of Slurm 22.05 and 23.02 does not take it from the job";
inline constexpr std::string_view node_facts_file = "$PWD/nodes-$SLURM_JOB_ID.toml";

/// "1 rank", "2 ranks".
std::string count(int number, std::string_view noun);
/// "--cpus-per-task=72"
std::string cpus_word(const NodeRequest& nodes);

/// Commands that set limits and environment variables.
void write_environment(Script& script, const SbatchRequest& request);
/// Commands that print what runs and where: the job, its nodes, versions.
void write_record(Script& script, const SbatchRequest& request, const JobLayout& layout);
/// Commands that write the facts about nodes that tasks in a container cannot get from Slurm.
void write_node_facts(Script& script, const SbatchRequest& request);
/// Arguments of srun that hold for all ranks, one per line.
void write_srun(Script& script, const SbatchRequest& request);
/// The plan as the framework of the request takes it; nothing where sailor-train runs.
void write_framework_settings(Script& script, const SbatchRequest& request);
/// The array `train`: the program with its arguments.
void write_train(Script& script, const SbatchRequest& request);

}  // namespace sailor::slurm
