// What the scripts of all kinds of jobs have in common, below their #SBATCH lines.
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

/// Limits and variables.
void write_environment(Script& script, const SbatchRequest& request);
/// What ran and where.
void write_record(Script& script, const SbatchRequest& request, const JobLayout& layout);
/// What the tasks cannot find out in a container.
void write_node_facts(Script& script, const SbatchRequest& request);
/// What srun is told for all ranks, one word per line.
void write_srun(Script& script, const SbatchRequest& request);
/// The array `train`: the program with its arguments.
void write_train(Script& script, const SbatchRequest& request);

}  // namespace sailor::slurm
