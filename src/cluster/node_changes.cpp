#include "cluster/node_changes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/terminal.hpp"
#include "core/text.hpp"

namespace sailor {

namespace {

std::string offered(const NodeOffer& offer) {
  return fmt::format("{} {}{}", offer.devices, offer.gpu, offer.zone.empty() ? "" : " in " + offer.zone);
}

std::string why_it_went(const std::string& name, const Cluster& cluster) {
  for (const NodeGroup& group : cluster.groups) {
    if (std::find(group.nodes.begin(), group.nodes.end(), name) == group.nodes.end()) continue;
    return group.state_reason.empty() ? std::string(to_string(group.state)) : group.state_reason;
  }
  return "not in the cluster any more";
}

/// Description of nodes with the same change.
std::string in_words(const NodeChange& change, bool several) {
  if (!change.now) return change.reason.empty() ? "went" : fmt::format("went ({})", change.reason);
  if (!change.before) return fmt::format("came ({}{})", offered(*change.now), several ? " each" : "");
  return fmt::format("{} {} instead of {}", several ? "have" : "has", offered(*change.now), offered(*change.before));
}

bool alike(const NodeChange& a, const NodeChange& b) {
  return a.before == b.before && a.now == b.now && a.reason == b.reason;
}

}  // namespace

NodeOffers node_offers(const Cluster& cluster, std::span<const std::string> partitions, Availability availability) {
  NodeOffers offers;
  std::map<std::string, int> unnamed;  // nodes by GPU type
  for (const NodeGroup& group : cluster.usable(partitions, availability)) {
    const NodeOffer offer{.gpu = group.gpu, .devices = group.gpus_per_node, .zone = group.zone};
    for (const std::string& node : group.nodes) offers.emplace(node, offer);
    if (!group.nodes.empty()) continue;
    for (int i = 0; i < group.count; ++i)
      offers.emplace(fmt::format("{} node {}", group.gpu, ++unnamed[group.gpu]), offer);
  }
  return offers;
}

std::vector<NodeChange> node_changes(const NodeOffers& before, const NodeOffers& now, const Cluster& cluster) {
  std::vector<NodeChange> changes;
  for (const auto& [node, offer] : before) {
    const auto found = now.find(node);
    if (found == now.end())
      changes.push_back({.node = node, .before = offer, .now = {}, .reason = why_it_went(node, cluster)});
    else if (found->second != offer)
      changes.push_back({.node = node, .before = offer, .now = found->second});
  }
  for (const auto& [node, offer] : now)
    if (!before.contains(node)) changes.push_back({.node = node, .before = {}, .now = offer});
  std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  return changes;
}

std::string describe(const std::vector<NodeChange>& changes) {
  std::vector<std::pair<NodeChange, std::vector<std::string>>> kinds;
  for (const NodeChange& change : changes) {
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return alike(k.first, change); });
    (known == kinds.end() ? kinds.emplace_back(change, std::vector<std::string>()) : *known)
        .second.push_back(change.node);
  }
  std::string text;
  for (const auto& [change, nodes] : kinds)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_some(nodes), in_words(change, nodes.size() > 1));
  return text;
}

std::string describe(const NodeOffers& offers) {
  struct Amount {
    int devices = 0;
    std::size_t nodes = 0;
  };
  std::map<std::string, Amount> amounts;  // by GPU type and zone
  for (const auto& [node, offer] : offers) {
    Amount& amount = amounts[offer.zone.empty() ? offer.gpu : offer.gpu + " in " + offer.zone];
    amount.devices += offer.devices;
    ++amount.nodes;
  }
  std::string text;
  for (const auto& [what, amount] : amounts)
    text += fmt::format("{}{} {} on {}", text.empty() ? "" : ", ", amount.devices, what, plural(amount.nodes, "node"));
  return text.empty() ? "no nodes" : text;
}

}  // namespace sailor
