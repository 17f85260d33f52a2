#include "apps/plan/plan_options.hpp"

#include "apps/inputs.hpp"
#include "apps/plan/command_line.hpp"
#include "apps/plan/handover_format.hpp"
#include "apps/plan/published_planners.hpp"
#include "apps/programs.hpp"
#include "apps/training_program.hpp"

namespace sailor::apps {

namespace {

void add(std::vector<Option>& rows, const std::string& group, std::vector<Option> more) {
  for (Option& option : more) {
    option.group = group;
    rows.push_back(std::move(option));
  }
}

std::vector<Option> job_options(PlanOptions& options) {
  return {
      option(options.model, shared::model()),
      option(options.global_batch, {.name = "global-batch",
                                    .value_name = "N",
                                    .help = "sequences per iteration; a plan never changes it",
                                    .minimum = 1,
                                    .maximum = 1 << 28}),
      option(options.sequence_length, {.name = "sequence-length",
                                       .value_name = "N",
                                       .help = "tokens per sequence [default: the longest the model allows]",
                                       .minimum = 1,
                                       .maximum = 1 << 24}),
      option(
          options.precision,
          {.name = "precision",
           .value_name = "NAME",
           .help =
               "number format of the training [default: the profiled one of the model, tf32 before fp32; if there is "
               "none, bf16 if every device has it, else the best of bf16, fp16 and fp32]",
           .choices = precision_choices()}),
      option(options.tokens, {.name = "tokens",
                              .value_name = "N",
                              .help = "length of the whole training in tokens (3e11), for --within, --max-total-cost, "
                                      "--max-node-hours and --preflight",
                              .minimum = 1.0,
                              .maximum = 1e18}),
      option(options.iterations, {.name = "iterations",
                                  .value_name = "N",
                                  .help = "length of the whole training in iterations",
                                  .minimum = 1.0,
                                  .maximum = 1e15}),
      option(options.framework, shared::framework())};
}

std::vector<Option> where_options(PlanOptions& options) {
  Option partition = shared::partition();
  partition.value_name = "NAMES";
  partition.help =
      "plan for the nodes of this Slurm partition, or of several (normal,mixed), read live unless --cluster is given";
  return {option(options.partition, partition),
          option(options.availability,
                 {.name = "availability",
                  .value_name = "WHICH",
                  .help = "nodes to plan for: idle (free now, of partly taken nodes what is left), up (what can be had "
                          "now or later), all (what exists, drained and down nodes too)",
                  .default_value = "up",
                  .choices = {"idle", "up", "all"}}),
          option(options.reservation, shared::reservation()),
          option(options.gpu_type, shared::gpu_type()),
          option(options.cluster, shared::cluster_file()),
          option(options.site, shared::site()),
          option(options.profile, shared::required_profile())};
}

std::vector<Option> preflight_options(PlanOptions& options) {
  Option time = shared::time_limit();
  return {
      option(options.preflight,
             {.name = "preflight",
              .help =
                  "check what would go wrong with a job for PLAN, or for the best plan found, before it is submitted"}),
      option(options.account, shared::account()),
      option(options.qos,
             {.name = "qos", .value_name = "NAME", .help = "quality of service of the job [default: Slurm's]"}),
      option(options.time, time),
      option(options.data,
             {.name = "data",
              .value_name = "PREFIX",
              .help = "data that the job would train on: path prefix of the files that sailor-data wrote"}),
      option(options.checkpoints,
             {.name = "checkpoints", .value_name = "FOLDER", .help = "folder that the job would write checkpoints to"}),
      option(options.mpi,
             {.name = "mpi", .value_name = "TYPE", .help = "srun's --mpi of the job [default: the site's]"}),
      option(options.licenses, shared::licenses()),
      option(options.program, shared::program()),
      option(options.train_option, shared::train_option())};
}

std::vector<Option> goal_options(PlanOptions& options) {
  return {
      option(options.objective,
             {.name = "objective",
              .value_name = "GOAL",
              .help = "what the best plan has: most iterations per second, fewest USD per iteration, or most "
                      "iterations per second for each USD that an iteration costs",
              .default_value = "throughput",
              .choices = {"throughput", "cost", "throughput-per-usd"}}),
      option(options.max_cost, {.name = "max-cost",
                                .value_name = "USD",
                                .help = "budget: USD per iteration, at most (of the whole training: --max-total-cost)",
                                .minimum = 0.0}),
      option(options.max_total_cost,
             {.name = "max-total-cost",
              .value_name = "USD",
              .help = "budget: USD of the whole training, at most; needs --tokens or --iterations",
              .minimum = 0.0}),
      option(options.min_throughput,
             {.name = "min-throughput", .value_name = "X", .help = "iterations per second, at least", .minimum = 0.0}),
      option(options.max_gpus, {.name = "max-gpus",
                                .value_name = "N",
                                .help = "devices that a plan takes, at most",
                                .minimum = 1,
                                .maximum = 1 << 24}),
      option(options.max_nodes, {.name = "max-nodes",
                                 .value_name = "N",
                                 .help = "nodes that a plan takes, at most",
                                 .minimum = 1,
                                 .maximum = 1 << 24}),
      option(options.max_node_hours,
             {.name = "max-node-hours",
              .value_name = "H",
              .help = "nodes x hours of the whole training, at most; needs --tokens or --iterations",
              .minimum = 0.0}),
      option(options.within, {.name = "within",
                              .value_name = "TIME",
                              .help = "wall-clock time of the whole training, at most, as Slurm writes it: minutes, "
                                      "H:MM:SS, D-HH or D-HH:MM:SS; needs --tokens or --iterations"}),
      option(options.pareto, {.name = "pareto",
                              .help = "show the plans that no other beats in time, money and number of GPUs at once"})};
}

std::vector<Option> space_options(PlanOptions& options) {
  return {
      option(options.pin,
             {.name = "pin",
              .value_name = "KEY=VALUE",
              .help = "keep a part of the plan: pipeline_parallel, data_parallel, tensor_parallel, context_parallel, "
                      "expert_parallel, sharding_degree, micro_batch (numbers), schedule (1f1b, gpipe, "
                      "interleaved-1f1b), recompute (none, selective, full), optimizer_sharding (none, zero1, zero2, "
                      "zero3), gpu or zone (no other; several times for any of several)"}),
      option(options.max_tensor_parallel, {.name = "max-tensor-parallel",
                                           .value_name = "N",
                                           .help = "ranks of a tensor-parallel group, at most",
                                           .minimum = 1,
                                           .maximum = 4096}),
      option(options.exclude, {.name = "exclude",
                               .value_name = "NODELIST",
                               .help = "nodes not to use, as Slurm writes them: node[01-04,7],gpu9"}),
      option(
          options.memory_margin,
          {.name = "memory-margin",
           .value_name = "SHARE",
           .help = "share of each device's memory to leave free, 0 to 0.9; with --cost-model artifact 0 unless given",
           .default_value = "0.05",
           .minimum = 0.0,
           .maximum = 0.9}),
      option(options.space, {.name = "space",
                             .value_name = "SPACE",
                             .help = "which plans: all that Sailor can run, or those that the Sailor paper's planner "
                                     "searches (equal layers and degrees in all stages)",
                             .default_value = "full",
                             .choices = {"full", "paper"}}),
      option(options.cost_model,
             {.name = "cost-model",
              .value_name = "MODEL",
              .help = "what judges plans: Sailor's simulator, or the evaluator of the Sailor paper's artifact with its "
                      "prices and memory rule, to compare with published figures",
              .default_value = "simulator",
              .choices = {"simulator", "artifact"}})};
}

std::vector<Option> effort_options(PlanOptions& options) {
  return {option(options.time_limit,
                 {.name = "time-limit",
                  .value_name = "SECONDS",
                  .help = "stop searching after so long with the best plan so far, as Ctrl-C does [default: none]",
                  .minimum = 0.0,
                  .maximum = 1e7}),
          option(options.work_limit,
                 {.name = "work-limit",
                  .value_name = "N",
                  .help = "stop after so many plans and pipelines looked at, the same on every machine [default: none]",
                  .minimum = 1,
                  .maximum = 9e18}),
          option(options.prove,
                 {.name = "prove",
                  .help = "work on the bound ten to a hundred times as long, minutes instead of seconds: how much "
                          "better another plan could be; --time-limit and Ctrl-C end it with what is proved so far"}),
          option(options.no_proof,
                 {.name = "no-proof",
                  .help = "do not work on the bound, which takes most of a search's time where there are several GPU "
                          "types or zones: the answer does not say how much better another plan could be, and may "
                          "itself be slightly worse"}),
          option(options.threads, {.name = "threads",
                                   .value_name = "N",
                                   .help = "threads that search and prove the bound, 0: as many as this process may "
                                           "run on; the answer does not depend on it",
                                   .default_value = "0",
                                   .minimum = 0,
                                   .maximum = 1024}),
          option(options.without, {.name = "without",
                                   .value_name = "HEURISTIC",
                                   .help = "leave a heuristic of the full search out, to see what it is worth "
                                           "(repeatable; experiments/planner_ablation.py tries all)",
                                   .choices = planner::heuristic_choices()})};
}

std::vector<Option> trace_options(PlanOptions& options) {
  return {
      option(options.availability_trace,
             {.name = "availability-trace",
              .value_name = "CSV",
              .help = "plan again at each step of a trace: columns Timestamp (seconds) and GPU_ZONE (number of GPUs)"}),
      option(options.reconfiguration_time, {.name = "reconfiguration-time",
                                            .value_name = "SECONDS",
                                            .help = "what changing the plan costs a running training; a trace's plan "
                                                    "is kept when a better one does not pay for it",
                                            .default_value = "12",
                                            .minimum = 0.0,
                                            .maximum = 1e7}),
      option(options.last_step, {.name = "last-step",
                                 .value_name = "SECONDS",
                                 .help = "how long the last step of a trace lasts, which the trace does not say",
                                 .default_value = "3600",
                                 .minimum = 1.0,
                                 .maximum = 1e9})};
}

std::vector<Option> watch_options(PlanOptions& options) {
  return {
      option(options.watch,
             {.name = "watch",
              .help = "follow the nodes of --partition (or of --cluster, whose file is read again) until Ctrl-C or "
                      "SIGTERM: a line for each change, with the nodes that came or went, the best plan now, and "
                      "whether switching from the running plan pays; with --format json a JSON object for each"}),
      option(options.interval, {.name = "interval",
                                .value_name = "SECONDS",
                                .help = "with --watch, time between two questions to Slurm",
                                .default_value = "30",
                                .minimum = 1.0,
                                .maximum = 1e6}),
      option(options.watch_count, {.name = "watch-count",
                                   .value_name = "N",
                                   .help = "with --watch, end after so many looks at the cluster [default: none]",
                                   .minimum = 1,
                                   .maximum = 1e15}),
      option(options.against, {.name = "against",
                               .value_name = "PLAN",
                               .help = "with --watch, the plan that is running (plan.toml, read again at each change) "
                                       "[default: the plan found first]"}),
      option(
          options.switch_cost,
          {.name = "switch-cost",
           .value_name = "SECONDS",
           .help =
               "with --watch, training time that a change of plan costs [default: what the last planned change of the "
               "--elastic training took; if there was none, 5 s and the time to move a rank's state between nodes, "
               "where the site file or [network] of --cluster states their bandwidth]",
           .minimum = 0.0,
           .maximum = 1e7}),
      option(options.horizon,
             {.name = "horizon",
              .value_name = "TIME",
              .help =
                  "with --watch, time from its start for which a new plan would run, as Slurm writes it; a switch must "
                  "pay in what is left of it [default: the rest of --iterations or --tokens, else always 1:00:00]"}),
      option(
          options.elastic,
          {.name = "elastic",
           .value_name = "FOLDER",
           .help =
               "with --watch, do what pays for the elastic training in this folder: ask its controller for better "
               "plans on its nodes (FOLDER/requests/), and to leave nodes that are drained or reserved for maintenance "
               "(FOLDER/exclude); unless --availability is given, nodes count that are idle or its own"})};
}

std::vector<Option> answer_options(PlanOptions& options) {
  Option format = shared::format();
  format.choices.emplace_back("sailor-json");
  format.help += "; toml and sailor-json (the original Sailor's) write the best plan";
  add_handover_formats(format);
  Option output = shared::output();
  output.help = "write the best plan here (plan.toml)";
  output.writes = true;
  return {
      option(options.top, {.name = "top",
                           .value_name = "K",
                           .help = "how many plans to show",
                           .default_value = "10",
                           .minimum = 1,
                           .maximum = 10000}),
      option(options.explain, {.name = "explain", .help = "say why the first plan wins and why the others lose"}),
      option(options.why_not,
             {.name = "why-not",
              .value_name = "PLAN",
              .help =
                  "compare a plan of your own (plan.toml, or the original Sailor's JSON) with the best, part by part"}),
      option(options.placement,
             {.name = "placement",
              .help = "show which node each rank of the best plan would run on, of those that are there now"}),
      option(options.save_cluster, {.name = "save-cluster",
                                    .value_name = "FILE",
                                    .help = "write the cluster as it was read (cluster.toml)",
                                    .writes = true}),
      option(options.output, output),
      option(options.format, format)};
}

}  // namespace

std::vector<Option> plan_options(PlanOptions& options) {
  std::vector<Option> rows;
  add(rows, "Where", where_options(options));
  add(rows, "Training", job_options(options));
  add(rows, "Goal and limits", goal_options(options));
  add(rows, "Which plans", space_options(options));
  add(rows, "Search", effort_options(options));
  add(rows, "Published planners", planner_options(options));
  add(rows, "Answer", answer_options(options));
  add(rows, "Before the queue", preflight_options(options));
  add(rows, "Availability that changes", watch_options(options));
  add(rows, "Availability that changes", trace_options(options));
  Option gpus = shared::gpus_file();
  gpus.value_name = "FILE|NxM:TYPE";
  gpus.help =
      "GPU catalogue [default: gpus.toml of the profiles folder]; or, instead of a cluster, the GPUs that there are: "
      "16x4:GH200-96 is 16 nodes of four, several with commas between, @ZONE behind a type, network:50 for 50 GB/s of "
      "one stream between nodes where no link was measured (25 unless it is said); the profile is then the published "
      "one unless --profile names another";
  add(rows, "",
      {option(options.measured_only, shared::measured_only()), option(options.models, shared::models_folder()),
       option(options.gpus, gpus)});
  return rows;
}

std::vector<Example> plan_examples() {
  return {{"sailor-plan -p normal --model tiny-gpt --global-batch 16 --profile store -o plan.toml",
           "plan for what partition normal has now"},
          {"sailor-plan --cluster cluster.toml --model tiny-gpt --global-batch 16 --profile store --top 3 --explain",
           "plan away from the cluster, and say why the best plan wins"},
          {"sailor-plan --cluster cluster.toml --model tiny-gpt --global-batch 16 --profile store --objective cost "
           "--tokens 1e6 --within 1-00:00:00",
           "the cheapest plan that trains a million tokens within a day"},
          {"sailor-plan --cluster cluster.toml --model tiny-gpt --global-batch 16 --profile store "
           "--pin pipeline_parallel=2 --exclude 'gh[3-8]'",
           "with two stages, and without some nodes"},
          {"sailor-plan --cluster cluster.toml --model tiny-gpt --global-batch 4 --sequence-length 128 --profile store "
           "--why-not plan.toml",
           "why not the plan I have?"},
          {"sailor-plan -p normal --preflight plan.toml --profile store --time 30 --iterations 100 --data corpus",
           "what would go wrong with a job for this plan, before it waits in the queue"},
          {"sailor-plan --cluster cluster.toml --model tiny-gpt --global-batch 16 --profile store --format json",
           "the same for a program to read"},
          {"sailor-plan --gpus 16x4:GH200-96 --model llama-3-8b --global-batch 1024 --sequence-length 4096",
           "without any file: LLaMA-3-8B on 16 nodes of four GH200"},
          {"sailor-plan --planner help", "planners of others that can be asked with the same options"}};
}

CommandLine plan_command_line(PlanOptions& options) {
  return {.program = "sailor-plan",
          .purpose = purpose_of("sailor-plan"),
          .positionals = {positional(
              options.plan, {.name = "PLAN", .help = "plan to check with --preflight (plan.toml)", .required = false})},
          .options = plan_options(options),
          .examples = plan_examples(),
          .exit_statuses = {{0, "a plan was found; with --preflight: nothing is wrong"},
                            {1, "failure"},
                            {2, "wrong usage"},
                            {3, "no plan fits or keeps the limits"},
                            {4, "with --preflight: there are warnings only"},
                            {5, "with --preflight: a check failed"}}};
}

}  // namespace sailor::apps
