#include "slurm/sbatch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/stop_status.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "slurm/elastic_script.hpp"
#include "slurm/job_failures.hpp"
#include "slurm/node_records.hpp"
#include "slurm/script_parts.hpp"
#include "slurm/script_resources.hpp"
#include "slurm/script_text.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

/// The array `name`: srun with this number of tasks and nodes; for a heterogeneous job, what all components share.
void write_launch(Script& script, std::string_view name, const SbatchRequest& request, const JobLayout& layout,
                  int nodes, int tasks) {
  const JobComponent& only = layout.components.front();
  script.line(fmt::format("{}=(", name));
  script.word("srun");
  if (layout.components.size() == 1) {
    script.word(fmt::format("--nodes={}", nodes));
    script.word(fmt::format("--ntasks={}", tasks));
    if (only.packed && tasks < nodes * only.tasks_per_node) {
      // block,pack would fill nodes by their cores: a whole node has room for more ranks than it has GPUs.
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

/// The command that starts `program` on all ranks; with `spares` on all nodes of the job, including spare nodes.
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
    return {fmt::format("\"${{{}[@]}}\" --het-group={} {} {}", launch, join(groups, ","), first, program)};
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
  // If a rank dies, the others must live on to name it.
  const std::string program = "--kill-on-bad-exit=0 \"${check[@]}\"";
  write_function(script, "start_check", start_lines(request, layout, launch, program, true));
  write_check(script, request);
  script.blank();
}

void write_start(Script& script, const SbatchRequest& request, const JobLayout& layout) {
  // A program of the user's starts where sailor-submit was called, so that its arguments may be relative paths.
  const std::string program = request.framework ? fmt::format("--chdir={} \"${{train[@]}}\"",
                                                              shell_quote(request.framework->directory.string()))
                                                : "\"${train[@]}\"";
  const std::vector<std::string> lines = start_lines(request, layout, "launch", program, false);
  if (layout.components.size() > 1)
    script.comment(fmt::format("One srun over all components{}: its ranks are those of one {}",
                               lines.size() > 1 ? ", a colon between their options" : "",
                               request.framework ? "training" : "MPI job"));
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
  if (request.framework) {
    script.comment("The job ends with the status of its program");
    script.line("exit \"$status\"");
    return;
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
  if (request.elastic) SAILOR_CHECK(check_elastic(*layout, request));

  Script script;
  script.line("#!/bin/bash");
  script.comment("Written by sailor-submit. To run it again: sbatch THIS_FILE");
  write_plans(script, plan, request);
  if (request.elastic)
    script.comment(
        fmt::format("An elastic training: it goes on without nodes that are lost, and with those that {} "
                    "brings",
                    companion_script_name));
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
  if (request.elastic) {
    write_elastic_training(script, request, layout->components.front());
    return script.take();
  }
  write_launches(script, plan, request, *layout);
  write_framework_settings(script, request);
  write_train(script, request);
  write_node_check(script, request, *layout);
  write_start(script, request, *layout);
  return script.take();
}

}  // namespace sailor::slurm
