#include "apps/submit/job_arrays.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "core/text.hpp"
#include "slurm/job_layout.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

namespace {

bool same_layout(const Submission& a, const Submission& b) {
  const auto first = slurm::lay_out_job(a.plan, a.request);
  const auto second = slurm::lay_out_job(b.plan, b.request);
  const auto partition_of = [](const slurm::NodeRequest& nodes) { return nodes.partition; };
  return a.kinds == b.kinds && first && second && first->components == second->components &&
         first->in_plan_order == second->in_plan_order &&
         std::ranges::equal(a.request.nodes, b.request.nodes, {}, partition_of, partition_of);
}

/// Takes the memory request of `other` if it is larger.
void take_larger_memory(const slurm::NodeRequest& other, slurm::NodeRequest& nodes) {
  const auto all_of_a_node = [](const slurm::NodeRequest& one) { return one.memory_per_node == Bytes(0); };
  if (all_of_a_node(nodes)) return;
  if (all_of_a_node(other) || other.memory_per_cpu > nodes.memory_per_cpu ||
      other.memory_per_rank > nodes.memory_per_rank || other.memory_per_node > nodes.memory_per_node) {
    nodes.memory_per_cpu = other.memory_per_cpu;
    nodes.memory_per_rank = other.memory_per_rank;
    nodes.memory_per_node = other.memory_per_node;
    nodes.memory_reason = other.memory_reason;
  }
}

/// Sets the folder of each plan, below `top`.
Result<void> find_folders(const fs::path& top, std::vector<Submission>& all) {
  std::set<std::string> names;
  for (Submission& one : all) {
    const auto layout = slurm::lay_out_job(one.plan, one.request);
    if (one.kinds.size() > 1 || !layout || layout->components.size() > 1)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{} needs several kinds of nodes: Slurm has no arrays of heterogeneous jobs", one.path),
                  "submit it by itself");
    const std::string name = fs::path(one.path).stem().string();
    if (name.starts_with('.') || name.ends_with(".sbatch"))
      return fail(ErrorCode::invalid_input, fmt::format("'{}' can be no folder of a plan", name), "rename the plan");
    if (!names.insert(name).second)
      return fail(ErrorCode::invalid_input, fmt::format("two plans are called {}: each has a folder of its name", name),
                  "rename one of them");
    one.request.run_directory = top / name;
    one.request.plan_path = top / name / "plan.toml";
  }
  return {};
}

/// Turns the first request into that of a job array of all, which have the same layout.
void make_array(const SubmitOptions& options, const fs::path& top, std::vector<Submission>& all) {
  slurm::SbatchRequest& request = all.front().request;
  for (const Submission& one : all) {
    request.array.push_back({.directory = one.request.run_directory, .plan = describe(one.plan)});
    request.stop_lead = std::max(request.stop_lead, one.request.stop_lead);
    for (std::size_t kind = 0; kind < request.nodes.size(); ++kind)
      take_larger_memory(one.request.nodes[kind], request.nodes[kind]);
  }
  request.run_directory = top;
  request.plan_path = "plan.toml";
  if (options.checkpoints.has()) request.checkpoints = *options.checkpoints;
  if (options.comment.has()) return;
  std::vector<std::string> prints;
  for (const Submission& one : all) prints.push_back(plan_fingerprint(one.plan));
  if (!request.comment.empty()) request.comment = "sailor plans " + name_some(prints);
}

}  // namespace

Result<std::vector<std::vector<Submission>>> make_arrays(const SubmitOptions& options, std::vector<Submission> all) {
  const fs::path top = from_here(options.run_directory.has() ? *options.run_directory : "run-array");
  SAILOR_CHECK(find_folders(top, all));
  std::vector<std::vector<Submission>> arrays;
  for (Submission& one : all) {
    const auto alike =
        std::find_if(arrays.begin(), arrays.end(), [&](const auto& array) { return same_layout(array.front(), one); });
    (alike == arrays.end() ? arrays.emplace_back() : *alike).push_back(std::move(one));
  }
  std::set<std::string> scripts;
  for (std::vector<Submission>& array : arrays) {
    make_array(options, top, array);
    if (arrays.size() == 1) break;
    const auto layout = slurm::lay_out_job(array.front().plan, array.front().request);
    const std::string name = fmt::format("job-{}-nodes", layout->components.front().nodes);
    std::string script = name;
    for (int number = 2; !scripts.insert(script).second; ++number) script = fmt::format("{}-{}", name, number);
    array.front().request.script_path = top / (script + ".sbatch");
  }
  return arrays;
}

}  // namespace sailor::apps
