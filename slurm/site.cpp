#include "slurm/site.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "cluster/fields.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "slurm/constraint.hpp"

namespace sailor::slurm {

namespace {

namespace fs = std::filesystem;

constexpr const char* generic_file = "generic.toml";

/// Number of literal characters of the best matching pattern; -1: none matches.
int fit(const std::vector<std::string>& patterns, std::string_view cluster_name) {
  int best = -1;
  for (const std::string& pattern : patterns)
    if (matches(pattern, cluster_name))
      best = std::max(best, static_cast<int>(pattern.size() - std::count(pattern.begin(), pattern.end(), '*')));
  return best;
}

/// Clusters that a site file is for. The rest of it is read only when it is used, so that a file that does not suit
/// this catalogue, or is just being written, does not affect other clusters.
Result<std::vector<std::string>> clusters_of(const fs::path& file) {
  auto text = read_text_file(file);
  if (!text) return fail(text.error());
  auto document = TomlDocument::parse(*text, file.string());
  if (!document) return fail(document.error());
  return document->root().texts_or("cluster_names", {});
}

bool is_variable_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

bool one_line(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

Variables read_variables(const TomlTable& parent, std::string_view key) {
  Variables variables;
  if (!parent.has(key)) return variables;
  const TomlTable table = parent.table(key);
  for (const std::string& name : table.keys()) {
    std::string value = table.text_or(name, "");
    if (!is_variable_name(name))
      table.reject(name, fmt::format("'{}' cannot be the name of an environment variable", name),
                   "use letters, digits and _");
    else if (!one_line(value))
      table.reject(name, fmt::format("the value of {} is not one line", name));
    variables.emplace_back(name, std::move(value));
  }
  return variables;
}

/// Words that are handed on to a command: each starts with -- and is one line.
std::vector<std::string> read_options(const TomlTable& row, std::string_view key) {
  std::vector<std::string> options = row.texts_or(key, {});
  for (const std::string& option : options)
    if (!option.starts_with("--") || !one_line(option))
      row.reject(key, fmt::format("'{}' is no option", option), "write each as one word: \"--name=value\"");
  return options;
}

/// A short word, as programs name their parts.
std::string read_word(const TomlTable& row, std::string_view key) {
  std::string text = row.text_or(key, "");
  if (std::any_of(text.begin(), text.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }))
    row.reject(key, fmt::format("'{}' is to be one word (ASCII, no blanks)", key));
  return text;
}

std::string read_line(const TomlTable& row, std::string_view key) {
  std::string text = row.text_or(key, "");
  if (!one_line(text)) row.reject(key, fmt::format("'{}' is not one line", key));
  return text;
}

NodeLayout read_layout(const TomlTable& row, const GpuCatalogue& catalogue, std::set<std::string>& unknown) {
  NodeLayout layout;
  layout.gpu = read_gpu(row, catalogue, &unknown);
  for (const std::vector<std::int64_t>& range : row.integer_rows("cores", {.minimum = 0, .maximum = 65535})) {
    if (range.size() != 2 || range[0] > range[1]) {
      row.reject("cores", "the cores of a GPU are the first and the last of a range",
                 "write [[0, 71], [72, 143]], for example");
      break;
    }
    layout.cores.push_back({static_cast<int>(range[0]), static_cast<int>(range[1])});
  }
  for (const char* key : {"numa_nodes", "memory_nodes"}) {
    if (!row.has(key)) continue;
    std::vector<int>& nodes = std::string_view(key) == "numa_nodes" ? layout.numa_nodes : layout.memory_nodes;
    for (const std::int64_t node : row.integers(key, {.minimum = 0, .maximum = 1023}))
      nodes.push_back(static_cast<int>(node));
  }
  if (!layout.numa_nodes.empty() && layout.numa_nodes.size() != layout.cores.size())
    row.reject("numa_nodes",
               fmt::format("{} NUMA nodes for the cores of {} GPUs", layout.numa_nodes.size(), layout.cores.size()),
               "name one for each range of cores");
  return layout;
}

SoftwareEnvironment read_environment(const TomlTable& row) {
  SoftwareEnvironment environment;
  environment.name = row.text("name");
  environment.title = read_line(row, "title");
  environment.image_option = read_line(row, "image_option");
  if (!environment.image_option.empty() && (!environment.image_option.starts_with("--") ||
                                            environment.image_option.find_first_of("= ") != std::string::npos))
    row.reject("image_option", fmt::format("'{}' is no option of srun", environment.image_option),
               "write \"--uenv\", for example; the image comes from the command line");
  environment.view_option = read_line(row, "view_option");
  environment.view = read_line(row, "view");
  if (!environment.view_option.empty() &&
      (!environment.view_option.starts_with("--") || environment.image_option.empty()))
    row.reject("view_option", fmt::format("'{}' is no option of srun beside image_option", environment.view_option),
               "write \"--view\", for example");
  if (!environment.view.empty() && environment.view_option.empty())
    row.reject("view", "'view' is there without view_option", "add view_option = \"--view\"");
  environment.mpi = read_line(row, "mpi");
  environment.srun_options = read_options(row, "srun_options");
  environment.variables = read_variables(row, "variables");
  environment.pipeline_variables = read_variables(row, "pipeline_variables");
  return environment;
}

Launch read_launch(const TomlTable& root) {
  Launch launch;
  if (!root.has("launch")) return launch;
  const TomlTable table = root.table("launch");
  launch.mpi = table.text_or("mpi", launch.mpi);
  launch.exclusive_nodes = table.boolean_or("exclusive_nodes", false);
  launch.constraint = read_line(table, "constraint");
  launch.one_gpu_per_task = table.boolean_or("one_gpu_per_task", false);
  if (table.has("memory_per_node_gib"))
    launch.memory_per_node =
        static_cast<double>(table.integer("memory_per_node_gib", {.minimum = 1, .maximum = 1 << 20})) * gib;
  launch.sbatch_options = read_options(table, "sbatch_options");
  launch.srun_options = read_options(table, "srun_options");
  launch.variables = read_variables(table, "variables");
  launch.near_nodes = table.boolean_or("near_nodes", true);
  launch.no_core_files = table.boolean_or("no_core_files", false);
  launch.environment = read_line(table, "environment");
  return launch;
}

SiteLimits read_limits(const TomlTable& root) {
  SiteLimits limits;
  if (!root.has("limits")) return limits;
  const TomlTable table = root.table("limits");
  const auto count = [&](std::string_view key) -> std::optional<int> {
    if (!table.has(key)) return std::nullopt;
    return static_cast<int>(table.integer(key, {.minimum = 1, .maximum = 1 << 30}));
  };
  limits.communicators_per_rank = count("communicators_per_rank");
  limits.communicators_per_job = count("communicators_per_job");
  return limits;
}

CheckThresholds read_check(const TomlTable& root) {
  CheckThresholds check;
  if (!root.has("check")) return check;
  const TomlTable table = root.table("check");
  constexpr double fastest = 1e15;  // bytes per second; more is a typing error
  const auto bandwidth = [&](std::string_view key) -> std::optional<BytesPerSecond> {
    if (!table.has(key)) return std::nullopt;
    return BytesPerSecond(table.number(key, {.minimum = 1.0, .maximum = fastest}));
  };
  const auto number = [&](std::string_view key, double most) -> std::optional<double> {
    if (!table.has(key)) return std::nullopt;
    return table.number(key, {.minimum = 0.0, .maximum = most});
  };
  check.all_reduce_between_nodes = bandwidth("all_reduce_between_nodes_bytes_per_s");
  check.all_reduce_within_node = bandwidth("all_reduce_within_node_bytes_per_s");
  check.all_reduce_all = bandwidth("all_reduce_all_bytes_per_s");
  check.send_between_nodes = bandwidth("send_between_nodes_bytes_per_s");
  check.send_within_node = bandwidth("send_within_node_bytes_per_s");
  check.idle_temperature_celsius = number("idle_temperature_celsius", 200.0);
  check.used_memory_share = number("used_memory_share", 1.0);
  check.slower_than_median = number("slower_than_median", 1.0);
  check.write_per_node = bandwidth("write_per_node_bytes_per_s");
  check.fabric_provider = read_word(table, "fabric_provider");
  return check;
}

/// The site files of a folder by their names, sorted. Errors: not_found (no such folder, none in it).
Result<std::vector<fs::path>> site_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code))
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  if (code)
    return fail(ErrorCode::not_found,
                fmt::format("cannot read the folder of site files '{}': {}", folder.string(), code.message()),
                "set SAILOR_SITES to it");
  if (files.empty())
    return fail(ErrorCode::not_found, fmt::format("folder '{}' has no site files (*.toml)", folder.string()),
                "set SAILOR_SITES to the folder of site files");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

const SoftwareEnvironment* Site::find_environment(std::string_view environment) const {
  const auto found = std::find_if(environments.begin(), environments.end(),
                                  [&](const SoftwareEnvironment& other) { return other.name == environment; });
  return found == environments.end() ? nullptr : &*found;
}

const NodeLayout* Site::find_layout(std::string_view gpu) const {
  const auto found =
      std::find_if(layouts.begin(), layouts.end(), [&](const NodeLayout& other) { return other.gpu == gpu; });
  return found == layouts.end() ? nullptr : &*found;
}

Result<Site> parse_site(std::string_view text, std::string_view source_name, const GpuCatalogue& catalogue) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(1);
  const TomlTable root = document->root();
  Site site;
  site.origin = source_name;
  site.name = root.text("name");
  site.title = read_line(root, "title");
  site.cluster_names = root.texts_or("cluster_names", {});

  for (const TomlTable& row : root.tables("prices")) {
    const UsdPerHour usd(row.number("usd_per_node_hour", {.minimum = 0.0}));
    const auto gpus = row.integer("gpus_per_node", {.minimum = 1, .maximum = 4096});
    site.prices.push_back(
        {.gpu = read_gpu(row, catalogue, &site.unknown_gpus), .price = usd, .gpus_per_node = static_cast<int>(gpus)});
  }
  std::set<std::string> zones;
  for (const TomlTable& row : root.tables("zones")) {
    site.zones.push_back({.zone = read_zone(row, catalogue, &site.unknown_gpus), .nodes = row.texts("nodes")});
    if (!zones.insert(site.zones.back().zone.name).second)
      row.reject("name", fmt::format("zone '{}' is described twice", site.zones.back().zone.name));
  }
  for (const TomlTable& row : root.tables("links")) {
    site.links.push_back(read_link(row));
    const ZoneLink& link = site.links.back();
    require_zone(row, "from", link.from, zones);
    require_zone(row, "to", link.to, zones);
    if (!link.bandwidth && link.egress_usd_per_byte == 0.0 && !row.has("egress_usd_per_byte"))
      row.reject("from", fmt::format("the link {} - {} has neither bandwidth_bytes_per_s nor egress_usd_per_byte",
                                     link.from, link.to));
  }
  if (root.has("switches")) site.across_switches = read_switch_link(root.table("switches"));
  site.limits = read_limits(root);
  site.launch = read_launch(root);
  std::set<std::string> environments;
  for (const TomlTable& row : root.tables("environments")) {
    site.environments.push_back(read_environment(row));
    if (!environments.insert(site.environments.back().name).second)
      row.reject("name", fmt::format("environment '{}' is described twice", site.environments.back().name));
  }
  if (!site.launch.environment.empty() && !environments.contains(site.launch.environment))
    root.table("launch").reject(
        "environment", fmt::format("environment '{}' is not described", site.launch.environment),
        fmt::format("add an [[environments]] with this name; known: {}", join_or_none(environments)));
  std::set<std::string> layouts;
  for (const TomlTable& row : root.tables("nodes")) {
    site.layouts.push_back(read_layout(row, catalogue, site.unknown_gpus));
    if (!layouts.insert(site.layouts.back().gpu).second)
      row.reject("gpu", fmt::format("the nodes with {} are described twice", site.layouts.back().gpu));
  }
  for (const TomlTable& row : root.tables("gpu_types")) {
    GpuRule rule{.gpu = read_gpu(row, catalogue, &site.unknown_gpus), .nodes = row.texts_or("nodes", {})};
    if (row.has("gres_type")) rule.gres_type = row.text("gres_type");
    if (row.boolean_or("untyped", false)) {
      if (rule.gres_type) row.reject("untyped", "'untyped' are GPUs without a type, but gres_type names one");
      rule.gres_type = "";
    }
    if (rule.nodes.empty() && !rule.gres_type)
      row.reject("gpu", fmt::format("nothing says which nodes have {}", rule.gpu),
                 "add nodes = [\"gpu*\"], gres_type as Slurm has it, or untyped = true for GPUs without one");
    site.gpu_types.push_back(std::move(rule));
  }
  site.check = read_check(root);
  SAILOR_CHECK(document->finish());
  return site;
}

Result<Site> load_site(const fs::path& path, const GpuCatalogue& catalogue) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_site(*text, path.string(), catalogue);
}

Result<Site> find_site(std::string_view cluster_name, const fs::path& folder, const GpuCatalogue& catalogue) {
  const auto files = site_files(folder);
  if (!files) return fail(files.error());
  const fs::path* best = nullptr;
  int best_fit = -1;
  const fs::path* generic = nullptr;
  std::string unreadable;
  for (const fs::path& file : *files) {
    if (file.filename() == generic_file) generic = &file;
    const auto names = clusters_of(file);
    if (!names) unreadable = names.error().message();
    const int now = cluster_name.empty() || !names ? -1 : fit(*names, cluster_name);
    if (now >= 0 && now == best_fit)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{} and {} both describe the cluster {}", best->string(), file.string(), cluster_name),
                  "make the cluster_names of one of them say more, or choose one with --site NAME");
    if (now > best_fit) {
      best = &file;
      best_fit = now;
    }
  }
  if (best == nullptr) best = generic;
  if (best == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("no site file of '{}' describes the cluster {}, and there is no {}", folder.string(),
                            cluster_name, generic_file),
                "add one, or choose one with --site NAME");
  auto site = load_site(*best, catalogue);
  // The unreadable file may have been the one for this cluster.
  if (site && best == generic && !cluster_name.empty()) site->unreadable = unreadable;
  return site;
}

Result<Site> named_site(const std::string& name, const fs::path& folder, const GpuCatalogue& catalogue,
                        std::string_view option) {
  std::error_code code;
  if (name.find('/') != std::string::npos || name.ends_with(".toml")) return load_site(name, catalogue);
  if (const fs::path file = folder / (name + ".toml"); fs::exists(file, code)) return load_site(file, catalogue);
  const auto files = site_files(folder);
  if (!files) return fail(files.error());
  std::vector<std::string> known;
  for (const fs::path& file : *files) known.push_back(file.stem().string());
  return fail(ErrorCode::not_found, fmt::format("site '{}' not found (known: {})", name, join(known, ", ")),
              did_you_mean(name, known, fmt::format("use {} NAME, or the path of a site file", option)));
}

Result<Site> choose_site(const std::string& name, std::string_view cluster_name, const fs::path& folder,
                         const GpuCatalogue& catalogue) {
  return name.empty() ? find_site(cluster_name, folder, catalogue) : named_site(name, folder, catalogue);
}

Result<const SoftwareEnvironment*> choose_environment(const Site& site, std::string_view name) {
  const std::string_view wanted = name.empty() ? std::string_view(site.launch.environment) : name;
  if (wanted.empty()) return nullptr;
  if (const SoftwareEnvironment* found = site.find_environment(wanted)) return found;
  std::vector<std::string> known;
  for (const SoftwareEnvironment& environment : site.environments) known.push_back(environment.name);
  return fail(ErrorCode::not_found,
              fmt::format("site {} has no environment '{}' (known: {})", site.name, wanted, join_or_none(known)),
              did_you_mean(wanted, known, ""));
}

Variables variables_of(const Site& site, const SoftwareEnvironment* environment, bool pipelines) {
  Variables variables = site.launch.variables;
  if (environment == nullptr) return variables;
  const auto add = [&](const Variables& more) {
    for (const auto& [name, value] : more) {
      const auto same = std::find_if(variables.begin(), variables.end(),
                                     [&, &name = name](const auto& variable) { return variable.first == name; });
      if (same == variables.end())
        variables.emplace_back(name, value);
      else
        same->second = value;
    }
  };
  add(environment->variables);
  if (pipelines) add(environment->pipeline_variables);
  return variables;
}

bool has_pipelines(const Plan& plan) {
  return std::any_of(plan.pipelines.begin(), plan.pipelines.end(),
                     [](const Pipeline& pipeline) { return pipeline.stages.size() > 1; });
}

void keep_nodes_that_satisfy(const std::string& constraint, const std::string& whose, Cluster& cluster) {
  if (constraint.empty() || std::none_of(cluster.groups.begin(), cluster.groups.end(),
                                         [](const NodeGroup& group) { return !group.features.empty(); }))
    return;
  std::map<std::vector<std::string>, std::vector<std::string>> without;  // nodes by their partitions
  std::erase_if(cluster.groups, [&](const NodeGroup& group) {
    if (satisfies(group.features, constraint).value_or(true)) return false;
    std::vector<std::string>& names = without[group.partitions];
    names.insert(names.end(), group.nodes.begin(), group.nodes.end());
    return true;
  });
  for (auto& [partitions, nodes] : without)
    cluster.left_out.push_back(
        {.nodes = std::move(nodes),
         .partitions = partitions,
         .reason = fmt::format("they lack the features that {} asks for ({})", whose, constraint),
         .remedy = {}});
}

void add_site(const Site& site, Cluster& cluster) {
  if (site.launch.exclusive_nodes)
    for (Partition& partition : cluster.partitions) partition.exclusive_nodes = true;
  for (const NodePrice& node : site.prices) {
    const bool known =
        std::any_of(cluster.prices.begin(), cluster.prices.end(), [&](const auto& p) { return p.first == node.gpu; });
    if (!known) cluster.prices.emplace_back(node.gpu, UsdPerHour(node.price.value() / node.gpus_per_node));
  }
  if (!cluster.across_switches) cluster.across_switches = site.across_switches;
  // Min bandwidths of a healthy node.
  const bool is_assumed = cluster.network.source == StatedNetwork::Source::assumption;
  if (site.check.send_between_nodes && (!cluster.network.between_nodes || is_assumed)) {
    cluster.network.between_nodes = site.check.send_between_nodes;
    cluster.network.source = StatedNetwork::Source::file;
  }
  if (!cluster.network.within_node) cluster.network.within_node = site.check.send_within_node;
  if (!cluster.zones.empty() || site.zones.empty()) return;
  for (const SiteZone& zone : site.zones) cluster.zones.push_back(zone.zone);
  cluster.links.insert(cluster.links.end(), site.links.begin(), site.links.end());
  // Nodes of a group may lie in several zones: the group is divided by zone.
  std::vector<NodeGroup> groups;
  for (const NodeGroup& group : cluster.groups) {
    std::vector<NodeGroup> parts;
    for (std::size_t i = 0; i < group.nodes.size(); ++i) {
      std::string zone = group.zone;
      for (const SiteZone& candidate : site.zones)
        if (zone.empty() && matches_any(candidate.nodes, group.nodes[i])) zone = candidate.zone.name;
      auto part = std::find_if(parts.begin(), parts.end(), [&](const NodeGroup& other) { return other.zone == zone; });
      if (part == parts.end()) {
        parts.push_back(group);
        part = parts.end() - 1;
        part->nodes.clear();
        part->switches.clear();
        part->count = 0;
        part->zone = zone;
      }
      part->nodes.push_back(group.nodes[i]);
      if (!group.switches.empty()) part->switches.push_back(group.switches[i]);
      ++part->count;
    }
    if (parts.empty()) parts.push_back(group);  // hypothetical nodes have no names
    groups.insert(groups.end(), parts.begin(), parts.end());
  }
  cluster.groups = std::move(groups);
}

}  // namespace sailor::slurm
