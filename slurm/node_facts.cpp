// What Slurm's configuration files say of a step's nodes: their GPU type and their leaf switch.
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "cluster/host_list.hpp"
#include "core/files.hpp"
#include "core/parse.hpp"
#include "core/text.hpp"
#include "slurm/node_records.hpp"
#include "slurm/task_role.hpp"

namespace sailor::slurm {

namespace {

constexpr std::size_t largest_file = std::size_t{32} << 20;
constexpr int deepest_include = 8;

/// A line of a configuration file: "NodeName=gh[1-4] Gres=gpu:gh200:4", keys in lower case.
using Line = std::map<std::string, std::string>;

/// Words of the form key=value, the value in double quotes if it holds blanks.
Line parse_line(std::string_view text) {
  Line line;
  while (true) {
    text = trimmed(text);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return line;
    const std::string key = to_lower(trimmed(text.substr(0, equals)));
    text = trimmed(text.substr(equals + 1));
    const bool quoted = text.starts_with('"');
    if (quoted) text.remove_prefix(1);
    const std::size_t end = quoted ? text.find('"') : text.find_first_of(" \t");
    line[key] = std::string(text.substr(0, end));
    if (end == std::string_view::npos) return line;
    text.remove_prefix(end + 1);
  }
}

/// Calls `use` with every line of the file and of those that it includes.
Result<void> for_lines(const std::filesystem::path& file, int depth, const std::function<void(const Line&)>& use) {
  const auto text = read_text_file(file, largest_file);
  if (!text) return fail(text.error());
  std::string joined;  // a backslash at the end joins lines
  for (const std::string& raw : split(*text, '\n')) {
    std::string_view line = trimmed(std::string_view(raw).substr(0, raw.find('#')));
    const bool goes_on = line.ends_with('\\');
    if (goes_on) line.remove_suffix(1);
    joined += line;
    if (goes_on) continue;
    const std::string whole = std::exchange(joined, {});
    const std::size_t blank = whole.find_first_of(" \t");
    if (blank != std::string::npos && equal_ignoring_case(std::string_view(whole).substr(0, blank), "include")) {
      const std::filesystem::path other(std::string(trimmed(std::string_view(whole).substr(blank))));
      if (depth < deepest_include)
        SAILOR_CHECK(for_lines(other.is_absolute() ? other : file.parent_path() / other, depth + 1, use));
      continue;
    }
    use(parse_line(whole));
  }
  return {};
}

/// Calls `use` with the nodes of the step that a list of names holds; a list that cannot be read holds none.
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
  SAILOR_CHECK(for_lines(slurm_conf, 0, [&](const Line& line) {
    const auto name = line.find("nodename");
    if (name == line.end()) return;
    const auto own = line.find("gres");
    const std::string& gres = own == line.end() ? gres_of_all : own->second;
    if (equal_ignoring_case(name->second, "default"))
      gres_of_all = gres;
    else
      for_step_nodes(step, name->second, [&](StepNode& node) { set_gpus(node, gres); });
  }));
  // Where there is no such file the network is flat, as far as Slurm knows.
  std::error_code code;
  const std::filesystem::path topology = slurm_conf.parent_path() / "topology.conf";
  if (!std::filesystem::exists(topology, code)) return {};
  (void)for_lines(topology, 0, [&](const Line& line) {
    const auto name = line.find("switchname");
    const auto nodes = line.find("nodes");
    if (name != line.end() && nodes != line.end())
      for_step_nodes(step, nodes->second, [&](StepNode& node) { node.leaf_switch = name->second; });
  });
  return {};
}

Result<void> add_node_facts(Step& step, const Lookup& environment) {
  const auto file = configuration_file(environment("SLURM_CONF").value_or(""));
  return file ? add_node_facts(step, *file) : Result<void>();
}

}  // namespace sailor::slurm
