// Checks of what a job requests besides nodes: licenses, and components that can communicate.
#include <fmt/format.h>

#include <algorithm>

#include "plan/node_placement.hpp"
#include "preflight/preflight.hpp"
#include "slurm/job_layout.hpp"

namespace sailor::preflight {

std::vector<Check> check_licenses(const Subject& subject) {
  const std::string& wanted = subject.job.licenses;
  if (wanted.empty()) return {};
  const auto all = slurm::parse_licenses(wanted);
  if (!all)
    return {{.name = "licenses", .outcome = Outcome::fail, .what = all.error().what, .remedy = all.error().hint}};
  if (subject.facts.version.empty())  // slurmctld was not asked
    return {{.name = "licenses", .outcome = Outcome::not_checked, .what = "Slurm was not asked", .remedy = {}}};
  std::vector<Check> checks;
  for (const auto& [name, count] : *all) {
    const auto& known = subject.facts.licenses;
    const auto found = std::find_if(known.begin(), known.end(), [&, &name = name](const auto& license) {
      return license.name == name || license.name.substr(0, license.name.find('@')) == name;
    });
    Check check{.name = "licenses", .outcome = Outcome::ok, .what = {}, .remedy = {}};
    if (found == known.end()) {
      check.outcome = Outcome::fail;
      check.what = fmt::format("the cluster has no license '{}'", name);
      check.remedy = "`scontrol show licenses` lists those that it has";
    } else if (count > found->total) {
      check.outcome = Outcome::fail;
      check.what = fmt::format("{} licenses '{}' wanted, the cluster has {}", count, name, found->total);
      check.remedy = "ask for fewer: the job would never start";
    } else if (count > found->total - found->taken) {
      check.outcome = Outcome::warn;
      check.what = fmt::format("{} licenses '{}' wanted, {} of {} free now", count, name,
                               std::max(found->total - found->taken, 0), found->total);
      check.remedy = "the job waits until others give theirs back";
    } else {
      check.what = fmt::format("{} of '{}', {} of {} free", count, name, found->total - found->taken, found->total);
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

std::vector<Check> check_components(const Subject& subject) {
  if (subject.plan == nullptr) return {};
  const auto needs = needs_of(*subject.plan, subject.cluster, subject.job.partitions, Availability::all);
  if (!needs) return {};
  std::vector<int> devices_per_node;
  for (const auto& [gpu, zone] : kinds_of(*subject.plan)) {
    const auto need = std::find_if(needs->begin(), needs->end(), [&, &gpu = gpu, &zone = zone](const Need& one) {
      return one.gpu == gpu && one.zone == zone;
    });
    devices_per_node.push_back(need == needs->end() ? 0 : need->devices_per_node);
  }
  const auto layout = slurm::lay_out_job(*subject.plan, devices_per_node);
  if (!layout) return {};
  const auto problem = slurm::component_problem(layout->components.size(), subject.facts, subject.site);
  if (!problem) return {};
  return {{.name = "components", .outcome = Outcome::fail, .what = problem->what, .remedy = problem->hint}};
}

}  // namespace sailor::preflight
