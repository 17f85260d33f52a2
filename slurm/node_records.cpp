#include "slurm/node_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "cluster/gpu_match.hpp"
#include "cluster/host_list.hpp"
#include "core/parse.hpp"
#include "core/text.hpp"

namespace sailor::slurm {

namespace {

constexpr int most_devices_per_node = 4096;

/// Splits "gpu:a:2(S:0,1),gpu:b:1" at the commas outside parentheses, and drops what is in parentheses.
std::vector<std::string> split_gres(std::string_view gres) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : gres) {
    if (c == '(')
      ++depth;
    else if (c == ')')
      --depth;
    else if (c == ',' && depth == 0)
      parts.emplace_back();
    else if (depth == 0)
      parts.back() += c;
  }
  std::erase_if(parts, [](const std::string& part) { return part.empty(); });
  return parts;
}

bool starts_with_digit(std::string_view text) { return !text.empty() && text.front() >= '0' && text.front() <= '9'; }

/// The device of a node, or why the node is left out.
struct NodeDevice {
  const GpuType* type = nullptr;
  int count = 0;
  std::string problem{};  ///< the same words for all nodes with the same problem
  std::string remedy{};
  std::string gres_type{};  ///< of a GPU
};

/// Cache of GPU matches by GRES type and features of the node: many nodes have the same.
class KnownGpus {
 public:
  explicit KnownGpus(const GpuCatalogue& catalogue) : catalogue_(catalogue) {}
  const GpuMatch& find(const std::string& gres_type, const std::vector<std::string>& features) {
    const auto key = std::pair(gres_type, features);
    const auto known = known_.find(key);
    return known != known_.end() ? known->second
                                 : known_.emplace(key, match_gres(catalogue_, gres_type, features)).first->second;
  }

 private:
  const GpuCatalogue& catalogue_;
  std::map<std::pair<std::string, std::vector<std::string>>, GpuMatch> known_;
};

/// The first rule for such a node; null if there is none.
const GpuRule* rule_for(const std::vector<GpuRule>& rules, bool where_nothing_else_says_it, const NodeRecord& node,
                        const std::string& gres_type) {
  for (const GpuRule& rule : rules) {
    if (rule.where_nothing_else_says_it != where_nothing_else_says_it) continue;
    if (rule.gres_type && !equal_ignoring_case(*rule.gres_type, gres_type)) continue;
    if (rule.nodes.empty() || matches_any(rule.nodes, node.name)) return &rule;
  }
  return nullptr;
}

/// The reason why the GPU type is not known.
NodeDevice unknown_gpus(const std::string& gres_type, const GpuMatch& match) {
  constexpr const char* say_which = "say which with --gpu-type NAME, or with [[gpu_types]] of the site file";
  if (!match.candidates.empty()) {
    std::vector<std::string> names;
    for (const GpuType* type : match.candidates) names.push_back(type->name);
    return {.problem = fmt::format("GPUs {}, which may be {}",
                                   gres_type.empty() ? "without a type" : fmt::format("of type '{}'", gres_type),
                                   join(names, ", ")),
            .remedy = say_which};
  }
  if (gres_type.empty())
    return {.problem = "GPUs without a type (Slurm says only 'gpu', and no feature of the node says more)",
            .remedy = say_which};
  return {.problem = fmt::format("GPU type '{}' is not in the catalogue", gres_type),
          .remedy = fmt::format("{}; or add it to slurm_gres of a GPU in gpus.toml", say_which)};
}

NodeDevice device_of(const NodeRecord& node, const GpuCatalogue& catalogue, const std::vector<GpuRule>& rules,
                     KnownGpus& known) {
  auto gpus = parse_gpus(node.gres);
  if (!gpus) return {.problem = gpus.error().what};
  if (gpus->empty()) {
    if (catalogue.cpu() == nullptr) return {.problem = "no GPUs, and the catalogue describes no CPU device"};
    return {.type = catalogue.cpu(), .count = std::clamp(node.cores, 1, most_devices_per_node)};
  }
  if (gpus->size() > 1) {
    std::vector<std::string> types;
    for (const GpuCount& gpu : *gpus) types.push_back(gpu.type.empty() ? "untyped" : gpu.type);
    return {.problem = fmt::format("GPUs of several types on one node ({})", join(types, ", "))};
  }
  const GpuCount& gpu = gpus->front();
  const GpuMatch& match = known.find(gpu.type, node.features);
  const GpuRule* rule = rule_for(rules, false, node, gpu.type);
  if (rule == nullptr && match.type == nullptr) rule = rule_for(rules, true, node, gpu.type);
  const GpuType* type = match.type;
  if (rule != nullptr) {
    const auto is_it = [&](const GpuType& known_type) { return known_type.name == rule->gpu; };
    const auto found = std::find_if(catalogue.types().begin(), catalogue.types().end(), is_it);
    if (found == catalogue.types().end())
      return {
          .problem = fmt::format("the site file says that their GPUs are {}, which is not in the catalogue", rule->gpu),
          .remedy = "add it to gpus.toml"};
    type = &*found;
  }
  if (type == nullptr) return unknown_gpus(gpu.type, match);
  return {.type = type, .count = std::min(gpu.count, most_devices_per_node), .gres_type = gpu.type};
}

/// Key of the groups that can be merged: everything except the names and switches of the nodes.
std::string kind_of(const NodeGroup& group) {
  constexpr char separator = '\x1f';
  std::string key = fmt::format("{}{}{}{}{}{}{}{}{}{}{}{}", group.gpu, separator, group.gpus_per_node, separator,
                                group.cpus_per_node, separator, group.memory_per_node.value(), separator,
                                static_cast<int>(group.state), separator, group.state_reason, separator);
  key += fmt::format("{}{}{}{}{}{}{}{}", group.cores_per_node, separator, group.gres_type, separator, group.gpu_sockets,
                     separator, group.gpus_free, separator);
  for (const std::vector<std::string>* names : {&group.partitions, &group.features}) {
    for (const std::string& name : *names) key += name + separator;
    key += separator;
  }
  return key;
}

/// Length of the UTF-8 sequence at the front of `text`; 0 if there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t length = 0;
  if (byte(0) < 0x80)
    length = 1;
  else if (byte(0) >= 0xc2 && byte(0) < 0xe0)
    length = 2;
  else if (byte(0) >= 0xe0 && byte(0) < 0xf0)
    length = 3;
  else if (byte(0) >= 0xf0 && byte(0) < 0xf5)
    length = 4;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) >= 0xc0) return 0;
  // Overlong forms, surrogates, and code points above U+10FFFF
  if (length == 3 && ((byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) >= 0xa0))) return 0;
  if (length == 4 && ((byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90))) return 0;
  return length;
}

}  // namespace

Result<std::vector<GpuCount>> parse_gpus(std::string_view gres) {
  std::vector<GpuCount> gpus;
  if (gres == "(null)" || gres == "N/A") return gpus;
  for (const std::string& part : split_gres(gres)) {
    // gpu, gpu:2, gpu:gh200, gpu:gh200:4, and with flags gpu:gh200:no_consume:4. "gpu:0" is a node whose GPUs are gone.
    const std::vector<std::string> fields = split(part, ':');
    if (fields.empty() || fields.front() != "gpu") continue;
    GpuCount gpu{.type = {}, .count = 1};
    if (fields.size() > 1 && starts_with_digit(fields.back()) &&
        (fields.size() > 2 || parse_count(fields.back()).has_value())) {
      const auto count = parse_count(fields.back());
      if (!count)
        return fail(ErrorCode::invalid_input, fmt::format("the number of GPUs in Gres '{}' is not readable", gres));
      gpu.count = *count;
      if (fields.size() > 2) gpu.type = fields[1];
    } else if (fields.size() > 1) {
      gpu.type = fields[1];
    }
    if (gpu.count == 0) continue;
    const auto same =
        std::find_if(gpus.begin(), gpus.end(), [&](const GpuCount& other) { return other.type == gpu.type; });
    if (same == gpus.end())
      gpus.push_back(std::move(gpu));
    else
      same->count += gpu.count;  // one line per socket in gres.conf
  }
  return gpus;
}

int free_devices(const NodeRecord& node, int devices) {
  if (devices <= 0) return 0;
  std::int64_t free = devices;
  const auto gpus = parse_gpus(node.gres);
  if (gpus && !gpus->empty()) {
    const auto used = parse_gpus(node.gres_used);
    if (!used) return 0;
    for (const GpuCount& gpu : *used) free -= gpu.count;
  }
  // Number of free shares of an equal division.
  const auto shares = [&](std::int64_t all, std::int64_t used) {
    if (all <= 0) return std::int64_t{devices};
    return std::max<std::int64_t>(all - used, 0) * devices / all;
  };
  free = std::min({free, shares(node.cpus, node.cpus_used), shares(node.memory_mib, node.memory_used_mib)});
  return static_cast<int>(std::max<std::int64_t>(free, 0));
}

std::string gpu_sockets(std::string_view gres) {
  const std::size_t gpu = gres.starts_with("gpu") ? 0 : gres.find(",gpu");
  if (gpu == std::string_view::npos) return {};
  const std::size_t open = gres.find("(S:", gpu);
  // With a comma in between, the sockets belong to another resource.
  if (open == std::string_view::npos || gres.substr(gpu + 1, open - gpu - 1).find(',') != std::string_view::npos)
    return {};
  const std::string_view rest = gres.substr(open + 3);
  return std::string(rest.substr(0, rest.find(')')));
}

Result<std::vector<std::pair<std::string, int>>> parse_licenses(std::string_view text) {
  std::vector<std::pair<std::string, int>> licenses;
  for (const std::string& part : split(text, ',')) {
    const std::size_t mark = part.find_last_of(":=");
    const auto count =
        mark == std::string::npos ? std::optional(1) : parse_count(std::string_view(part).substr(mark + 1));
    if (mark == 0 || !count || *count < 1)
      return fail(ErrorCode::usage, fmt::format("'{}' is no license and number", printable(part)),
                  "write NAME or NAME:COUNT");
    licenses.emplace_back(part.substr(0, mark), *count);
  }
  return licenses;
}

bool ControllerFacts::at_least(int year, int month, int patch) const {
  std::vector<std::int64_t> parts;  // "23.02.1-1" -> 23, 2, 1
  for (const std::string& part : split(version, '.'))
    parts.push_back(parse_count(std::string_view(part).substr(0, part.find_first_not_of("0123456789"))).value_or(0));
  return parts >= std::vector<std::int64_t>{year, month, patch};
}

void set_switches(std::vector<NodeRecord>& nodes, const std::map<std::string, std::string>& leaf_of_node) {
  for (NodeRecord& node : nodes)
    if (const auto leaf = leaf_of_node.find(node.name); leaf != leaf_of_node.end()) node.leaf_switch = leaf->second;
}

Result<ClusterReading> assemble_cluster(std::string name, std::vector<Partition> partitions,
                                        const std::vector<NodeRecord>& nodes, const GpuCatalogue& catalogue,
                                        const std::vector<GpuRule>& rules) {
  ClusterReading reading;
  reading.cluster.name = std::move(name);
  reading.cluster.origin = "slurm";
  reading.cluster.partitions = std::move(partitions);
  std::vector<NodeGroup>& groups = reading.cluster.groups;
  std::map<std::string, std::size_t> group_of;  // by kind_of()
  std::map<std::tuple<std::string, std::string, std::vector<std::string>>, std::vector<std::string>> left_out;
  KnownGpus known(catalogue);
  const bool switches =
      std::any_of(nodes.begin(), nodes.end(), [](const NodeRecord& node) { return !node.leaf_switch.empty(); });
  for (const NodeRecord& node : nodes) {
    const NodeDevice device = device_of(node, catalogue, rules, known);
    if (device.type == nullptr) {
      left_out[{printable(device.problem), printable(device.remedy), node.partitions}].push_back(node.name);
      continue;
    }
    NodeGroup group{.nodes = {},
                    .count = 0,
                    .gpu = device.type->name,
                    .gpus_per_node = device.count,
                    .cpus_per_node = std::max(node.cpus, 1),
                    .memory_per_node = Bytes(static_cast<double>(std::max<std::int64_t>(node.memory_mib, 1)) * 0x1p20),
                    .state = node.state,
                    .state_reason = node.state == NodeState::unavailable ? printable(node.state_reason) : "",
                    .zone = {},
                    .partitions = node.partitions,
                    .switches = {},
                    .features = node.features,
                    .cores_per_node = std::max(node.cores, 0),
                    .gres_type = printable(device.gres_type),
                    .gpu_sockets = printable(gpu_sockets(node.gres)),
                    .gpus_free = node.state == NodeState::mixed ? free_devices(node, device.count) : 0};
    const auto [entry, fresh] = group_of.emplace(kind_of(group), groups.size());
    if (fresh) groups.push_back(std::move(group));
    NodeGroup& own = groups[entry->second];
    own.nodes.push_back(node.name);
    if (switches) own.switches.push_back(printable(node.leaf_switch));
    ++own.count;
  }
  for (auto& [why, names] : left_out)
    reading.cluster.left_out.push_back({.nodes = std::move(names),
                                        .partitions = std::get<2>(why),
                                        .reason = std::get<0>(why),
                                        .remedy = std::get<1>(why)});
  if (groups.empty()) {
    std::string why;
    for (const LeftOutNodes& some : reading.cluster.left_out) why += (why.empty() ? ": " : "; ") + some.message();
    return fail(ErrorCode::not_found,
                fmt::format("cluster {} has no node that can be planned for{}", reading.cluster.name, why));
  }
  return reading;
}

std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const unsigned char byte = static_cast<unsigned char>(text.front());
    if (length == 0)
      line += '?';
    else if (length == 1 && (byte < 0x20 || byte == 0x7f))
      line += ' ';
    else
      line += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return line;
}

}  // namespace sailor::slurm
