#include "cluster/cluster.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"

namespace sailor {

namespace {

const std::vector<std::string_view> state_names{"idle", "mixed", "allocated", "unavailable"};

std::string quoted_list(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(toml_quote(name));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

/// TOML wants a point or an exponent in a float.
std::string toml_number(double value) {
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

Partition read_partition(const TomlTable& row) {
  Partition partition;
  partition.name = row.text("name");
  partition.up = row.boolean_or("up", true);
  partition.is_default = row.boolean_or("default", false);
  if (row.has("time_limit_s")) partition.time_limit = Seconds(row.number("time_limit_s", {.minimum = 1.0}));
  if (row.has("most_nodes"))
    partition.most_nodes = static_cast<int>(row.integer("most_nodes", {.minimum = 1, .maximum = 1 << 20}));
  return partition;
}

NodeGroup read_group(const TomlTable& row, const GpuCatalogue& catalogue) {
  NodeGroup group;
  group.nodes = row.texts_or("nodes", {});
  group.count =
      static_cast<int>(row.integer_or("count", static_cast<std::int64_t>(std::max<std::size_t>(group.nodes.size(), 1)),
                                      {.minimum = 1, .maximum = 1 << 20}));
  if (!group.nodes.empty() && group.nodes.size() != static_cast<std::size_t>(group.count))
    row.reject("count", fmt::format("'count' is {} but {} nodes are named", group.count, group.nodes.size()));
  if (std::set<std::string>(group.nodes.begin(), group.nodes.end()).size() != group.nodes.size())
    row.reject("nodes", "a node is named twice");
  const std::string gpu = row.text("gpu");
  if (auto type = catalogue.find(gpu))
    group.gpu = type->name;
  else if (!gpu.empty())
    row.reject("gpu", type.error().what, type.error().hint);
  group.gpus_per_node = static_cast<int>(row.integer("gpus_per_node", {.minimum = 1, .maximum = 4096}));
  group.cpus_per_node =
      static_cast<int>(row.integer_or("cpus_per_node", group.gpus_per_node, {.minimum = 1, .maximum = 65536}));
  group.memory_per_node = Bytes(row.number("memory_per_node_bytes", {.minimum = 1.0, .maximum = 1e16}));
  group.state = static_cast<NodeState>(row.choice_or("state", state_names, 0));
  group.state_reason = row.text_or("state_reason", "");
  group.zone = row.text_or("zone", "");
  group.partitions = row.texts_or("partitions", {});
  return group;
}

Zone read_zone(const TomlTable& row, const GpuCatalogue& catalogue) {
  Zone zone;
  zone.name = row.text("name");
  zone.region = row.text_or("region", zone.name);
  for (const TomlTable& price : row.tables("prices")) {
    const std::string gpu = price.text("gpu");
    const UsdPerHour usd(price.number("usd_per_hour", {.minimum = 0.0}));
    if (auto type = catalogue.find(gpu))
      zone.prices.emplace_back(type->name, usd);
    else if (!gpu.empty())
      price.reject("gpu", type.error().what, type.error().hint);
  }
  return zone;
}

}  // namespace

std::string_view to_string(NodeState state) { return state_names[static_cast<std::size_t>(state)]; }

const Partition* Cluster::find_partition(std::string_view partition) const {
  const auto found = std::find_if(partitions.begin(), partitions.end(),
                                  [&](const Partition& other) { return other.name == partition; });
  return found == partitions.end() ? nullptr : &*found;
}

std::vector<NodeGroup> Cluster::usable(std::string_view partition, bool only_idle) const {
  std::vector<NodeGroup> found;
  for (const NodeGroup& group : groups) {
    const bool here = partition.empty() ||
                      std::find(group.partitions.begin(), group.partitions.end(), partition) != group.partitions.end();
    const bool ready = only_idle ? group.state == NodeState::idle : group.state != NodeState::unavailable;
    if (here && ready) found.push_back(group);
  }
  return found;
}

Bytes device_memory(const GpuType& type, const NodeGroup& group) {
  return type.kind == DeviceKind::gpu ? type.memory : group.memory_per_node / group.gpus_per_node;
}

UsdPerHour device_price(const Cluster& cluster, const GpuType& type, std::string_view zone) {
  for (const Zone& entry : cluster.zones)
    if (entry.name == zone)
      for (const auto& [gpu, price] : entry.prices)
        if (gpu == type.name) return price;
  return type.price;
}

Result<Cluster> parse_cluster(std::string_view text, std::string_view source_name, const GpuCatalogue& catalogue) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(1);
  const TomlTable root = document->root();
  Cluster cluster;
  cluster.origin = source_name;
  cluster.name = root.text("name");

  std::set<std::string> partition_names;
  for (const TomlTable& row : root.tables("partitions")) {
    cluster.partitions.push_back(read_partition(row));
    if (!partition_names.insert(cluster.partitions.back().name).second)
      row.reject("name", fmt::format("partition '{}' is described twice", cluster.partitions.back().name));
  }
  std::set<std::string> zone_names;
  for (const TomlTable& row : root.tables("zones")) {
    cluster.zones.push_back(read_zone(row, catalogue));
    if (!zone_names.insert(cluster.zones.back().name).second)
      row.reject("name", fmt::format("zone '{}' is described twice", cluster.zones.back().name));
  }
  auto known_zone = [&](const TomlTable& row, std::string_view key, const std::string& zone) {
    if (!zone.empty() && !zone_names.contains(zone))
      row.reject(key, fmt::format("zone '{}' is not described", zone),
                 fmt::format("add a [[zones]] with this name; known: {}", fmt::join(zone_names, ", ")));
  };
  for (const TomlTable& row : root.tables("links")) {
    ZoneLink link{.from = row.text("from"),
                  .to = row.text("to"),
                  .bandwidth = {},
                  .latency = Seconds(row.number_or("latency_s", 0.0, {.minimum = 0.0})),
                  .egress_usd_per_byte = row.number_or("egress_usd_per_byte", 0.0, {.minimum = 0.0})};
    if (row.has("bandwidth_bytes_per_s"))
      link.bandwidth = BytesPerSecond(row.number("bandwidth_bytes_per_s", {.minimum = 1.0}));
    else if (row.has("latency_s"))
      row.reject("latency_s", "'latency_s' is there without bandwidth_bytes_per_s",
                 "add the bandwidth; without both, times are those of the profile");
    else if (!row.has("egress_usd_per_byte"))
      row.reject(
          "from",
          fmt::format("the link {} - {} has neither bandwidth_bytes_per_s nor egress_usd_per_byte", link.from, link.to),
          "add one of them, or remove the link: times are then those of the profile");
    known_zone(row, "from", link.from);
    known_zone(row, "to", link.to);
    cluster.links.push_back(std::move(link));
  }
  std::set<std::string> node_names;
  for (const TomlTable& row : root.tables("nodes")) {
    NodeGroup group = read_group(row, catalogue);
    known_zone(row, "zone", group.zone);
    for (const std::string& partition : group.partitions)
      if (!partition_names.contains(partition))
        row.reject("partitions", fmt::format("partition '{}' is not described", partition),
                   fmt::format("add a [[partitions]] with this name; known: {}", fmt::join(partition_names, ", ")));
    for (const std::string& node : group.nodes)
      if (!node_names.insert(node).second) row.reject("nodes", fmt::format("node '{}' is described twice", node));
    cluster.groups.push_back(std::move(group));
  }
  if (cluster.groups.empty()) root.reject("nodes", "the cluster has no nodes", "add at least one [[nodes]]");
  SAILOR_CHECK(document->finish());
  return cluster;
}

Result<Cluster> load_cluster(const std::filesystem::path& path, const GpuCatalogue& catalogue) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_cluster(*text, path.string(), catalogue);
}

std::string cluster_to_toml(const Cluster& cluster) {
  std::string text = "# A cluster as Sailor sees it.\nschema_version = 1\n";
  text += fmt::format("name = {}\n", toml_quote(cluster.name));
  for (const Partition& partition : cluster.partitions) {
    text += fmt::format("\n[[partitions]]\nname = {}\nup = {}\ndefault = {}\n", toml_quote(partition.name),
                        partition.up, partition.is_default);
    if (partition.time_limit) text += fmt::format("time_limit_s = {}\n", toml_number(partition.time_limit->value()));
    if (partition.most_nodes) text += fmt::format("most_nodes = {}\n", *partition.most_nodes);
  }
  for (const Zone& zone : cluster.zones) {
    text += fmt::format("\n[[zones]]\nname = {}\nregion = {}\n", toml_quote(zone.name), toml_quote(zone.region));
    for (const auto& [gpu, price] : zone.prices)
      text +=
          fmt::format("[[zones.prices]]\ngpu = {}\nusd_per_hour = {}\n", toml_quote(gpu), toml_number(price.value()));
  }
  for (const ZoneLink& link : cluster.links) {
    text += fmt::format("\n[[links]]\nfrom = {}\nto = {}\n", toml_quote(link.from), toml_quote(link.to));
    if (link.bandwidth)
      text += fmt::format("bandwidth_bytes_per_s = {}\nlatency_s = {}\n", toml_number(link.bandwidth->value()),
                          toml_number(link.latency.value()));
    text += fmt::format("egress_usd_per_byte = {}\n", toml_number(link.egress_usd_per_byte));
  }
  for (const NodeGroup& group : cluster.groups) {
    text += "\n[[nodes]]\n";
    if (!group.nodes.empty()) text += fmt::format("nodes = {}\n", quoted_list(group.nodes));
    text += fmt::format(
        "count = {}\ngpu = {}\ngpus_per_node = {}\ncpus_per_node = {}\nmemory_per_node_bytes = {}\nstate = {}\n",
        group.count, toml_quote(group.gpu), group.gpus_per_node, group.cpus_per_node,
        toml_number(group.memory_per_node.value()), toml_quote(to_string(group.state)));
    if (!group.state_reason.empty()) text += fmt::format("state_reason = {}\n", toml_quote(group.state_reason));
    if (!group.zone.empty()) text += fmt::format("zone = {}\n", toml_quote(group.zone));
    if (!group.partitions.empty()) text += fmt::format("partitions = {}\n", quoted_list(group.partitions));
  }
  return text;
}

}  // namespace sailor
