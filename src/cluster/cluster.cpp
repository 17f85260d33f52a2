#include "cluster/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "cluster/fields.hpp"
#include "cluster/host_list.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"

namespace sailor {

namespace {

const std::vector<std::string_view> state_names{"idle", "mixed", "allocated", "unavailable"};
const std::vector<std::string_view> availability_names{"idle", "up", "all"};

std::string quoted_list(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(toml_quote(name));
  return fmt::format("[{}]", join(quoted, ", "));
}

std::string list_unless_empty(std::string_view key, const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format("{} = {}\n", key, quoted_list(names));
}

/// TOML requires a point or an exponent in a float.
std::string toml_number(double value) {
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

/// Keys of a partition's limits of host memory, with their members.
template <class AnyPartition>
auto memory_limits(AnyPartition& partition) {
  return std::array{std::pair("default_memory_per_gpu_bytes", &partition.default_memory_per_gpu),
                    std::pair("default_memory_per_node_bytes", &partition.default_memory_per_node),
                    std::pair("default_memory_per_cpu_bytes", &partition.default_memory_per_cpu),
                    std::pair("most_memory_per_node_bytes", &partition.most_memory_per_node),
                    std::pair("most_memory_per_cpu_bytes", &partition.most_memory_per_cpu)};
}

Partition read_partition(const TomlTable& row) {
  Partition partition;
  partition.name = row.text("name");
  partition.up = row.boolean_or("up", true);
  partition.is_default = row.boolean_or("default", false);
  if (row.has("time_limit_s")) partition.time_limit = Seconds(row.number("time_limit_s", {.minimum = 1.0}));
  if (row.has("most_nodes"))
    partition.most_nodes = static_cast<int>(row.integer("most_nodes", {.minimum = 1, .maximum = 1 << 20}));
  partition.takes_jobs = row.boolean_or("takes_jobs", true);
  if (row.has("default_time_s")) partition.default_time = Seconds(row.number("default_time_s", {.minimum = 1.0}));
  partition.least_nodes = static_cast<int>(row.integer_or("least_nodes", 0, {.minimum = 0, .maximum = 1 << 20}));
  if (row.has("most_cpus_per_node"))
    partition.most_cpus_per_node =
        static_cast<int>(row.integer("most_cpus_per_node", {.minimum = 1, .maximum = 65536}));
  partition.exclusive_nodes = row.boolean_or("exclusive_nodes", false);
  partition.root_only = row.boolean_or("root_only", false);
  for (const auto& [key, memory] : memory_limits(partition))
    if (row.has(key)) *memory = Bytes(row.number(key, {.minimum = 1.0}));
  partition.billing_weights = row.text_or("billing_weights", "");
  partition.needs_reservation = row.boolean_or("needs_reservation", false);
  partition.qos = row.text_or("qos", "");
  partition.allowed_accounts = row.texts_or("allowed_accounts", {});
  partition.denied_accounts = row.texts_or("denied_accounts", {});
  partition.allowed_groups = row.texts_or("allowed_groups", {});
  partition.allowed_qos = row.texts_or("allowed_qos", {});
  partition.denied_qos = row.texts_or("denied_qos", {});
  return partition;
}

StatedNetwork read_network(const TomlTable& row) {
  StatedNetwork network;
  const auto read = [&](std::string_view key, std::optional<BytesPerSecond>& bandwidth) {
    if (row.has(key)) bandwidth = BytesPerSecond(row.number(key, {.minimum = 1.0, .maximum = 1e15}));
  };
  read("between_nodes_bytes_per_s", network.between_nodes);
  read("within_node_bytes_per_s", network.within_node);
  return network;
}

/// Names and lists of names, in Slurm's notation: "nid[001-016]".
std::vector<std::string> read_nodes(const TomlTable& row) {
  std::vector<std::string> names;
  for (const std::string& text : row.texts_or("nodes", {})) {
    const auto expanded = expand_host_list(text);
    if (!expanded) {
      row.reject("nodes", expanded.error().what, expanded.error().hint);
      return names;
    }
    names.insert(names.end(), expanded->begin(), expanded->end());
  }
  return names;
}

constexpr std::int64_t latest_time = std::int64_t{1} << 40;  // s since 1970; beyond Slurm's 32 bits

Reservation read_reservation(const TomlTable& row) {
  Reservation reservation{.name = row.text("name"),
                          .start_unix_s = row.integer("start_unix_s", {.minimum = 0, .maximum = latest_time}),
                          .end_unix_s = row.integer("end_unix_s", {.minimum = 0, .maximum = latest_time}),
                          .nodes = read_nodes(row),
                          .partition = row.text_or("partition", ""),
                          .users = row.texts_or("users", {}),
                          .accounts = row.texts_or("accounts", {}),
                          .maintenance = row.boolean_or("maintenance", false)};
  if (reservation.end_unix_s < reservation.start_unix_s)
    row.reject("end_unix_s", fmt::format("reservation '{}' ends before it starts", reservation.name));
  return reservation;
}

NodeGroup read_group(const TomlTable& row, const GpuCatalogue& catalogue) {
  NodeGroup group;
  group.nodes = read_nodes(row);
  group.count =
      static_cast<int>(row.integer_or("count", static_cast<std::int64_t>(std::max<std::size_t>(group.nodes.size(), 1)),
                                      {.minimum = 1, .maximum = 1 << 20}));
  if (!group.nodes.empty() && group.nodes.size() != static_cast<std::size_t>(group.count))
    row.reject("count", fmt::format("'count' is {} but {} nodes are named", group.count, group.nodes.size()));
  if (std::set<std::string>(group.nodes.begin(), group.nodes.end()).size() != group.nodes.size())
    row.reject("nodes", "a node is named twice");
  group.gpu = read_gpu(row, catalogue);
  group.gpus_per_node = static_cast<int>(row.integer("gpus_per_node", {.minimum = 1, .maximum = 4096}));
  group.cpus_per_node =
      static_cast<int>(row.integer_or("cpus_per_node", group.gpus_per_node, {.minimum = 1, .maximum = 65536}));
  group.memory_per_node = Bytes(row.number("memory_per_node_bytes", {.minimum = 1.0, .maximum = 1e16}));
  group.state = static_cast<NodeState>(row.choice_or("state", state_names, 0));
  group.state_reason = row.text_or("state_reason", "");
  group.zone = row.text_or("zone", "");
  group.partitions = row.texts_or("partitions", {});
  group.switches = row.texts_or("switches", {});
  if (!group.switches.empty() && group.switches.size() != group.nodes.size())
    row.reject("switches", fmt::format("{} nodes are named but {} switches", group.nodes.size(), group.switches.size()),
               "name the leaf switch of each node, \"\" where it is not known");
  group.features = row.texts_or("features", {});
  group.cores_per_node = static_cast<int>(row.integer_or("cores_per_node", 0, {.minimum = 0, .maximum = 65536}));
  group.gres_type = row.text_or("gres_type", "");
  group.gpu_sockets = row.text_or("gpu_sockets", "");
  group.gpus_free = static_cast<int>(row.integer_or("gpus_free", 0, {.minimum = 0, .maximum = group.gpus_per_node}));
  return group;
}

bool in_any(const std::vector<std::string>& own, std::span<const std::string> partitions) {
  return partitions.empty() || std::any_of(partitions.begin(), partitions.end(), [&](const std::string& partition) {
           return std::find(own.begin(), own.end(), partition) != own.end();
         });
}

/// The free part of a mixed node.
NodeGroup free_part(const NodeGroup& group) {
  NodeGroup part = group;
  part.gpus_per_node = group.gpus_free;
  part.cpus_per_node = std::max(group.cpus_per_node * group.gpus_free / group.gpus_per_node, 1);
  part.memory_per_node = group.memory_per_node * (static_cast<double>(group.gpus_free) / group.gpus_per_node);
  return part;
}

}  // namespace

std::string_view to_string(NodeState state) { return state_names[static_cast<std::size_t>(state)]; }
std::string_view to_string(Availability availability) {
  return availability_names[static_cast<std::size_t>(availability)];
}

std::string_view Partition::state() const {
  if (up) return takes_jobs ? "up" : "drain";
  return takes_jobs ? "down" : "inactive";
}

std::string LeftOutNodes::message() const {
  return fmt::format("left out {} {}: {}{}{}", nodes.size() == 1 ? "node" : "nodes", name_some(nodes), reason,
                     remedy.empty() ? "" : "; ", remedy);
}

std::vector<LeftOutNodes> Cluster::left_out_of(std::span<const std::string> wanted) const {
  std::vector<LeftOutNodes> found;
  for (const LeftOutNodes& nodes : left_out)
    if (in_any(nodes.partitions, wanted)) found.push_back(nodes);
  return found;
}

const Partition* Cluster::find_partition(std::string_view partition) const {
  const auto found = std::find_if(partitions.begin(), partitions.end(),
                                  [&](const Partition& other) { return other.name == partition; });
  return found == partitions.end() ? nullptr : &*found;
}

std::vector<NodeGroup> Cluster::usable(std::span<const std::string> wanted, Availability availability) const {
  const auto shares_nodes = [&](const NodeGroup& group) {
    if (group.partitions.empty()) return true;
    return std::any_of(group.partitions.begin(), group.partitions.end(), [&](const std::string& partition) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), partition) == wanted.end()) return false;
      const Partition* known = find_partition(partition);
      return known == nullptr || !known->exclusive_nodes;
    });
  };
  std::vector<NodeGroup> found;
  for (const NodeGroup& group : groups) {
    if (!in_any(group.partitions, wanted)) continue;
    const bool is_whole = availability == Availability::all || group.state == NodeState::idle ||
                          (availability == Availability::up && group.state != NodeState::unavailable);
    if (is_whole)
      found.push_back(group);
    else if (group.state == NodeState::mixed && group.gpus_free > 0 && shares_nodes(group))
      found.push_back(free_part(group));
  }
  return found;
}

std::vector<NodeGroup> Cluster::usable(std::string_view partition, bool only_idle) const {
  const std::string wanted(partition);
  return usable(wanted.empty() ? std::span<const std::string>() : std::span<const std::string>(&wanted, 1),
                only_idle ? Availability::idle : Availability::up);
}

Bytes device_memory(const GpuType& type, const NodeGroup& group) {
  return type.kind == DeviceKind::gpu ? type.memory : group.memory_per_node / group.gpus_per_node;
}

std::optional<UsdPerHour> stated_price(const Cluster& cluster, const std::string& gpu, std::string_view zone) {
  for (const Zone& entry : cluster.zones)
    if (entry.name == zone)
      for (const auto& [name, price] : entry.prices)
        if (name == gpu) return price;
  for (const auto& [name, price] : cluster.prices)
    if (name == gpu) return price;
  return std::nullopt;
}

UsdPerHour device_price(const Cluster& cluster, const GpuType& type, std::string_view zone) {
  return stated_price(cluster, type.name, zone).value_or(type.price);
}

Result<Cluster> parse_cluster(std::string_view text, std::string_view source_name, const GpuCatalogue& catalogue) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(1, TomlKind::cluster);
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
  for (const TomlTable& row : root.tables("links")) {
    ZoneLink link = read_link(row);
    const bool has_bandwidth = row.has("bandwidth_bytes_per_s");
    if (!has_bandwidth && row.has("latency_s"))
      row.reject("latency_s", "'latency_s' is there without bandwidth_bytes_per_s",
                 "add the bandwidth; without both, times are those of the profile");
    else if (!has_bandwidth && !row.has("egress_usd_per_byte"))
      row.reject(
          "from",
          fmt::format("the link {} - {} has neither bandwidth_bytes_per_s nor egress_usd_per_byte", link.from, link.to),
          "add one of them, or remove the link: times are then those of the profile");
    require_zone(row, "from", link.from, zone_names);
    require_zone(row, "to", link.to, zone_names);
    cluster.links.push_back(std::move(link));
  }
  if (root.has("switches")) {
    const TomlTable table = root.table("switches");
    constexpr std::array kinds{"", "tree", "block"};
    if (table.has("kind")) cluster.topology = kinds.at(table.choice_or("kind", {"tree", "block"}, 0) + 1);
    cluster.across_switches = read_switch_link(table);
  }
  if (root.has("network")) cluster.network = read_network(root.table("network"));
  for (const TomlTable& row : root.tables("prices")) cluster.prices.push_back(read_price(row, catalogue));
  for (const TomlTable& row : root.tables("reservations")) cluster.reservations.push_back(read_reservation(row));
  std::set<std::string> node_names;
  for (const TomlTable& row : root.tables("nodes")) {
    NodeGroup group = read_group(row, catalogue);
    require_zone(row, "zone", group.zone, zone_names);
    for (const std::string& partition : group.partitions)
      if (!partition_names.contains(partition))
        row.reject("partitions", fmt::format("partition '{}' is not described", partition),
                   fmt::format("add a [[partitions]] with this name; known: {}", join(partition_names, ", ")));
    for (const std::string& node : group.nodes)
      if (!node_names.insert(node).second) row.reject("nodes", fmt::format("node '{}' is described twice", node));
    cluster.groups.push_back(std::move(group));
  }
  for (const TomlTable& row : root.tables("left_out"))
    cluster.left_out.push_back({.nodes = row.texts("nodes"),
                                .partitions = row.texts_or("partitions", {}),
                                .reason = row.text("reason"),
                                .remedy = row.text_or("remedy", "")});
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
    if (!partition.takes_jobs) text += "takes_jobs = false\n";
    if (partition.default_time)
      text += fmt::format("default_time_s = {}\n", toml_number(partition.default_time->value()));
    if (partition.least_nodes > 0) text += fmt::format("least_nodes = {}\n", partition.least_nodes);
    if (partition.most_cpus_per_node) text += fmt::format("most_cpus_per_node = {}\n", *partition.most_cpus_per_node);
    if (partition.exclusive_nodes) text += "exclusive_nodes = true\n";
    if (partition.root_only) text += "root_only = true\n";
    for (const auto& [key, memory] : memory_limits(partition))
      if (*memory) text += fmt::format("{} = {}\n", key, toml_number((*memory)->value()));
    if (!partition.billing_weights.empty())
      text += fmt::format("billing_weights = {}\n", toml_quote(partition.billing_weights));
    if (partition.needs_reservation) text += "needs_reservation = true\n";
    if (!partition.qos.empty()) text += fmt::format("qos = {}\n", toml_quote(partition.qos));
    text += list_unless_empty("allowed_accounts", partition.allowed_accounts);
    text += list_unless_empty("denied_accounts", partition.denied_accounts);
    text += list_unless_empty("allowed_groups", partition.allowed_groups);
    text += list_unless_empty("allowed_qos", partition.allowed_qos);
    text += list_unless_empty("denied_qos", partition.denied_qos);
  }
  for (const Reservation& reservation : cluster.reservations) {
    text += fmt::format("\n[[reservations]]\nname = {}\nstart_unix_s = {}\nend_unix_s = {}\n",
                        toml_quote(reservation.name), reservation.start_unix_s, reservation.end_unix_s);
    text += list_unless_empty("nodes", reservation.nodes);
    if (!reservation.partition.empty()) text += fmt::format("partition = {}\n", toml_quote(reservation.partition));
    text += list_unless_empty("users", reservation.users);
    text += list_unless_empty("accounts", reservation.accounts);
    if (reservation.maintenance) text += "maintenance = true\n";
  }
  if (!cluster.topology.empty() || cluster.across_switches) {
    text += "\n[switches]\n";
    if (!cluster.topology.empty()) text += fmt::format("kind = {}\n", toml_quote(cluster.topology));
    if (cluster.across_switches)
      text += fmt::format("bandwidth_bytes_per_s = {}\nlatency_s = {}\n",
                          toml_number(cluster.across_switches->bandwidth.value()),
                          toml_number(cluster.across_switches->latency.value()));
  }
  for (const auto& [gpu, price] : cluster.prices)
    text += fmt::format("\n[[prices]]\ngpu = {}\nusd_per_hour = {}\n", toml_quote(gpu), toml_number(price.value()));
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
  if (cluster.network.between_nodes || cluster.network.within_node) text += "\n[network]\n";
  if (cluster.network.between_nodes)
    text += fmt::format("between_nodes_bytes_per_s = {}\n", toml_number(cluster.network.between_nodes->value()));
  if (cluster.network.within_node)
    text += fmt::format("within_node_bytes_per_s = {}\n", toml_number(cluster.network.within_node->value()));
  for (const NodeGroup& group : cluster.groups) {
    text += "\n[[nodes]]\n";
    if (!group.nodes.empty()) text += fmt::format("nodes = {}\n", quoted_list(group.nodes));
    text += fmt::format(
        "count = {}\ngpu = {}\ngpus_per_node = {}\ncpus_per_node = {}\nmemory_per_node_bytes = {}\nstate = {}\n",
        group.count, toml_quote(group.gpu), group.gpus_per_node, group.cpus_per_node,
        toml_number(group.memory_per_node.value()), toml_quote(to_string(group.state)));
    if (!group.state_reason.empty()) text += fmt::format("state_reason = {}\n", toml_quote(group.state_reason));
    if (!group.zone.empty()) text += fmt::format("zone = {}\n", toml_quote(group.zone));
    text += list_unless_empty("partitions", group.partitions);
    text += list_unless_empty("features", group.features);
    if (group.cores_per_node > 0) text += fmt::format("cores_per_node = {}\n", group.cores_per_node);
    if (!group.gres_type.empty()) text += fmt::format("gres_type = {}\n", toml_quote(group.gres_type));
    if (!group.gpu_sockets.empty()) text += fmt::format("gpu_sockets = {}\n", toml_quote(group.gpu_sockets));
    if (group.gpus_free > 0) text += fmt::format("gpus_free = {}\n", group.gpus_free);
    text += list_unless_empty("switches", group.switches);
  }
  for (const LeftOutNodes& nodes : cluster.left_out) {
    text +=
        fmt::format("\n[[left_out]]\nnodes = {}\nreason = {}\n", quoted_list(nodes.nodes), toml_quote(nodes.reason));
    if (!nodes.remedy.empty()) text += fmt::format("remedy = {}\n", toml_quote(nodes.remedy));
    text += list_unless_empty("partitions", nodes.partitions);
  }
  return text;
}

}  // namespace sailor
