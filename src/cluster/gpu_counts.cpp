#include "cluster/gpu_counts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/text.hpp"
#include "core/units.hpp"

namespace sailor {

namespace {

constexpr std::string_view counts_form = "write NODESxGPUS:TYPE, such as 16x4:GH200-96, several with commas between";
constexpr std::string_view network_key = "network:";
/// The rate of one stream between two nodes, where nothing was measured or stated: 200 Gbit/s, as of one adapter of HDR
/// InfiniBand or Slingshot.
constexpr BytesPerSecond assumed_network{25e9};

/// Takes a number from 1 to `largest` off the beginning of the text.
std::optional<int> take_count(std::string_view& text, int largest) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || value < 1 || value > largest) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

bool are_gpu_counts(std::string_view text) {
  if (text.empty() || text.ends_with(".toml") || text.find('/') != std::string_view::npos) return false;
  std::error_code code;
  return !std::filesystem::exists(text, code);
}

Result<Cluster> cluster_of_gpu_counts(std::string_view text, const GpuCatalogue& gpus) {
  Cluster cluster;
  cluster.origin = text;
  cluster.name = text;
  cluster.network = {.between_nodes = assumed_network, .source = StatedNetwork::Source::assumption};
  for (const std::string& part : split(text, ',')) {
    std::string_view rest = part;
    const auto wrong = [&](const std::string& what) {
      return fail(ErrorCode::usage, fmt::format("--gpus {}: {}", part, what), std::string(counts_form));
    };
    if (rest.starts_with(network_key)) {
      rest.remove_prefix(network_key.size());
      const auto rate = take_count(rest, 1 << 20);
      if (!rate || !rest.empty())
        return fail(ErrorCode::usage, fmt::format("--gpus {}: the network's GB/s are no whole number from 1 on", part),
                    "write network:50 for 50 GB/s of one stream between two nodes");
      cluster.network = {.between_nodes = BytesPerSecond(*rate * 1e9), .source = StatedNetwork::Source::option};
      continue;
    }
    if (rest.find_first_of("0123456789") != 0) return wrong("it is no file, and no number of nodes begins it");
    const auto nodes = take_count(rest, 1 << 20);
    if (!nodes) return wrong("the number of nodes is not from 1 to 1048576");
    if (!take(rest, 'x')) return wrong("how many GPUs a node has is missing");
    const auto devices = take_count(rest, 4096);
    if (!devices) return wrong("the number of GPUs of a node is not from 1 to 4096");
    if (!take(rest, ':')) return wrong("the GPU type is missing");
    const std::string_view name = rest.substr(0, rest.find('@'));
    const std::string zone(rest.size() > name.size() ? rest.substr(name.size() + 1) : std::string_view());
    const auto type = gpus.find(name);
    if (!type) return fail(ErrorCode::usage, "--gpus " + part + ": " + type.error().what, "`sailor gpus` lists them");
    if (type->kind != DeviceKind::gpu)
      return wrong(fmt::format("{} is not a GPU, and how much memory its nodes have only a cluster.toml says", name));
    NodeGroup group;
    group.count = *nodes;
    group.gpu = type->name;
    group.gpus_per_node = *devices;
    group.cpus_per_node = *devices;
    // Memory of the host is unknown, and plans for GPUs do not depend on it: assume as much as its GPUs have.
    group.memory_per_node = type->memory * static_cast<double>(*devices);
    group.zone = zone;
    if (!zone.empty() &&
        std::none_of(cluster.zones.begin(), cluster.zones.end(), [&](const Zone& known) { return known.name == zone; }))
      cluster.zones.push_back({.name = zone, .region = zone, .prices = {}});
    cluster.groups.push_back(std::move(group));
  }
  if (cluster.groups.empty())
    return fail(ErrorCode::usage, fmt::format("--gpus {}: there are no GPUs", text), std::string(counts_form));
  return cluster;
}

}  // namespace sailor
