// Plans which ranks of a job are measured together, and as which link. Pure: no communication.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "profile/measurements.hpp"

namespace sailor::profiler {

/// Where a rank runs, and on what.
struct LinkRank {
  std::string node{};  ///< ranks with the same text share a node
  std::string gpu{};
  std::string zone{};
};

/// One curve to measure.
struct LinkSeries {
  LinkKey key{};
  /// send_receive: sender and receiver of each message, as indices into LinkGroup::ranks; all at once.
  std::vector<std::pair<int, int>> pairs{};
  bool operator==(const LinkSeries&) const = default;
};

/// Ranks that measure together while all others are idle.
struct LinkGroup {
  std::vector<int> ranks{};  ///< ascending
  std::vector<LinkSeries> series{};
  bool operator==(const LinkGroup&) const = default;
};

/// The groups of a job of `ranks`. A kind of place is a GPU type in a zone. Measured are
/// - inside a node, for each kind: on the node with most ranks of it, the pairs (0, 1), (2, 3), ... that send at once,
///   and collectives over the first ranks;
/// - between nodes, for each kind and each pair of kinds: on the two nodes with most ranks, the pairs of rank i on one
///   and rank i on the other, and collectives over both; of two kinds messages in both directions;
/// - over all nodes of a kind, where there are more than two: collectives;
/// each with 1, 2, 4, ... and all ranks of a node at once. On one node two kinds are measured like two nodes.
/// `scope` overrides what the nodes say: intra_node, all ranks share a node; inter_node, none do.
std::vector<LinkGroup> plan_link_groups(std::vector<LinkRank> ranks, std::optional<LinkScope> scope = std::nullopt);

}  // namespace sailor::profiler
