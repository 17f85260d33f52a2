#include "slurm/script_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/stop_status.hpp"
#include "core/text.hpp"
#include "slurm/script_resources.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

bool on_cpus(const SbatchRequest& request) {
  return std::all_of(request.nodes.begin(), request.nodes.end(),
                     [](const NodeRequest& nodes) { return nodes.device_kind == DeviceKind::cpu; });
}

/// NUMA nodes that all ranks allocate from; empty if they differ among kinds of nodes.
std::vector<int> memory_nodes(const SbatchRequest& request) {
  const std::vector<int>& first = request.nodes.front().memory_nodes;
  const bool alike = std::all_of(request.nodes.begin(), request.nodes.end(),
                                 [&](const NodeRequest& nodes) { return nodes.memory_nodes == first; });
  return alike ? first : std::vector<int>();
}

}  // namespace

std::string count(int number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::string cpus_word(const NodeRequest& nodes) { return fmt::format("--cpus-per-task={}", nodes.cpus_per_rank); }

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
  const bool by_pmix = request.mpi.starts_with("pmix") && !request.elastic;
  if (by_pmix) {
    script.comment(
        "By default Slurm lets ranks leave MPI_Init before others are ready for their messages, and these crash");
    script.line("export SLURM_PMIX_FENCE=\"${SLURM_PMIX_FENCE:-ring}\"");
  }
  if (on_cpus(request) || !request.environment.empty() || by_pmix) script.blank();
}

void write_srun(Script& script, const SbatchRequest& request) {
  if (request.elastic) {
    script.word("--no-kill --kill-on-bad-exit=0", "nodes and ranks may be lost: the others go on");
    script.word("--mpi=none", "the ranks find each other by the controller");
  } else {
    script.word("--kill-on-bad-exit=1", "a rank that dies ends the job: the others would wait for it");
    script.word(fmt::format("--mpi={}", shell_quote(request.mpi)),
                request.framework ? (request.check_nodes ? "for the check" : "the ranks find each other by MASTER_ADDR")
                                  : "how the ranks find each other");
  }
  if (!request.srun_options.empty()) script.line("  # What the cluster's site file adds");
  for (const std::string& option : request.srun_options) script.word(shell_quote(option));
}

void write_node_facts(Script& script, const SbatchRequest& request) {
  if (!request.in_image || (request.placer != Placer::launcher && !request.check_nodes)) return;
  script.comment(
      "In a container there may be no slurm.conf: what it says of these nodes is written down here, on the host");
  script.line(fmt::format("{} --write-node-facts \"{}\"", shell_quote(request.launcher.string()), node_facts_file));
  script.blank();
}

void write_framework_settings(Script& script, const SbatchRequest& request) {
  if (!request.framework) return;
  const FrameworkProgram& program = *request.framework;
  script.blank();
  script.comment(program.title);
  if (!program.file.empty()) script.line(fmt::format("cat >{} <<'END_OF_FILE'", shell_quote(program.file)));
  script.text(program.settings);
  if (!program.file.empty()) script.line("END_OF_FILE");
  script.blank();
}

namespace {

/// The start of the array `train`: sailor-launch and its options, where it is needed.
void write_launcher(Script& script, const SbatchRequest& request) {
  const std::vector<int> memory = memory_nodes(request);
  const bool places = request.placer == Placer::launcher && !request.elastic;
  if (!places && memory.empty()) return;
  script.word(shell_quote(request.launcher.string()),
              places ? "checks the allocation, and gives each rank its place in the plan" : "");
  if (places) {
    script.word(fmt::format("--plan {}", shell_quote(request.plan_path.string())));
    if (!request.gpus_file.empty()) script.word(fmt::format("--gpus {}", shell_quote(request.gpus_file.string())));
    if (request.in_image) script.word(fmt::format("--node-facts \"{}\"", node_facts_file));
  }
  if (request.framework) {
    script.line("  # For PyTorch: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and others; rank 0 listens on this port");
    script.word(request.framework->port ? fmt::format("--torch-port {}", *request.framework->port)
                                        : "--torch-port \"$((10000 + SLURM_JOB_ID % 20000))\"");
    if (request.framework->ranks_by_stage)
      script.word("--torch-ranks stage", fmt::format("as {} numbers ranks", request.framework->framework));
  }
  if (!memory.empty())
    script.word(fmt::format("--memory-nodes {}", shell_quote(join(memory, ","))),
                "memory of the CPUs; GPUs have nodes of their own");
  script.word("--");
}

void write_framework_command(Script& script, const FrameworkProgram& program) {
  const std::vector<std::string>& words = program.command;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool has_value = words[i].starts_with('-') && i + 1 < words.size() && !words[i + 1].starts_with('-');
    script.word(has_value ? shell_quote(words[i]) + " " + shell_quote(words[i + 1]) : shell_quote(words[i]));
    if (has_value) ++i;
  }
  if (!program.array.empty()) script.word(fmt::format("\"${{{}[@]}}\"", program.array), "what the plan decides");
  for (const std::string& word : program.last_words) script.word(shell_quote(word));
}

void write_sailor_train(Script& script, const SbatchRequest& request) {
  script.word(shell_quote(request.program.string()));
  script.word(shell_quote(request.plan_path.string()));
  if (request.elastic) script.word("--elastic \"$elastic\"", "who takes part in which role, the controller says there");
  script.word(fmt::format("--data {}", shell_quote(request.data)));
  script.word(fmt::format("--iterations {}", request.iterations));
  if (request.elastic)
    script.word("--run-file \"$run_file\"", "times, losses and memory, for sailor-simulate --against");
  else if (request.run_file.empty())
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
}

}  // namespace

void write_train(Script& script, const SbatchRequest& request) {
  script.line("train=(");
  write_launcher(script, request);
  if (request.framework)
    write_framework_command(script, *request.framework);
  else
    write_sailor_train(script, request);
  script.line(")");
  script.blank();
}

void write_record(Script& script, const SbatchRequest& request, const JobLayout& layout) {
  script.comment("What ran and where, for whoever looks at the results later");
  script.line("{");
  script.line("  date -u +%FT%TZ");
  // A program of the user's might take --version for anything.
  const std::filesystem::path& asked = request.framework ? request.launcher : request.program;
  script.line(fmt::format("  {} --version || true", shell_quote(asked.string())));
  script.line("  srun --version");
  if (layout.components.size() == 1) script.line("  scontrol show hostnames \"$SLURM_JOB_NODELIST\"");
  for (std::size_t i = 0; layout.components.size() > 1 && i < layout.components.size(); ++i)
    script.line(fmt::format("  scontrol show hostnames \"$SLURM_JOB_NODELIST_HET_GROUP_{}\"", i));
  script.line("} >\"versions-$SLURM_JOB_ID${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}.txt\"");
  script.blank();
}

}  // namespace sailor::slurm
