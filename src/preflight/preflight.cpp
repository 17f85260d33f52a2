#include "preflight/preflight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "slurm/node_records.hpp"

namespace sailor::preflight {

slurm::StartQuestion start_question(const Need& need, const Job& job, const slurm::Site& site,
                                    const GpuCatalogue& gpus) {
  const auto type = gpus.find(need.gpu);
  const bool has_gpus = type && type->kind == DeviceKind::gpu;
  const std::vector<std::string>& where = need.partitions.empty() ? job.partitions : need.partitions;
  std::string partitions;
  for (const std::string& name : where) partitions += (partitions.empty() ? "" : ",") + name;
  return {.partition = partitions,
          .account = job.account,
          .qos = job.qos,
          .constraint = site.launch.constraint,
          .reservation = job.reservation,
          .nodes = need.nodes,
          .tasks_per_node = need.most_ranks,
          .cpus_per_task = has_gpus ? need.cpus_per_device : 1,
          .gpus_per_node = has_gpus ? need.devices_per_node : 0,
          .gres_type = has_gpus ? need.gres_type : "",
          .time_limit = job.time,
          .exclusive_nodes = site.launch.exclusive_nodes};
}

std::vector<Check> run_checks(const Subject& subject) {
  std::vector<Check> checks;
  const auto add = [&](std::vector<Check> more) {
    checks.insert(checks.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  add(check_partitions(subject));
  add(check_access(subject));
  if (subject.no_plan)
    checks.push_back(
        {.name = "plan", .outcome = Outcome::fail, .what = subject.no_plan->what, .remedy = subject.no_plan->hint});
  add(check_limits(subject));
  add(check_nodes(subject));
  add(check_gres(subject));
  add(check_licenses(subject));
  add(check_components(subject));
  add(check_program(subject));
  add(check_profile(subject));
  add(check_memory(subject));
  add(check_time(subject));
  add(check_reservations(subject));
  add(check_start(subject));
  add(check_paths(subject));
  add(check_communicators(subject));
  add(check_mpi(subject));
  return checks;
}

Outcome worst(const std::vector<Check>& checks) {
  Outcome outcome = Outcome::ok;
  for (const Check& check : checks)
    if (check.outcome != Outcome::not_checked) outcome = std::max(outcome, check.outcome);
  return outcome;
}

std::string report(const std::vector<Check>& checks) {
  std::size_t widest = 0;
  for (const Check& check : checks) widest = std::max(widest, check.name.size());
  std::string text;
  for (const Check& check : checks) {
    const std::string line =
        fmt::format("{:<11}  {:<{}}  {}", to_string(check.outcome), check.name, widest, slurm::printable(check.what));
    text += line + "\n";
    if (!check.remedy.empty())
      text += fmt::format("{:<11}  {:<{}}  -> {}\n", "", "", widest, slurm::printable(check.remedy));
  }
  const auto count = [&](Outcome outcome) {
    return std::count_if(checks.begin(), checks.end(), [&](const Check& check) { return check.outcome == outcome; });
  };
  return text + fmt::format("\n{} ok, {} to look at, {} failed, {} not checked\n", count(Outcome::ok),
                            count(Outcome::warn), count(Outcome::fail), count(Outcome::not_checked));
}

}  // namespace sailor::preflight
