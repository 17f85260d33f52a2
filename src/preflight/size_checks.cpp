// Compares what a job takes with the limits of its partitions, accounts and QOS.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/terminal.hpp"
#include "plan/node_placement.hpp"
#include "preflight/job_check_parts.hpp"
#include "preflight/limit_checks.hpp"
#include "slurm/words.hpp"

namespace sailor::preflight {

namespace {

void add_over(std::vector<Check>& checks, std::string what, std::string remedy) {
  checks.push_back({.name = "limits", .outcome = Outcome::fail, .what = std::move(what), .remedy = std::move(remedy)});
}

/// The job's QOS, if accounts are known.
const slurm::QosLimits* job_qos(const Subject& subject) {
  const slurm::Accounting* accounting = accounting_of(subject);
  if (accounting == nullptr) return nullptr;
  const std::string& first = subject.job.partitions.empty() ? std::string() : subject.job.partitions.front();
  return accounting->find_qos(qos_of(subject, accounting->find(account_of(subject), first)));
}

/// Limits of a partition itself, except those that the job's QOS overrides.
void compare_with_partition(const Subject& subject, const Partition& partition,
                            const std::vector<SizedComponent>& components, std::vector<Check>& checks) {
  const slurm::QosLimits* qos = job_qos(subject);
  const auto overrides = [&](const char* flag) { return qos != nullptr && qos->has_flag(flag); };
  int nodes = 0;
  for (const SizedComponent& one : components) {
    // Only components that have no other partition; with one partition, all of them.
    const bool here = one.need.partitions.size() == 1 && one.need.partitions.front() == partition.name;
    if (!here && subject.job.partitions.size() > 1) continue;
    nodes += one.component.nodes;
    if (const int cpus = one.component.tasks_per_node * one.request.cpus_per_rank;
        partition.most_cpus_per_node && cpus > *partition.most_cpus_per_node)
      add_over(checks,
               fmt::format("the job takes {} CPUs of a node, partition '{}' allows {}", cpus, partition.name,
                           *partition.most_cpus_per_node),
               "take fewer cores per rank, or use another partition");
  }
  if (partition.most_nodes && nodes > *partition.most_nodes && !overrides("PartitionMaxNodes"))
    add_over(checks,
             fmt::format("the plan takes {} nodes, partition '{}' allows {} per job", nodes, partition.name,
                         *partition.most_nodes),
             fmt::format("plan with --max-nodes {}, or use another partition", *partition.most_nodes));
  if (nodes > 0 && nodes < partition.least_nodes && !overrides("PartitionMinNodes"))
    add_over(checks,
             fmt::format("the plan takes {}, partition '{}' wants {} at least",
                         plural(static_cast<std::size_t>(nodes), "node"), partition.name, partition.least_nodes),
             "use another partition");
  if (subject.job.time && partition.time_limit && *subject.job.time > *partition.time_limit &&
      !overrides("PartitionTimeLimit"))
    add_over(checks,
             fmt::format("time {} is over the limit of partition '{}': {}", slurm::format_time_limit(*subject.job.time),
                         partition.name, slurm::format_time_limit(*partition.time_limit)),
             "use a smaller --time, or another partition");
}

/// The QOS in the order in which their limits count.
std::vector<const slurm::QosLimits*> qos_in_order(const slurm::Accounting& accounting, const std::string& job_qos,
                                                  const Partition* partition) {
  const slurm::QosLimits* of_job = accounting.find_qos(job_qos);
  const slurm::QosLimits* of_partition = partition == nullptr ? nullptr : accounting.find_qos(partition->qos);
  std::vector<const slurm::QosLimits*> order;
  if (of_job != nullptr && of_job->has_flag("OverPartQOS")) std::swap(of_job, of_partition);
  for (const slurm::QosLimits* one : {of_partition, of_job})
    if (one != nullptr && (order.empty() || order.front() != one)) order.push_back(one);
  return order;
}

void compare_with_accounts(const Subject& subject, const std::vector<SizedComponent>& components,
                           std::vector<Check>& checks) {
  const slurm::Accounting* accounting = accounting_of(subject);
  if (accounting == nullptr) return;
  const std::string first = subject.job.partitions.empty() ? "" : subject.job.partitions.front();
  const slurm::Association* association = accounting->find(account_of(subject), first);
  if (association == nullptr) return;  // check_access() reports it
  LimitQuestion question{.components = {},
                         .minutes = std::nullopt,
                         .accounting = *accounting,
                         .association = *association,
                         .facts = subject.facts};
  const std::string qos = qos_of(subject, association);
  bool has_default_time = false;
  for (const SizedComponent& one : components) {
    question.components.push_back({.amounts = one.amounts, .qos = qos_in_order(*accounting, qos, one.partition)});
    has_default_time = has_default_time || (one.partition != nullptr && one.partition->default_time);
  }
  question.time_is_open = !subject.job.time && !has_default_time;
  if (const auto time = time_of(subject)) question.minutes = static_cast<std::int64_t>(std::ceil(time->value() / 60.0));
  for (Check& check : compare_limits(question)) checks.push_back(std::move(check));
}

}  // namespace

Result<std::vector<SizedComponent>> size_job(const Subject& subject) {
  const auto needs = needs_of(*subject.plan, subject.cluster, subject.job.partitions, Availability::all);
  if (!needs) return fail(needs.error());
  std::vector<int> devices;
  for (const Need& need : *needs) devices.push_back(need.devices_per_node);
  const auto layout = slurm::lay_out_job(*subject.plan, devices);
  if (!layout) return fail(layout.error());
  std::vector<SizedComponent> components;
  for (const slurm::JobComponent& component : layout->components) {
    const Need& need = (*needs)[component.kind];
    const auto device = subject.gpus.find(need.gpu);
    if (!device) return fail(device.error());
    const std::string partition = need.partitions.empty() ? "" : need.partitions.front();
    const bool on_gpu = device->kind == DeviceKind::gpu;
    SizedComponent sized{.need = need,
                         .request = {},
                         .component = component,
                         .partition = subject.cluster.find_partition(partition),
                         .node = slurm::node_size(subject.cluster, partition, *device),
                         .whole_nodes = subject.site.launch.exclusive_nodes,
                         .grant = slurm::NodeGrant{},
                         .amounts = {}};
    if (sized.partition != nullptr && sized.partition->exclusive_nodes) sized.whole_nodes = true;
    sized.request.partition = partition;
    sized.request.device_kind = device->kind;
    sized.request.devices_per_node = need.devices_per_node;
    sized.request.cpus_per_rank = on_gpu ? need.cpus_per_device : 1;
    if (on_gpu) sized.request.gres_type = slurm::gres_type_to_ask_for(subject.cluster, partition, device->name);
    const auto& prediction = subject.plan->prediction;
    slurm::choose_memory(sized.request, subject.site.launch.memory_per_node,
                         prediction ? std::optional(prediction->peak_memory) : std::nullopt, component.tasks_per_node,
                         sized.whole_nodes, sized.node, sized.partition);
    sized.grant = slurm::grant_of(sized.request, component, sized.whole_nodes, sized.node, sized.partition);
    sized.amounts = slurm::amounts_of(sized.request, component, sized.whole_nodes, sized.node,
                                      sized.grant.value_or(slurm::NodeGrant{}), sized.partition,
                                      subject.facts.billing_takes_largest);
    components.push_back(std::move(sized));
  }
  return components;
}

std::vector<Check> check_limits(const Subject& subject) {
  if (subject.plan == nullptr) return {};
  const auto components = size_job(subject);
  if (!components)
    return {{.name = "limits",
             .outcome = Outcome::not_checked,
             .what = "how many nodes the plan takes is not known",
             .remedy = {}}};
  std::vector<Check> checks;
  for (const std::string& name : subject.job.partitions)
    if (const Partition* partition = subject.cluster.find_partition(name))
      compare_with_partition(subject, *partition, *components, checks);
  compare_with_accounts(subject, *components, checks);
  if (std::any_of(checks.begin(), checks.end(), [](const Check& one) { return one.outcome != Outcome::not_checked; }))
    return checks;
  std::int64_t nodes = 0;
  std::int64_t gpus = 0;
  std::int64_t cpus = 0;
  for (const SizedComponent& one : *components) {
    nodes += slurm::amount_of(one.amounts, "node");
    gpus += slurm::amount_of(one.amounts, "gres/gpu");
    cpus += slurm::amount_of(one.amounts, "cpu");
  }
  const bool all_known = !subject.facts.accounting || accounting_of(subject) != nullptr;
  const auto count = [](std::int64_t number, std::string_view noun) {
    return plural(static_cast<std::size_t>(number), noun);
  };
  const auto time = time_of(subject);
  checks.insert(
      checks.begin(),
      {.name = "limits",
       .outcome = Outcome::ok,
       .what = fmt::format("{}, {}{}, {}", count(nodes, "node"), gpus > 0 ? count(gpus, "GPU") : count(cpus, "CPU"),
                           time ? ", " + slurm::format_time_limit(*time) : ", no time limit",
                           !all_known       ? "within the partition's limits; those of accounts are not known"
                           : checks.empty() ? "within all limits"
                                            : "within the limits that could be compared"),
       .remedy = {}});
  return checks;
}

}  // namespace sailor::preflight
