#include "slurm/job_layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "plan/placement.hpp"

namespace sailor::slurm {

Result<JobLayout> lay_out_job(const Plan& plan, const std::vector<int>& devices_per_node) {
  const auto kinds = kinds_of(plan);
  NodeSizes sizes;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    if (kind >= devices_per_node.size() || devices_per_node[kind] < 1)
      return fail(ErrorCode::invalid_input, fmt::format("nothing is known about nodes with {}", kinds[kind].first));
    sizes.add(kinds[kind].first, kinds[kind].second, devices_per_node[kind], 0);
  }
  const auto nodes = nodes_of_ranks(plan, sizes);
  if (!nodes) return fail(nodes.error());
  struct Node {
    std::size_t kind = 0;
    int ranks = 0;
  };
  std::vector<Node> used;
  for (const RankRole& role : rank_roles(plan)) {
    const Stage& stage = stage_of(plan, role);
    const auto node = static_cast<std::size_t>((*nodes)[static_cast<std::size_t>(role.rank)]);
    if (node >= used.size()) used.resize(node + 1);
    used[node].kind = static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), std::pair(stage.gpu, stage.zone)) -
                                               kinds.begin());
    ++used[node].ranks;
  }
  JobLayout layout;
  const bool in_order = kinds.size() == 1 && std::is_sorted(nodes->begin(), nodes->end());
  const int most = used.front().ranks;
  const bool full = std::all_of(used.begin(), used.end() - 1, [&](const Node& node) { return node.ranks == most; });
  if (in_order && full && used.back().ranks <= most) {
    layout.in_plan_order = true;
    layout.components.push_back({.kind = 0,
                                 .nodes = static_cast<int>(used.size()),
                                 .tasks_per_node = most,
                                 .packed = used.back().ranks != most,
                                 .tasks = plan.ranks()});
    return layout;
  }
  std::stable_sort(used.begin(), used.end(),
                   [](const Node& a, const Node& b) { return a.kind != b.kind ? a.kind < b.kind : a.ranks > b.ranks; });
  for (const Node& node : used) {
    if (layout.components.empty() || layout.components.back().kind != node.kind ||
        layout.components.back().tasks_per_node != node.ranks)
      layout.components.push_back({.kind = node.kind, .nodes = 0, .tasks_per_node = node.ranks});
    ++layout.components.back().nodes;
    layout.components.back().tasks += node.ranks;
  }
  return layout;
}

Result<JobLayout> lay_out_job(const Plan& plan, const SbatchRequest& request) {
  std::vector<int> devices_per_node;
  for (const NodeRequest& nodes : request.nodes) devices_per_node.push_back(nodes.devices_per_node);
  return lay_out_job(plan, devices_per_node);
}

std::optional<Error> component_problem(std::size_t components, const ControllerFacts& facts, const Site& site) {
  const bool slingshot =
      facts.switch_type.find("slingshot") != std::string::npos || site.check.fabric_provider == "cxi";
  if (components < 2 || !slingshot || facts.version.empty()) return std::nullopt;
  if (facts.at_least(23, 2, 3)) return std::nullopt;
  return Error{
      .code = ErrorCode::unavailable,
      .what = fmt::format("the plan needs a heterogeneous job of {} components, which do not reach each other on "
                          "Slingshot with Slurm {}: before 23.02.3 each has a network identity of its own",
                          components, printable(facts.version)),
      .hint = "plan for one kind of node (--pin gpu=NAME), whose groups fill their nodes"};
}

}  // namespace sailor::slurm
