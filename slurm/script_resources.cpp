#include "slurm/script_resources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/stop_status.hpp"
#include "plan/node_placement.hpp"
#include "slurm/elastic_script.hpp"
#include "slurm/node_records.hpp"
#include "slurm/script_parts.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

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

}  // namespace

bool slurm_gives_gpus(const SbatchRequest& request, const NodeRequest& nodes) {
  return nodes.device_kind == DeviceKind::gpu && (request.one_gpu_per_task || request.placer == Placer::slurm);
}

int tasks_with_spares(const SbatchRequest& request, const JobComponent& component) {
  return request.spare_nodes == 0 ? component.tasks
                                  : (component.nodes + request.spare_nodes) * component.tasks_per_node;
}

namespace {

/// "512M"
std::string mebibytes(Bytes amount) {
  return fmt::format("{}M", std::max<std::int64_t>(static_cast<std::int64_t>(std::ceil(amount / mib)), 1));
}

/// Number of nodes and tasks.
Result<void> write_nodes(Script& script, const SbatchRequest& request, const JobComponent& component,
                         const std::string& reason) {
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
  return {};
}

/// The same for an elastic training: every node has the same number of tasks.
Result<void> write_elastic_nodes(Script& script, const SbatchRequest& request, const JobComponent& component,
                                 JobPart part) {
  const ElasticNodes& elastic = *request.elastic;
  const std::string ranks = count(component.tasks_per_node, "rank");
  if (part == JobPart::companion) {
    script.comment(fmt::format("A node with {}", ranks));
    SAILOR_CHECK(script.option("nodes", "1"));
  } else {
    script.comment(fmt::format("{} to {} with {} each: what can be had now, the rest brings {}", elastic.least,
                               count(elastic.most, "node"), ranks, companion_script_name));
    SAILOR_CHECK(script.option("nodes", fmt::format("{}-{}", elastic.least, elastic.most)));
  }
  return script.option("ntasks-per-node", std::to_string(component.tasks_per_node));
}

/// The signal to the ranks before the time limit.
Result<void> write_signal(Script& script, const SbatchRequest& request) {
  if (request.framework) {
    if (!request.stop_lead) return {};
    script.comment(
        fmt::format("{} s before the time limit the ranks get SIGTERM, on which a program may save its state",
                    request.stop_lead->value()));
    return script.option("signal", fmt::format("TERM@{}", static_cast<std::int64_t>(request.stop_lead->value())));
  }
  const bool kept = !request.checkpoints.empty();
  const auto lead = static_cast<std::int64_t>(std::ceil(stop_lead_of(request).value()));
  script.comment(fmt::format(
      "{} s before the time limit{} the ranks get SIGUSR2: sailor-train then writes {} and ends with status {}", lead,
      request.stop_lead_reason.empty() ? "" : fmt::format(" ({})", printable(request.stop_lead_reason)),
      kept ? "a checkpoint" : "its run file", kept ? stopped_with_checkpoint : stopped_without_checkpoint));
  return script.option("signal", fmt::format("USR2@{}", lead));
}

/// The signal before the time limit on which a companion job leaves the training.
Result<void> write_leaving_signal(Script& script, const SbatchRequest& request) {
  const auto lead = static_cast<std::int64_t>(std::ceil(stop_lead_of(request).value()));
  script.comment(fmt::format(
      "{} s before the time limit this script gets SIGUSR2: it has the training leave this node, without a loss",
      lead));
  return script.option("signal", fmt::format("B:USR2@{}", lead));
}

/// Options that every component of a job needs for itself.
Result<void> write_component(Script& script, const SbatchRequest& request, const JobComponent& component,
                             const std::string& reason, JobPart part) {
  const NodeRequest& nodes = request.nodes[component.kind];
  if (!nodes.partition.empty()) SAILOR_CHECK(script.option("partition", nodes.partition));
  if (!request.account.empty()) SAILOR_CHECK(script.option("account", request.account));
  if (!request.reservation.empty()) SAILOR_CHECK(script.option("reservation", request.reservation));
  if (!request.qos.empty()) SAILOR_CHECK(script.option("qos", request.qos));
  if (request.time_limit) SAILOR_CHECK(script.option("time", format_time_limit(*request.time_limit)));
  script.blank();
  SAILOR_CHECK(request.elastic ? write_elastic_nodes(script, request, component, part)
                               : write_nodes(script, request, component, reason));
  SAILOR_CHECK(script.option("cpus-per-task", std::to_string(nodes.cpus_per_rank)));
  if (nodes.device_kind == DeviceKind::gpu) {
    script.comment(slurm_gives_gpus(request, nodes)
                       ? "One GPU for each rank of a node"
                       : "One GPU for each rank of a node; the step has all of them, and each rank uses its own");
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
  if (!request.framework || request.stop_lead) script.blank();
  SAILOR_CHECK(part == JobPart::companion ? write_leaving_signal(script, request) : write_signal(script, request));
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

/// Writes the options for the case that the job is stopped or a node fails: requeueing, and what becomes of the log.
Result<void> write_continuation(Script& script, const SbatchRequest& request, JobPart part) {
  if (part == JobPart::companion) {
    script.comment("Where it ends, the training's job hands in another one");
    script.line("#SBATCH --no-requeue");
  } else if (request.continuation == Continuation::requeue) {
    script.comment("The job may go back into the queue, and adds to its log instead of starting it anew");
    script.line("#SBATCH --requeue");
  } else if (request.continuation == Continuation::resubmit) {
    script.comment("It hands in the job that goes on after it; requeued by Slurm as well it would run twice");
    script.line("#SBATCH --no-requeue");
  } else {
    script.comment("A job that is requeued adds to its log instead of starting it anew");
  }
  SAILOR_CHECK(script.option("open-mode", "append"));
  if (request.elastic && part != JobPart::companion) {
    script.comment("A node that fails does not end the job, unless this script runs on it: then it starts anew");
    script.line("#SBATCH --no-kill");
  }
  return {};
}

}  // namespace

Result<void> write_resources(Script& script, const Plan& plan, const SbatchRequest& request, const JobLayout& layout,
                             JobPart part) {
  script.comment(
      layout.components.size() == 1
          ? "What Slurm is asked for"
          : fmt::format("What Slurm is asked for: a heterogeneous job of {} components, which start together",
                        layout.components.size()));
  SAILOR_CHECK(
      script.option("job-name", part == JobPart::companion ? request.job_name + "-companion" : request.job_name));
  if (!request.comment.empty()) SAILOR_CHECK(script.option("comment", request.comment));
  if (part != JobPart::companion) {  // the training's own job has the licenses, and sends mail
    if (!request.licenses.empty()) SAILOR_CHECK(script.option("licenses", request.licenses));
    if (!request.mail_type.empty()) SAILOR_CHECK(script.option("mail-type", request.mail_type));
    if (!request.mail_user.empty()) SAILOR_CHECK(script.option("mail-user", request.mail_user));
  }
  SAILOR_CHECK(write_continuation(script, request, part));
  const bool array = !request.array.empty();
  if (array) {
    script.comment(request.array_limit > 0 ? "A task for each plan, so many at once as stand behind the %"
                                           : "A task for each plan; %N behind the range would let only N of them run "
                                             "at once (--array-limit)");
    SAILOR_CHECK(
        script.option("array", fmt::format("0-{}{}", request.array.size() - 1,
                                           request.array_limit > 0 ? fmt::format("%{}", request.array_limit) : "")));
  }
  const char* name = part == JobPart::companion ? "companion-" : "slurm-";
  const std::string log = escape_percent((request.run_directory / name).string()) + (array ? "%A_%a.out" : "%j.out");
  const bool own_log = request.log_path.empty() || part == JobPart::companion;
  SAILOR_CHECK(script.option("output", own_log ? log : request.log_path.string()));
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
    // Components that wait for jobs of the same name would wait for each other.
    if (i > 0 && request.continuation == Continuation::resubmit)
      SAILOR_CHECK(script.option("job-name", fmt::format("{}.{}", request.job_name, i)));
    SAILOR_CHECK(
        write_component(script, request, layout.components[i], reason_for(plan, layout, layout.components[i]), part));
  }
  return {};
}

}  // namespace sailor::slurm
