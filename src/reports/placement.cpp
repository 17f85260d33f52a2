#include "reports/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;

namespace {

/// "0-3, 8"
std::string ranges(const std::vector<int>& ascending) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first < ascending.size();) {
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    parts.push_back(first == last ? std::to_string(ascending[first])
                                  : fmt::format("{}-{}", ascending[first], ascending[last]));
    first = last + 1;
  }
  return join(parts, ", ");
}

/// "pipeline 0: stages 0, 1 (tp2); pipelines 1-3: stage 0": tensor-parallel stages have their degree.
std::string what_is_held(const Plan& plan, const std::vector<RankRole>& roles, const std::vector<int>& ranks) {
  std::map<int, std::vector<std::string>> stages;  // by pipeline
  std::set<std::pair<int, int>> listed;            // pipeline and stage: context-parallel groups of one are together
  for (const int rank : ranks) {
    const RankRole& role = roles[static_cast<std::size_t>(rank)];
    if (role.tensor_parallel_index > 0 || !listed.emplace(role.pipeline, role.stage).second) continue;
    const int degree = stage_of(plan, role).tensor_parallel;
    stages[role.pipeline].push_back(degree == 1 ? std::to_string(role.stage)
                                                : fmt::format("{} (tp{})", role.stage, degree));
  }
  std::vector<std::string> parts;
  for (auto first = stages.begin(); first != stages.end();) {
    std::vector<int> alike;  // neighbouring pipelines that have the same stages here
    auto next = first;
    for (; next != stages.end() && next->second == first->second; ++next) alike.push_back(next->first);
    parts.push_back(fmt::format("{} {}: {} {}", alike.size() == 1 ? "pipeline" : "pipelines", ranges(alike),
                                first->second.size() == 1 ? "stage" : "stages", join(first->second, ", ")));
    first = next;
  }
  return join(parts, "; ");
}

}  // namespace

std::string placement_report(const Plan& plan, std::span<const PlacementNode> nodes,
                             std::span<const RankPlace> places) {
  const std::vector<RankRole> roles = rank_roles(plan);
  std::map<std::size_t, std::vector<int>> ranks_of;  // by node
  for (const RankRole& role : roles)
    ranks_of[static_cast<std::size_t>(places[static_cast<std::size_t>(role.rank)].node)].push_back(role.rank);
  std::vector<std::size_t> order;
  for (const auto& [node, ranks] : ranks_of) order.push_back(node);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return natural_less(nodes[a].name, nodes[b].name); });
  const bool switches =
      std::any_of(order.begin(), order.end(), [&](std::size_t node) { return !nodes[node].leaf_switch.empty(); });
  std::vector<Table::Column> columns{{"node", Align::left}, {"gpu", Align::left}, {"devices"}};
  if (switches) columns.push_back({"switch", Align::left});
  columns.push_back({"ranks", Align::left});
  columns.push_back({"holds", Align::left});
  Table table(std::move(columns));
  for (const std::size_t index : order) {
    const PlacementNode& node = nodes[index];
    const std::vector<int>& ranks = ranks_of[index];
    std::vector<std::string> row{node.name, node.gpu, fmt::format("{} of {}", ranks.size(), node.devices)};
    if (switches) row.push_back(node.leaf_switch);
    row.push_back(ranges(ranks));
    row.push_back(what_is_held(plan, roles, ranks));
    table.add_row(std::move(row));
  }
  return fmt::format("\nPlacement on the nodes that are there now (Slurm may choose others that are alike):\n{}",
                     table.to_string());
}

ordered_json placement_to_json(const Plan& plan, std::span<const PlacementNode> nodes,
                               std::span<const RankPlace> places) {
  ordered_json rows = ordered_json::array();
  for (const RankRole& role : rank_roles(plan)) {
    const RankPlace& place = places[static_cast<std::size_t>(role.rank)];
    const PlacementNode& node = nodes[static_cast<std::size_t>(place.node)];
    ordered_json row{{"rank", role.rank},      {"node", node.name},
                     {"device", place.device}, {"pipeline", role.pipeline},
                     {"stage", role.stage},    {"tensor_parallel_index", role.tensor_parallel_index}};
    if (!node.leaf_switch.empty()) row["switch"] = node.leaf_switch;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace sailor::reports
