// Facts about a step's nodes from Slurm's configuration files: their GPU type and their leaf switch.
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "cluster/host_list.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "slurm/conf_lines.hpp"
#include "slurm/node_records.hpp"
#include "slurm/task_role.hpp"
#include "slurm/topology.hpp"

namespace sailor::slurm {

namespace {

/// Calls `use` with the nodes of the step that are in a list of names; a list that cannot be read counts as empty.
void for_step_nodes(Step& step, const std::string& names, const std::function<void(StepNode&)>& use) {
  const auto expanded = expand_host_list(names);
  if (!expanded) return;
  const std::set<std::string_view> found(expanded->begin(), expanded->end());
  for (StepNode& node : step.nodes)
    if (found.contains(node.name)) use(node);
}

/// "gh200" and 4 of "gpu:gh200:4(S:0-3)"; "-" without GPUs; nothing when Slurm gives no type, or several.
void set_gpus(StepNode& node, const std::string& gres) {
  const auto gpus = parse_gpus(gres);
  node.gres_type.clear();
  node.gpus = 0;
  if (!gpus || gpus->size() > 1) return;
  node.gres_type = gpus->empty() ? "-" : gpus->front().type;
  node.gpus = gpus->empty() ? 0 : gpus->front().count;
}

}  // namespace

std::optional<std::filesystem::path> configuration_file(const std::filesystem::path& named) {
  if (!named.empty()) return named;
  std::error_code code;
  for (const char* usual : {"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"})
    if (std::filesystem::exists(usual, code)) return usual;
  return std::nullopt;
}

Result<void> add_node_facts(Step& step, const std::filesystem::path& slurm_conf) {
  std::string gres_of_all;  // NodeName=DEFAULT, for the lines below it
  SAILOR_CHECK(for_conf_lines(slurm_conf, [&](const ConfLine& line) {
    const auto name = line.find("nodename");
    if (name == line.end()) return;
    const auto own = line.find("gres");
    const std::string& gres = own == line.end() ? gres_of_all : own->second;
    if (equal_ignoring_case(name->second, "default"))
      gres_of_all = gres;
    else
      for_step_nodes(step, name->second, [&](StepNode& node) { set_gpus(node, gres); });
  }));
  const auto topology = load_topology(slurm_conf.parent_path());
  if (!topology) return fail(topology.error());
  for (StepNode& node : step.nodes)
    if (const auto leaf = topology->leaf_of_node.find(node.name); leaf != topology->leaf_of_node.end())
      node.leaf_switch = leaf->second;
  return {};
}

Result<void> add_node_facts(Step& step, const Lookup& environment) {
  const auto file = configuration_file(environment("SLURM_CONF").value_or(""));
  return file ? add_node_facts(step, *file) : Result<void>();
}

Result<std::string> node_facts_of_job(const Lookup& environment) {
  Step step;
  std::vector<std::string> lists;
  for (int group = 0;; ++group) {
    const auto list = environment(fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", group));
    if (!list) break;
    lists.push_back(*list);
  }
  if (const auto list = environment("SLURM_JOB_NODELIST"); lists.empty() && list) lists.push_back(*list);
  if (lists.empty())
    return fail(ErrorCode::unavailable, "this is no job of Slurm's: SLURM_JOB_NODELIST is not set",
                "call it in a job's script");
  for (const std::string& list : lists) {
    auto names = expand_host_list(list);
    if (!names) return fail(names.error(), "SLURM_JOB_NODELIST");
    for (std::string& name : *names) step.nodes.push_back({.name = std::move(name)});
  }
  const auto known = add_node_facts(step, environment);
  std::string text =
      "# What slurm.conf and the topology say of this job's nodes, for tasks that do not see them.\n"
      "schema_version = 1\n";
  if (!known) text += fmt::format("problem = {}\n", toml_quote(known.error().message()));
  for (const StepNode& node : step.nodes) {
    text += fmt::format("[[nodes]]\nname = {}\ngpus = {}\n", toml_quote(node.name), node.gpus);
    if (!node.gres_type.empty()) text += fmt::format("gres_type = {}\n", toml_quote(node.gres_type));
    if (!node.leaf_switch.empty()) text += fmt::format("switch = {}\n", toml_quote(node.leaf_switch));
  }
  return text;
}

Result<void> read_node_facts(Step& step, const std::filesystem::path& file) {
  const auto document = TomlDocument::load(file);
  if (!document) return fail(document.error());
  document->require_schema_version(1, TomlKind::node_facts);
  const std::string problem = document->root().text_or("problem", "");
  std::map<std::string, StepNode> known;
  for (const TomlTable& row : document->root().tables("nodes")) {
    StepNode node{.name = row.text("name"),
                  .gres_type = row.text_or("gres_type", ""),
                  .gpus = static_cast<int>(row.integer_or("gpus", 0, {.minimum = 0, .maximum = 4096})),
                  .leaf_switch = row.text_or("switch", "")};
    known.emplace(node.name, std::move(node));
  }
  SAILOR_CHECK(document->finish());
  for (StepNode& node : step.nodes)
    if (const auto found = known.find(node.name); found != known.end()) {
      node.gres_type = found->second.gres_type;
      node.gpus = found->second.gpus;
      node.leaf_switch = found->second.leaf_switch;
    }
  if (!problem.empty()) return fail(ErrorCode::unavailable, "on the host: " + problem);
  return {};
}

}  // namespace sailor::slurm
