#include "apps/submit/submit_options.hpp"

#include "apps/inputs.hpp"
#include "apps/programs.hpp"
#include "apps/submit/trainer.hpp"
#include "apps/training_program.hpp"

namespace sailor::apps {

CommandLine submit_command_line(SubmitOptions& options) {
  Option partition = shared::partition();
  partition.help = "Slurm partition [default: the one the plan was made for, else Slurm's default]";
  Option cluster = shared::cluster_file();
  cluster.help = "take the nodes' number of devices from this file (cluster.toml) instead of asking Slurm";
  return {
      .program = "sailor-submit",
      .purpose = purpose_of("sailor-submit"),
      .positionals =
          {positional(options.plan, {.name = "PLAN",
                                     .help = "the plan (plan.toml), written by sailor-plan; of several a job array, "
                                             "one for each number of nodes that they need"}),
           positional(
               options.command,
               {.name = "COMMAND",
                .help = "with --trainer, the framework's program and its arguments, which start in the present folder",
                .required = false,
                .behind_dashes = true})},
      .options =
          {option(options.trainer, trainer_option()),
           option(options.data, {.name = "data",
                                 .value_name = "PREFIX",
                                 .help = "what to train on: path prefix of the files that sailor-data wrote"}),
           option(options.remote_data,
                  {.name = "remote-data",
                   .help = "do not look for the data (or the script of COMMAND) here: only the nodes see it"}),
           option(options.iterations,
                  {.name = "iterations", .value_name = "N", .help = "optimizer steps to run", .minimum = 1}),
           option(options.partition, partition),
           option(options.account, shared::account()),
           option(options.time, shared::time_limit()),
           option(options.reservation, shared::reservation()),
           option(options.qos,
                  {.name = "qos", .value_name = "NAME", .help = "quality of service of the job [default: Slurm's]"}),
           option(options.licenses, shared::licenses()),
           option(options.comment, {.name = "comment",
                                    .value_name = "TEXT",
                                    .help = "what squeue and sacct show of the job [default: the plan's fingerprint]"}),
           option(options.mail_type,
                  {.name = "mail-type",
                   .value_name = "EVENT",
                   .help = "events that Slurm writes a mail about, as sbatch takes them: END,FAIL,TIME_LIMIT_80"}),
           option(options.mail_user,
                  {.name = "mail-user", .value_name = "ADDRESS", .help = "recipient of these mails [default: you]"}),
           option(options.array_limit, {.name = "array-limit",
                                        .value_name = "N",
                                        .help = "plans of a job array that run at once, at most [default: all]",
                                        .minimum = 1,
                                        .maximum = 1 << 20}),
           option(options.job_name, {.name = "job-name",
                                     .letter = 'J',
                                     .value_name = "NAME",
                                     .help = "name of the job [default: sailor-MODEL]"}),
           option(options.run_directory,
                  {.name = "run-directory",
                   .value_name = "DIR",
                   .help = "where the job runs, with its plan, script, log and run file [default: run-PLAN, for "
                           "plan.toml run-plan]; a job array has a folder for each plan in it [default: run-array]"}),
           option(options.dry_run, {.name = "dry-run", .help = "print the script; write and submit nothing"}),
           option(
               options.test_only,
               {.name = "test-only", .help = "ask Slurm when and where the job would start; write and submit nothing"}),
           option(options.export_, {.name = "export",
                                    .value_name = "FILE",
                                    .help = "write the script here and the plan into the run directory; submit nothing",
                                    .writes = true}),
           option(
               options.wait,
               {.name = "wait",
                .help = "wait for the end of the job and fail if it failed; interrupting this leaves the job alone"}),
           option(options.devices_per_node,
                  {.name = "devices-per-node",
                   .value_name = "N",
                   .help = "ranks that a node may take [default: its GPUs, or cores for a CPU plan, as Slurm says]",
                   .minimum = 1,
                   .maximum = 4096}),
           option(options.cpus_per_rank, {.name = "cpus-per-rank",
                                          .value_name = "N",
                                          .help = "CPUs for each rank [default: a GPU's share of the node's, or 1]",
                                          .minimum = 1,
                                          .maximum = 4096}),
           option(options.memory_per_cpu,
                  {.name = "memory-per-cpu",
                   .value_name = "MIB",
                   .help = "host memory per CPU, MiB [default: CPU plans: 1.2 times the predicted memory and 256 more; "
                           "GPU plans: the site file's memory of a node, else the devices' memory and 4 GiB for each "
                           "rank, else all of whole nodes; if none is known, the partition's default]",
                   .minimum = 1,
                   .maximum = 1 << 30}),
           option(options.gpu_type,
                  {.name = "gpu-type",
                   .value_name = "TYPE",
                   .help = "GRES type to ask for [default: the plan's, where a partition holds several]; where GPUs "
                           "have no type, what they are: a name of the GPU catalogue [default: the plan's]"}),
           option(options.placer,
                  {.name = "placer",
                   .value_name = "WHO",
                   .help = "who gives ranks their places in the plan: sailor-launch, the SPANK plugin, Slurm's own "
                           "order of tasks; auto: the plugin where it is installed, else sailor-launch",
                   .default_value = "auto",
                   .choices = {"auto", "launcher", "plugin", "slurm"}}),
           option(options.checkpoints, {.name = "checkpoints",
                                        .value_name = "FOLDER",
                                        .help = "keep checkpoints here, and go on from the newest one that is there; "
                                                "of a job array, in each plan's folder"}),
           option(options.when_stopped, {.name = "when-stopped",
                                         .value_name = "WHAT",
                                         .help = "what a job does that the time limit or a preemption stopped, with a "
                                                 "checkpoint: end, go back into the queue, or submit its script again",
                                         .default_value = "end",
                                         .choices = {"end", "requeue", "resubmit"}}),
           option(options.elastic,
                  {.name = "elastic",
                   .value_name = "MIN-MAX",
                   .help = "elastic training on MIN to MAX nodes: go on when nodes are lost, grow when others become "
                           "free. Slurm starts a job on free nodes; companion jobs of one node each join it when "
                           "they start; needs --checkpoints, and implies --when-stopped requeue"}),
           option(
               options.retries,
               {.name = "retries",
                .value_name = "N",
                .help = "with --when-stopped requeue or resubmit, restart after a failure too, without the node whose "
                        "task failed first: at most this many times in a row without a new checkpoint",
                .default_value = "3",
                .minimum = 0,
                .maximum = 1000}),
           option(
               options.stop_lead,
               {.name = "stop-lead",
                .value_name = "SECONDS",
                .help =
                    "seconds before the time limit at which the job is told to stop [default: by the time that the "
                    "last checkpoint took, or the site's write rate, at most half of --time; else 180, or 60 without "
                    "--checkpoints, at most a quarter of --time; with --trainer only if given, by SIGTERM]",
                .minimum = 1,
                .maximum = 65535}),
           option(options.check,
                  {.name = "check",
                   .help = "run sailor-check on the nodes before training, which begins only on nodes that are fit"}),
           option(options.spare_nodes,
                  {.name = "spare-nodes",
                   .value_name = "N",
                   .help = "with --check, ask for so many nodes more (of each kind), to take the place of unfit ones",
                   .default_value = "0",
                   .minimum = 0,
                   .maximum = 1000}),
           option(options.site, shared::site()),
           option(options.software, {.name = "software",
                                     .value_name = "NAME",
                                     .help = "software environment of the site file [default: the site's usual one]"}),
           option(options.image, {.name = "image",
                                  .value_name = "IMAGE",
                                  .help = "container or uenv for srun, as the software environment takes it"}),
           option(options.view, {.name = "view",
                                 .value_name = "NAME",
                                 .help = "view of the uenv [default: the site's, default on Alps]"}),
           option(options.learning_rate, {.name = "learning-rate",
                                          .value_name = "RATE",
                                          .help = "learning rate of the optimizer [default: sailor-train's]",
                                          .minimum = 0,
                                          .maximum = 1e6}),
           option(
               options.seed,
               {.name = "seed",
                .value_name = "N",
                .help = "seed of the initial parameters and of the order of samples [default: sailor-train's]",
                .minimum = 0}),
           option(options.train_option, shared::train_option()),
           option(options.program, shared::program()),
           option(options.mpi, {.name = "mpi",
                                .value_name = "TYPE",
                                .help = "how srun starts MPI ranks, see srun --mpi=list [default: the site's, pmix; "
                                        "with --trainer and without --check none]"}),
           option(
               options.torch_port,
               {.name = "torch-port",
                .value_name = "PORT",
                .help =
                    "with --trainer, the TCP port on which rank 0 listens [default: by the job's id, 10000 to 29999]",
                .minimum = 1024,
                .maximum = 65535}),
           option(options.sbatch_option, {.name = "sbatch-option",
                                          .value_name = "OPTION",
                                          .help = "further option of sbatch, such as --sbatch-option=--qos=high"}),
           option(options.cluster, cluster),
           option(options.models, shared::models_folder()),
           option(options.gpus, shared::gpus_file())},
      .examples =
          {{"sailor-submit plan.toml --data corpus --iterations 100 --dry-run --devices-per-node 4", "see the script"},
           {"sailor-submit plan.toml --data corpus --iterations 100 -p normal -t 2:00:00 --wait",
            "submit, and wait for the end"},
           {"sailor-submit plan.toml --data corpus --iterations 100 --sbatch-option=--exclude=gh7 -J night-run",
            "with a further option of sbatch"},
           {"sailor-submit plan.toml --data corpus --iterations 100 -t 30 --checkpoints kept --when-stopped "
            "requeue --dry-run --devices-per-node 4",
            "go on after the time limit"},
           {"sailor-submit plan.toml --data corpus --iterations 100 -t 30 --checkpoints kept --elastic 1-4 --dry-run "
            "--devices-per-node 4",
            "go on with the nodes that are left when some are lost, and with more when there are"},
           {"sailor-submit plan.toml --data corpus --iterations 100 -t 30 --check --spare-nodes 1 --dry-run "
            "--devices-per-node 4",
            "check the nodes first, with one to spare"},
           {"sailor-submit plan.toml --trainer megatron -t 8:00:00 --dry-run --devices-per-node 4 -- "
            "python pretrain_gpt.py --train-iters 1000 --lr 3e-4 --data-path corpus",
            "train with Megatron-Core"}},
      .exit_statuses = {{0, "submitted; with --wait: and succeeded"},
                        {1, "failure; with --wait: also of the job"},
                        {2, "wrong usage"}},
      .notes =
          "Variables of sbatch that would override the script (SBATCH_PARTITION, SBATCH_TIMELIMIT, ...) are not passed "
          "on.\n"
          "The job's exit code is that of sailor-train: 75 when a signal stopped it with a checkpoint to go on from, "
          "6\n"
          "without; with --trainer that of the framework's program."};
}

}  // namespace sailor::apps
