// The option table of sailor-submit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/inputs.hpp"
#include "apps/options.hpp"
#include "apps/training_program.hpp"

namespace sailor::apps {

struct SubmitOptions : CommonOptions, ClusterOptions, ProgramOptions {
  OptionValue<std::vector<std::string>> plan, command;
  // Training
  OptionValue<std::string> trainer, data;
  OptionValue<std::int64_t> iterations, seed;
  OptionValue<double> learning_rate;
  OptionValue<bool> remote_data;
  OptionValue<int> torch_port;
  // Job
  OptionValue<std::string> account, time, reservation, qos, licenses, comment, mail_user, job_name, run_directory,
      export_;
  OptionValue<std::vector<std::string>> mail_type, sbatch_option;
  OptionValue<int> array_limit;
  // Nodes
  OptionValue<std::string> gpu_type, placer, site, software, image, view, mpi;
  OptionValue<int> devices_per_node, cpus_per_rank, memory_per_cpu, spare_nodes;
  OptionValue<bool> check;
  // Checkpoints and the end of the job
  OptionValue<std::string> checkpoints, when_stopped, elastic;
  OptionValue<int> retries, stop_lead;
  // Actions of this program
  OptionValue<bool> dry_run, test_only, wait;
  OptionValue<std::string> models;
};

CommandLine submit_command_line(SubmitOptions& options);

}  // namespace sailor::apps
