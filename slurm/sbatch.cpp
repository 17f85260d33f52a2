#include "slurm/sbatch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "core/stop_status.hpp"
#include "plan/node_placement.hpp"
#include "slurm/job_failures.hpp"
#include "slurm/node_records.hpp"
#include "slurm/script_text.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

std::string count(int number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

/// In a file name sbatch replaces %j and the like; %% is a percent sign.
std::string escape_percent(const std::string& path) {
  std::string escaped;
  for (const char c : path) {
    if (c == '%') escaped += '%';
    escaped += c;
  }
  return escaped;
}

std::string_view memory_comment(MemoryReason reason) {
  switch (reason) {
    case MemoryReason::predicted:
      return "Enough for the predicted peak of a rank; the partition's default may be less";
    case MemoryReason::all_there:
      return "All that the nodes have: for the predicted peak of a rank and some to spare they have too little";
    case MemoryReason::site:
      return "As the cluster's site file says (memory_per_node_gib)";
    case MemoryReason::whole_nodes:
      return "All that a node may give: the job has it to itself, and what the plan needs is not known";
    case MemoryReason::given:
      break;
  }
  return "As given on the command line of sailor-submit (--memory-per-cpu)";
}

/// Slurm confines a task to its GPU where it has control groups for devices: NCCL then finds no NVLink to the others.
bool slurm_gives_gpus(const SbatchRequest& request, const NodeRequest& nodes) {
  return nodes.device_kind == DeviceKind::gpu && (request.one_gpu_per_task || request.placer == Placer::slurm);
}

/// "512M"
std::string mebibytes(Bytes amount) {
  return fmt::format("{}M", std::max<std::int64_t>(static_cast<std::int64_t>(std::ceil(amount / mib)), 1));
}

/// Tasks that the job may start: of spare nodes as many as of the others.
int tasks_with_spares(const SbatchRequest& request, const JobComponent& component) {
  return request.spare_nodes == 0 ? component.tasks
                                  : (component.nodes + request.spare_nodes) * component.tasks_per_node;
}

/// Options that every component of a job needs for itself.
Result<void> write_component(Script& script, const SbatchRequest& request, const JobComponent& component,
                             const std::string& reason) {
  const NodeRequest& nodes = request.nodes[component.kind];
  if (!nodes.partition.empty()) SAILOR_CHECK(script.option("partition", nodes.partition));
  if (!request.account.empty()) SAILOR_CHECK(script.option("account", request.account));
  if (!request.reservation.empty()) SAILOR_CHECK(script.option("reservation", request.reservation));
  if (!request.qos.empty()) SAILOR_CHECK(script.option("qos", request.qos));
  if (request.time_limit) SAILOR_CHECK(script.option("time", format_time_limit(*request.time_limit)));
  script.blank();
  script.comment(reason);
  if (request.spare_nodes > 0)
    script.comment(fmt::format("{} more, for nodes that the check finds unfit", request.spare_nodes));
  SAILOR_CHECK(script.option("nodes", std::to_string(component.nodes + request.spare_nodes)));
  SAILOR_CHECK(script.option("ntasks", std::to_string(tasks_with_spares(request, component))));
  SAILOR_CHECK(script.option("ntasks-per-node", std::to_string(component.tasks_per_node)));
  if (component.packed) {
    script.comment("Slurm 24.11 would give every node as many tasks, and srun could not change that");
    SAILOR_CHECK(script.option("distribution", fmt::format("plane={}", component.tasks_per_node)));
  }
  SAILOR_CHECK(script.option("cpus-per-task", std::to_string(nodes.cpus_per_rank)));
  if (nodes.device_kind == DeviceKind::gpu) {
    script.comment(slurm_gives_gpus(request, nodes)
                       ? "One GPU for each rank of a node"
                       : "One GPU for each rank of a node; every rank sees all of them, for NVLink between them");
    // --gpus-per-node=TYPE:N would be refused by srun --gpus-per-task=1 ("with and without type identification").
    SAILOR_CHECK(nodes.gres_type.empty()
                     ? script.option("gpus-per-node", std::to_string(component.tasks_per_node))
                     : script.option("gres", fmt::format("gpu:{}:{}", nodes.gres_type, component.tasks_per_node)));
  } else {
    script.comment("A rank computes on a core of its own: two hardware threads of one would halve it");
    SAILOR_CHECK(script.option("hint", "nomultithread"));
  }
  if (nodes.memory_per_cpu || nodes.memory_per_rank || nodes.memory_per_node)
    script.comment(memory_comment(nodes.memory_reason));
  if (nodes.memory_per_cpu)
    SAILOR_CHECK(script.option("mem-per-cpu", mebibytes(*nodes.memory_per_cpu)));
  else if (nodes.memory_per_rank)
    SAILOR_CHECK(script.option("mem", mebibytes(*nodes.memory_per_rank * component.tasks_per_node)));
  else if (nodes.memory_per_node)
    SAILOR_CHECK(
        script.option("mem", *nodes.memory_per_node > Bytes(0) ? mebibytes(*nodes.memory_per_node) : std::string("0")));
  if (request.exclusive) {
    script.comment("No other job on these nodes: it would take bandwidth from the ranks");
    script.line("#SBATCH --exclusive");
  }
  if (!request.switches.empty()) {
    script.comment("Nodes near each other, if they can be had before this time is over");
    SAILOR_CHECK(script.option("switches", request.switches));
  }
  if (request.segment > 0) {
    script.comment("So many nodes of a pipeline from one block");
    SAILOR_CHECK(script.option("segment", std::to_string(request.segment)));
  }
  if (!request.constraint.empty()) {
    script.comment("Features of nodes that the site recommends");
    SAILOR_CHECK(script.option("constraint", request.constraint));
  }
  script.blank();
  const bool kept = !request.checkpoints.empty();
  const auto lead = static_cast<std::int64_t>(std::ceil(stop_lead_of(request).value()));
  script.comment(fmt::format(
      "{} s before the time limit{} the ranks get SIGUSR2: sailor-train then writes {} and ends with status {}", lead,
      request.stop_lead_reason.empty() ? "" : fmt::format(" ({})", printable(request.stop_lead_reason)),
      kept ? "a checkpoint" : "its run file", kept ? stopped_with_checkpoint : stopped_without_checkpoint));
  SAILOR_CHECK(script.option("signal", fmt::format("USR2@{}", lead)));
  if (request.extra_options.empty()) return {};
  script.blank();
  script.comment("As given on the command line of sailor-submit");
  for (const std::string& option : request.extra_options) SAILOR_CHECK(script.extra_option(option));
  return {};
}

std::string reason_for(const Plan& plan, const JobLayout& layout, const JobComponent& component) {
  if (layout.components.size() > 1) {
    const auto kinds = kinds_of(plan);
    const auto& [gpu, zone] = kinds[component.kind];
    return printable(fmt::format("{} on {}{}, {} on each node", count(component.tasks, "rank"), gpu,
                                 zone.empty() ? "" : " in " + zone, component.tasks_per_node));
  }
  const std::string ranks = count(component.tasks, "rank") + (layout.in_plan_order ? " in the plan's order" : "");
  return component.packed ? fmt::format("{}: {} on each node, the rest on the last", ranks, component.tasks_per_node)
                          : fmt::format("{}, {} on each node", ranks, component.tasks_per_node);
}

Result<void> write_resources(Script& script, const Plan& plan, const SbatchRequest& request, const JobLayout& layout) {
  script.comment(
      layout.components.size() == 1
          ? "What Slurm is asked for"
          : fmt::format("What Slurm is asked for: a heterogeneous job of {} components, which start together",
                        layout.components.size()));
  SAILOR_CHECK(script.option("job-name", request.job_name));
  if (!request.comment.empty()) SAILOR_CHECK(script.option("comment", request.comment));
  if (!request.licenses.empty()) SAILOR_CHECK(script.option("licenses", request.licenses));
  if (!request.mail_type.empty()) SAILOR_CHECK(script.option("mail-type", request.mail_type));
  if (!request.mail_user.empty()) SAILOR_CHECK(script.option("mail-user", request.mail_user));
  if (request.continuation == Continuation::requeue) {
    script.comment("The job may go back into the queue, and adds to its log instead of starting it anew");
    script.line("#SBATCH --requeue");
  } else if (request.continuation == Continuation::resubmit) {
    script.comment("It hands in the job that goes on after it; requeued by Slurm as well it would run twice");
    script.line("#SBATCH --no-requeue");
  } else {
    script.comment("A job that is requeued adds to its log instead of starting it anew");
  }
  SAILOR_CHECK(script.option("open-mode", "append"));
  const bool array = !request.array.empty();
  if (array) {
    script.comment(request.array_limit > 0 ? "A task for each plan, so many at once as stand behind the %"
                                           : "A task for each plan; %N behind the range would let only N of them run "
                                             "at once (--array-limit)");
    SAILOR_CHECK(
        script.option("array", fmt::format("0-{}{}", request.array.size() - 1,
                                           request.array_limit > 0 ? fmt::format("%{}", request.array_limit) : "")));
  }
  const std::string log =
      escape_percent((request.run_directory / "slurm-").string()) + (array ? "%A_%a.out" : "%j.out");
  SAILOR_CHECK(script.option("output", request.log_path.empty() ? log : request.log_path.string()));
  if (request.placer == Placer::plugin && !request.check_nodes) {
    script.comment("Sailor's plugin checks the allocation against the plan, and gives each rank its place in it");
    SAILOR_CHECK(script.option("sailor-plan", request.plan_path.string()));
  }
  for (std::size_t i = 0; i < layout.components.size(); ++i) {
    if (i > 0) {
      script.blank();
      script.line("#SBATCH hetjob");
    }
    if (layout.components.size() > 1) {
      script.blank();
      script.comment(fmt::format("Component {}", i));
    }
    // Components that wait for jobs of one name would wait for each other.
    if (i > 0 && request.continuation == Continuation::resubmit)
      SAILOR_CHECK(script.option("job-name", fmt::format("{}.{}", request.job_name, i)));
    SAILOR_CHECK(
        write_component(script, request, layout.components[i], reason_for(plan, layout, layout.components[i])));
  }
  return {};
}

bool on_cpus(const SbatchRequest& request) {
  return std::all_of(request.nodes.begin(), request.nodes.end(),
                     [](const NodeRequest& nodes) { return nodes.device_kind == DeviceKind::cpu; });
}

void write_environment(Script& script, const SbatchRequest& request) {
  if (request.no_core_files) {
    script.comment("Ranks that crash leave no core files: hundreds of them would fill the file system");
    script.line("ulimit -c 0");
    script.blank();
  }
  const int cores = request.nodes.front().cpus_per_rank;
  if (on_cpus(request)) {
    script.comment(
        fmt::format("Each rank has {}: more threads than that would take turns on them", count(cores, "core")));
    script.line(fmt::format("export OMP_NUM_THREADS={0} OPENBLAS_NUM_THREADS={0}", cores));
  }
  if (!request.environment.empty()) script.comment("What the cluster's network and libraries want, by its site file");
  for (const auto& [name, value] : request.environment)
    script.line(fmt::format("export {}={}", name, shell_quote(value)));
  const bool by_pmix = request.mpi.starts_with("pmix");
  if (by_pmix) {
    script.comment(
        "By default Slurm lets ranks leave MPI_Init before others are ready for their messages, and these crash");
    script.line("export SLURM_PMIX_FENCE=\"${SLURM_PMIX_FENCE:-ring}\"");
  }
  if (on_cpus(request) || !request.environment.empty() || by_pmix) script.blank();
}

/// What srun is told for all ranks, one word per line.
void write_srun(Script& script, const SbatchRequest& request) {
  script.word("--kill-on-bad-exit=1", "a rank that dies ends the job: the others would wait for it");
  script.word(fmt::format("--mpi={}", shell_quote(request.mpi)), "how the ranks find each other");
  if (!request.srun_options.empty()) script.line("  # What the cluster's site file adds");
  for (const std::string& option : request.srun_options) script.word(shell_quote(option));
}

std::string cpus_word(const NodeRequest& nodes) { return fmt::format("--cpus-per-task={}", nodes.cpus_per_rank); }
constexpr std::string_view cpus_reason = "srun of Slurm 22.05 and 23.02 does not take it from the job";
constexpr std::string_view node_facts_file = "$PWD/nodes-$SLURM_JOB_ID.toml";

/// What the tasks cannot find out in a container.
void write_node_facts(Script& script, const SbatchRequest& request) {
  if (!request.in_image || (request.placer != Placer::launcher && !request.check_nodes)) return;
  script.comment(
      "In a container there may be no slurm.conf: what it says of these nodes is written down here, on the host");
  script.line(fmt::format("{} --write-node-facts \"{}\"", shell_quote(request.launcher.string()), node_facts_file));
  script.blank();
}

/// The array `name`: how srun starts so many tasks on so many nodes; of a heterogeneous job what all components share.
void write_launch(Script& script, std::string_view name, const SbatchRequest& request, const JobLayout& layout,
                  int nodes, int tasks) {
  const JobComponent& only = layout.components.front();
  script.line(fmt::format("{}=(", name));
  script.word("srun");
  if (layout.components.size() == 1) {
    script.word(fmt::format("--nodes={}", nodes));
    script.word(fmt::format("--ntasks={}", tasks));
    if (only.packed && tasks < nodes * only.tasks_per_node) {
      // block,pack would go by the nodes' cores: of whole nodes a first one has room for more ranks than it has GPUs.
      script.word(fmt::format("--distribution=plane={}", only.tasks_per_node),
                  "neighbours in the plan share a node; the rest on the last");
    } else {
      script.word(fmt::format("--ntasks-per-node={}", only.tasks_per_node));
      script.word("--distribution=block", "neighbours in the plan share a node");
    }
    script.word(cpus_word(request.nodes[only.kind]), cpus_reason);
    if (slurm_gives_gpus(request, request.nodes[only.kind]))
      script.word("--gpus-per-task=1", request.one_gpu_per_task ? "each rank sees its own GPU, as the site file says"
                                                                : "each rank sees its own GPU: nobody else chooses it");
  }
  write_srun(script, request);
  script.line(")");
}

void write_launches(Script& script, const Plan& plan, const SbatchRequest& request, const JobLayout& layout) {
  const JobComponent& only = layout.components.front();
  if (layout.components.size() == 1 && only.packed) {
    script.comment("srun would spread the ranks evenly, and warn about this variable");
    script.line("unset SLURM_NTASKS_PER_NODE");
    script.blank();
  }
  write_launch(script, "launch", request, layout, only.nodes, plan.ranks());
  if (request.check_nodes && request.placer == Placer::plugin) {
    script.comment("Sailor's plugin checks the allocation against the plan, and gives each rank its place in it");
    script.line(fmt::format("launch+=({})", shell_quote("--sailor-plan=" + request.plan_path.string())));
  }
}

/// NUMA nodes that all ranks allocate from; empty where kinds of nodes differ in it.
std::vector<int> memory_nodes(const SbatchRequest& request) {
  const std::vector<int>& first = request.nodes.front().memory_nodes;
  const bool alike = std::all_of(request.nodes.begin(), request.nodes.end(),
                                 [&](const NodeRequest& nodes) { return nodes.memory_nodes == first; });
  return alike ? first : std::vector<int>();
}

void write_train(Script& script, const SbatchRequest& request) {
  const std::vector<int> memory = memory_nodes(request);
  const bool places = request.placer == Placer::launcher;
  script.line("train=(");
  if (places || !memory.empty())
    script.word(shell_quote(request.launcher.string()),
                places ? "checks the allocation, and gives each rank its place in the plan" : "");
  if (places) {
    script.word(fmt::format("--plan {}", shell_quote(request.plan_path.string())));
    if (!request.gpus_file.empty()) script.word(fmt::format("--gpus {}", shell_quote(request.gpus_file.string())));
    if (request.in_image) script.word(fmt::format("--node-facts \"{}\"", node_facts_file));
  }
  if (!memory.empty())
    script.word(fmt::format("--memory-nodes {}", shell_quote(fmt::format("{}", fmt::join(memory, ",")))),
                "memory of the CPUs; GPUs have nodes of their own");
  if (places || !memory.empty()) script.word("--");
  script.word(shell_quote(request.program.string()));
  script.word(shell_quote(request.plan_path.string()));
  script.word(fmt::format("--data {}", shell_quote(request.data)));
  script.word(fmt::format("--iterations {}", request.iterations));
  if (request.run_file.empty())
    script.word("--run-file \"run-$SLURM_JOB_ID${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}.h5\"",
                "times, losses and memory, for sailor-simulate --against");
  else
    script.word(fmt::format("--run-file {}", shell_quote(request.run_file.string())));
  if (!request.checkpoints.empty())
    script.word(fmt::format("--checkpoints {}", shell_quote(request.checkpoints.string())),
                "goes on from the newest one there");
  if (!request.models_folder.empty())
    script.word(fmt::format("--models {}", shell_quote(request.models_folder.string())));
  if (request.learning_rate) script.word(fmt::format("--learning-rate {}", *request.learning_rate));
  if (request.seed) script.word(fmt::format("--seed {}", *request.seed));
  for (const std::string& argument : request.extra_arguments) script.word(shell_quote(argument));
  script.line(")");
  script.blank();
}

void write_record(Script& script, const SbatchRequest& request, const JobLayout& layout) {
  script.comment("What ran and where, for whoever looks at the results later");
  script.line("{");
  script.line("  date -u +%FT%TZ");
  script.line(fmt::format("  {} --version || true", shell_quote(request.program.string())));
  script.line("  srun --version");
  if (layout.components.size() == 1) script.line("  scontrol show hostnames \"$SLURM_JOB_NODELIST\"");
  for (std::size_t i = 0; layout.components.size() > 1 && i < layout.components.size(); ++i)
    script.line(fmt::format("  scontrol show hostnames \"$SLURM_JOB_NODELIST_HET_GROUP_{}\"", i));
  script.line("} >\"versions-$SLURM_JOB_ID${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}.txt\"");
  script.blank();
}

/// The command that starts `program` on all ranks; with `spares` on all nodes of the job, those to spare as well.
std::vector<std::string> start_lines(const SbatchRequest& request, const JobLayout& layout, std::string_view launch,
                                     std::string_view program, bool spares) {
  if (layout.components.size() == 1) return {fmt::format("\"${{{}[@]}}\" {}", launch, program)};
  const auto options = [&](const JobComponent& component) {
    const NodeRequest& nodes = request.nodes[component.kind];
    std::string size;
    // A component of a step takes all of its nodes unless it says less.
    if (request.spare_nodes > 0)
      size = fmt::format("--nodes={} --ntasks={} --ntasks-per-node={} ",
                         component.nodes + (spares ? request.spare_nodes : 0),
                         spares ? tasks_with_spares(request, component) : component.tasks, component.tasks_per_node);
    return size + cpus_word(nodes) + (slurm_gives_gpus(request, nodes) ? " --gpus-per-task=1" : "");
  };
  const std::string first = options(layout.components.front());
  if (request.spare_nodes == 0 &&
      std::all_of(layout.components.begin(), layout.components.end(),
                  [&](const JobComponent& component) { return options(component) == first; })) {
    std::vector<std::size_t> groups(layout.components.size());
    std::iota(groups.begin(), groups.end(), std::size_t{0});
    return {fmt::format("\"${{{}[@]}}\" --het-group={} {} {}", launch, fmt::join(groups, ","), first, program)};
  }
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < layout.components.size(); ++i) {
    const bool last = i + 1 == layout.components.size();
    lines.push_back(fmt::format("{}\"${{{}[@]{}}}\" --het-group={} {} {}{}", i == 0 ? "" : "  ", launch,
                                i == 0 ? "" : ":1", i, options(layout.components[i]), program, last ? "" : " : \\"));
  }
  return lines;
}

void write_function(Script& script, std::string_view name, const std::vector<std::string>& lines) {
  script.line(fmt::format("{}() {{", name));
  for (const std::string& line : lines) script.line("  " + line);
  script.line("}");
}

/// The functions start_check() and check_nodes().
void write_node_check(Script& script, const SbatchRequest& request, const JobLayout& layout) {
  if (!request.check_nodes) return;
  const JobComponent& only = layout.components.front();
  if (request.spare_nodes > 0)
    write_launch(script, "check_launch", request, layout, only.nodes + request.spare_nodes,
                 tasks_with_spares(request, only));
  const std::string_view launch = request.spare_nodes > 0 ? "check_launch" : "launch";
  script.line("check=(");
  script.word(shell_quote(request.checker.string()));
  script.word(fmt::format("--plan {}", shell_quote(request.plan_path.string())));
  if (request.spare_nodes > 0)
    script.word("--spare-nodes", "more tasks than the plan has ranks: any node may be needed");
  for (const std::string& argument : request.checker_arguments) script.word(shell_quote(argument));
  if (request.in_image) script.word(fmt::format("--node-facts \"{}\"", node_facts_file));
  script.line(")");
  // A rank that dies is to be named by the others.
  const std::string program = "--kill-on-bad-exit=0 \"${check[@]}\"";
  write_function(script, "start_check", start_lines(request, layout, launch, program, true));
  write_check(script, request);
  script.blank();
}

void write_start(Script& script, const SbatchRequest& request, const JobLayout& layout) {
  const std::vector<std::string> lines = start_lines(request, layout, "launch", "\"${train[@]}\"", false);
  if (layout.components.size() > 1)
    script.comment(fmt::format("One srun over all components{}: its ranks are those of one MPI job",
                               lines.size() > 1 ? ", a colon between their options" : ""));
  write_function(script, "start", lines);
  std::string_view begin = "start";
  if (request.check_nodes) {
    begin = "check_and_start";
    write_function(script, begin, {"check_nodes || return $?", "start"});
  }
  script.line("status=0");
  script.line(fmt::format("{} || status=$?", begin));
  if (request.runs_sailor_train) {
    script.line(fmt::format("if ((status == {})); then", mpi_did_not_start));
    script.line("  # MPI crashed while the ranks started: nothing is lost, and the next start may succeed");
    script.line("  echo 'MPI did not start: the job starts its ranks once more' >&2");
    script.line("  status=0");
    script.line(fmt::format("  {} || status=$?", begin));
    script.line("fi");
  }
  if (request.continuation == Continuation::none) {
    script.comment(
        request.checkpoints.empty()
            ? fmt::format("The job ends with its status: {} when a signal stopped it before the last iteration",
                          stopped_without_checkpoint)
            : fmt::format("The job ends with its status: {} when a signal stopped it, with a checkpoint to go "
                          "on from",
                          stopped_with_checkpoint));
    script.line("exit \"$status\"");
    return;
  }
  write_ending(script, request);
  script.line("exit \"$status\"");
}

void write_plans(Script& script, const Plan& plan, const SbatchRequest& request) {
  if (request.array.empty()) {
    script.comment("The plan: " + printable(describe(plan)));
    return;
  }
  script.comment("The plans, one for each task of the array:");
  for (std::size_t task = 0; task < request.array.size(); ++task)
    script.comment(printable(
        fmt::format("  {} {}: {}", task, request.array[task].directory.filename().string(), request.array[task].plan)));
}

Result<void> check_placer(const JobLayout& layout, const SbatchRequest& request) {
  if (request.placer != Placer::slurm || layout.in_plan_order) return {};
  return fail(
      ErrorCode::unavailable,
      layout.components.size() > 1
          ? "the plan's ranks lie on several kinds of nodes: srun alone cannot place them"
          : "the nodes would hold ranks that do not follow each other in the plan: srun alone cannot place them",
      "let sailor-launch or the plugin place them (--placer)");
}

}  // namespace

Result<std::string> sbatch_script(const Plan& plan, const Model& model, const SbatchRequest& request) {
  SAILOR_CHECK(check_plan(plan, model));
  SAILOR_CHECK(check_request(plan, request));
  const auto layout = lay_out_job(plan, request);
  if (!layout) return fail(layout.error());
  SAILOR_CHECK(check_placer(*layout, request));

  Script script;
  script.line("#!/bin/bash");
  script.comment("Written by sailor-submit. To run it again: sbatch THIS_FILE");
  write_plans(script, plan, request);
  script.blank();
  SAILOR_CHECK(write_resources(script, plan, request, *layout));
  script.blank();
  script.comment("Any error ends the job, with its own exit status");
  script.line("set -euo pipefail");
  if (!request.array.empty()) {
    script.comment("The run directories, by task; each has its plan");
    script.line("runs=(");
    for (const ArrayTask& task : request.array) script.word(shell_quote(task.directory.string()));
    script.line(")");
  }
  script.comment("If a node does not see the run directory, fail here: Slurm itself would go on in /tmp");
  script.line(request.array.empty() ? fmt::format("cd -- {}", shell_quote(request.run_directory.string()))
                                    : "cd -- \"${runs[SLURM_ARRAY_TASK_ID]}\"");
  if (!request.array.empty()) {
    script.comment("Every plan is called plan.toml in what follows: the log says first which one it is about");
    script.line("echo \"# task $SLURM_ARRAY_TASK_ID: ${PWD//[[:cntrl:]]/ }/plan.toml\"");
  }
  script.blank();
  write_environment(script, request);
  write_record(script, request, *layout);
  write_node_facts(script, request);
  write_beginning(script, request);
  write_launches(script, plan, request, *layout);
  write_train(script, request);
  write_node_check(script, request, *layout);
  write_start(script, request, *layout);
  return script.take();
}

}  // namespace sailor::slurm
