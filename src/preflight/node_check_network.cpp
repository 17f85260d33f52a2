// Checks the network of the nodes: their cards, and their libfabric providers.
#include <fmt/format.h>

#include <algorithm>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "preflight/node_check_parts.hpp"

namespace sailor::preflight {

void judge_network_cards(Judge& judge) {
  std::map<std::string, std::vector<const RankFacts*>> kinds;
  for (const auto& ranks : judge.nodes())
    kinds[kind_of(*ranks.front(), judge.allocation().gpus)].push_back(ranks.front());
  const auto ports_up = [](const RankFacts& facts, const std::string& kind) {
    std::vector<std::string> names;
    for (const NetworkPort& port : facts.ports)
      if (port.is_up && port.kind == kind) names.push_back(port.name);
    return names;
  };
  for (const auto& [device, nodes] : kinds) {
    for (const char* const kind : {"ethernet", "infiniband", "slingshot"}) {
      std::vector<std::string> counts;
      for (const RankFacts* facts : nodes) counts.push_back(std::to_string(ports_up(*facts, kind).size()));
      const std::string usual = commonest(counts);
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const std::vector<std::string> names = ports_up(*nodes[i], kind);
        if (std::stoul(counts[i]) < std::stoul(usual))
          judge.node(nodes[i]->node,
                     {.outcome = Outcome::fail,
                      .check = "network-cards",
                      .what = fmt::format("{} of {} {} ports are up{}", counts[i], usual, kind,
                                          names.empty() ? "" : fmt::format(" ({})", join(names, ", ")))});
      }
    }
    // Finds ports that came up at a fraction of their speed.
    std::map<std::string, std::vector<std::string>> speeds;
    for (const RankFacts* facts : nodes)
      for (const NetworkPort& port : facts->ports)
        if (port.is_up && port.bits_per_s > 0.0) speeds[port.name].push_back(fmt::format("{:.0f}", port.bits_per_s));
    std::map<std::string, double> usual_speeds;
    for (const auto& [port, values] : speeds) usual_speeds[port] = std::stod(commonest(values));
    for (const RankFacts* facts : nodes)
      for (const NetworkPort& port : facts->ports)
        if (port.is_up && port.bits_per_s > 0.0)
          if (const double usual = usual_speeds.at(port.name); port.bits_per_s < usual)
            judge.node(facts->node, {.outcome = Outcome::fail,
                                     .check = "network-cards",
                                     .what = fmt::format("{} runs at {:g} Gbit/s, on the other nodes at {:g}",
                                                         port.name, port.bits_per_s / 1e9, usual / 1e9)});
  }
}

namespace {

/// libfabric's providers on a node, as reported by the rank that asked.
struct NodeFabric {
  const std::string& node;
  const std::vector<FabricProvider>& providers;
};

std::vector<std::string> names_of(const NodeFabric& fabric) {
  std::vector<std::string> names;
  for (const FabricProvider& provider : fabric.providers) names.push_back(provider.name);
  return names;
}

/// The provider of this name ("verbs;ofi_rxm"), else one layered on it ("verbs" in that); null: there is none.
const FabricProvider* find_provider(const NodeFabric& fabric, const std::string& wanted) {
  for (const FabricProvider& provider : fabric.providers)
    if (provider.name == wanted) return &provider;
  for (const FabricProvider& provider : fabric.providers)
    for (const std::string& part : split(provider.name, ';'))
      if (part == wanted) return &provider;
  return nullptr;
}

/// Checks that the provider that the site expects is there, on all cards.
void judge_expected_provider(Judge& judge, const std::vector<NodeFabric>& nodes, const std::string& wanted) {
  constexpr const char* check = "fabric";
  const auto without = static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [&](const NodeFabric& node) { return find_provider(node, wanted) == nullptr; }));
  if (without == nodes.size()) {
    judge.job({.outcome = Outcome::warn,
               .check = check,
               .what = fmt::format("libfabric has no provider {}, which the site expects, on any node (it has: {})",
                                   wanted, join_or_none(names_of(nodes.front()))),
               .remedy = "is fi_info that of the job's environment? messages would take a slow way (TCP)"});
    return;
  }
  std::vector<std::string> counts;
  for (const NodeFabric& node : nodes)
    if (const FabricProvider* provider = find_provider(node, wanted))
      counts.push_back(std::to_string(provider->domains.size()));
  const std::string usual = commonest(counts);
  for (const NodeFabric& node : nodes) {
    const FabricProvider* provider = find_provider(node, wanted);
    if (provider == nullptr)
      judge.node(node.node, {.outcome = Outcome::fail,
                             .check = check,
                             .what = fmt::format("libfabric has no provider {}, which the site expects (it has: {})",
                                                 wanted, join_or_none(names_of(node)))});
    else if (provider->domains.size() < std::stoul(usual))
      judge.node(node.node, {.outcome = Outcome::fail,
                             .check = check,
                             .what = fmt::format("libfabric finds {} of {} cards of {} ({})", provider->domains.size(),
                                                 usual, wanted, join_or_none(provider->domains))});
  }
}

/// Checks that all nodes have the same providers.
void judge_equal_providers(Judge& judge, const std::vector<NodeFabric>& nodes, const std::string& wanted) {
  constexpr const char* check = "fabric";
  std::map<std::string, std::vector<std::string>> by_names;
  std::vector<std::string> said;
  for (const NodeFabric& node : nodes) {
    if (!wanted.empty() && find_provider(node, wanted) == nullptr) continue;  // already reported
    said.push_back(join_or_none(names_of(node)));
    by_names[said.back()].push_back(node.node);
  }
  if (by_names.size() < 2) return;
  const std::string usual = commonest(said);
  if (2 * by_names[usual].size() > said.size()) {
    for (const auto& [names, different] : by_names)
      for (const std::string& node : different)
        if (names != usual)
          judge.node(node, {.outcome = Outcome::warn,
                            .check = check,
                            .what = fmt::format("libfabric has the providers {}, elsewhere {}", names, usual)});
    return;
  }
  std::vector<std::string> parts;
  for (const auto& [names, different] : by_names)
    parts.push_back(fmt::format("{} on {}", names, fold_names(different)));
  judge.job({.outcome = Outcome::warn,
             .check = check,
             .what = fmt::format("libfabric has not the same providers everywhere: {}", join(parts, "; ")),
             .remedy = "start all ranks with one environment"});
}

}  // namespace

void judge_fabric(Judge& judge) {
  std::map<std::string, std::vector<NodeFabric>> kinds;
  for (const auto& ranks : judge.nodes())
    for (const RankFacts* facts : ranks)
      if (facts->providers) {
        kinds[kind_of(*facts, judge.allocation().gpus)].push_back({facts->node, *facts->providers});
        break;
      }
  const std::string& wanted = judge.allocation().site.check.fabric_provider;
  for (const auto& [kind, nodes] : kinds) {
    if (!wanted.empty()) judge_expected_provider(judge, nodes, wanted);
    judge_equal_providers(judge, nodes, wanted);
  }
}

}  // namespace sailor::preflight
