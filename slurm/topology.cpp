#include "slurm/topology.hpp"

#include <fmt/format.h>

#include "cluster/host_list.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "slurm/conf_lines.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

namespace {

constexpr std::size_t largest_yaml = std::size_t{32} << 20;

}  // namespace

std::string_view to_string(TopologyKind kind) {
  switch (kind) {
    case TopologyKind::flat:
      return "flat";
    case TopologyKind::tree:
      return "tree";
    case TopologyKind::block:
      return "block";
  }
  return "?";
}

namespace {

/// "SwitchName=s0 Nodes=n[1-4]", "BlockName=b0 Nodes=n[1-4]"; other lines (BlockSizes=4) do not name nodes.
Result<void> add_line(const ConfLine& line, Topology& topology) {
  const auto value = [&](const char* key) {
    const auto found = line.find(key);
    return found == line.end() ? std::string() : found->second;
  };
  const bool block = line.contains("blockname");
  const std::string name = value(block ? "blockname" : "switchname");
  if (name.empty()) return {};
  topology.kind = block ? TopologyKind::block : TopologyKind::tree;
  const std::string nodes = value("nodes");
  // In scontrol's output a higher switch also names the nodes below it.
  if (nodes.empty() || line.contains("switches") || (line.contains("level") && value("level") != "0")) return {};
  auto names = expand_host_list(nodes);
  if (!names) return fail(names.error(), fmt::format("{} {}", block ? "block" : "switch", printable(name)));
  for (std::string& node : *names) topology.leaf_of_node.emplace(std::move(node), name);
  return {};
}

}  // namespace

Result<Topology> parse_topology(std::string_view text) {
  Topology topology;
  for (const std::string& line : split(text, '\n')) SAILOR_CHECK(add_line(parse_conf_line(line), topology));
  return topology;
}

Result<Topology> load_topology(const std::filesystem::path& folder) {
  std::error_code code;
  for (const char* name : {"topology.yaml", "topology.conf"}) {
    const std::filesystem::path file = folder / name;
    if (!std::filesystem::exists(file, code)) continue;
    if (file.extension() == ".yaml") {
      const auto text = read_text_file(file, largest_yaml);
      if (!text) return fail(text.error());
      auto topology = parse_topology_yaml(*text);
      if (!topology) return fail(topology.error(), file.parent_path().string());
      return topology;
    }
    Topology topology;
    Result<void> good;
    SAILOR_CHECK(for_conf_lines(file, [&](const ConfLine& line) {
      if (good) good = add_line(line, topology);
    }));
    if (!good) return fail(good.error(), file.string());
    return topology;
  }
  return Topology{};
}

}  // namespace sailor::slurm
