// Judges whether the nodes of an allocation are fit to train on: compares the facts (rank_facts.hpp) and measurements
// of their ranks with the plan, the site and one another. Pure: no communication. For sailor-check.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/units.hpp"
#include "preflight/outcome.hpp"
#include "preflight/rank_facts.hpp"
#include "slurm/site.hpp"

namespace sailor::preflight {

enum class LinkKind {
  send,                      ///< from one rank to another on another node
  all_reduce_within_node,    ///< over the ranks of a node
  all_reduce_between_nodes,  ///< over one rank of each node
  all_reduce_all,            ///< over all ranks, where nodes have several
};

/// Speed of a link: the best of its repetitions.
struct LinkSpeed {
  LinkKind kind = LinkKind::send;
  int from = 0;  ///< rank: the sender, or the first of a collective
  int to = 0;    ///< rank: the receiver, or the last of a collective
  int ranks = 2;
  Bytes message{};
  BytesPerSecond bandwidth{};  ///< of the message; for an all-reduce the bus bandwidth, as nccl-tests count it
};

/// Sends of the ring of nodes, and all-reduces.
struct JobSpeed {
  bool on_gpu = false;  ///< between GPUs instead of host memory: then it is compared with the site's thresholds
  std::vector<LinkSpeed> links{};
  std::vector<Unknown> unknown{};
};

struct Finding {
  Outcome outcome = Outcome::ok;
  std::string check{};   ///< "gpu-memory", "speed": the name for --skip
  std::string what{};    ///< the reason, with the numbers
  std::string remedy{};  ///< empty: exclude the node, or nothing to do
  bool operator==(const Finding&) const = default;
};

struct NodeVerdict {
  std::string node{};
  std::vector<int> ranks{};  ///< its ranks, ascending
  std::vector<Finding> findings{};
  [[nodiscard]] Outcome outcome() const;
};

struct Verdict {
  std::vector<NodeVerdict> nodes{};    ///< in the order of their first ranks
  std::vector<Finding> job{};          ///< on the job as a whole: no node is to blame
  std::vector<Finding> not_checked{};  ///< `what` names the nodes, unless it holds for all
  [[nodiscard]] Outcome outcome() const;
  /// Nodes to exclude on resubmission: those that fail, unless all do.
  [[nodiscard]] std::vector<std::string> exclude() const;
};

/// The input of judge().
struct Allocation {
  const std::vector<RankFacts>& ranks;  ///< by rank
  const JobSpeed& speed;
  const slurm::Site& site;
  const GpuCatalogue& gpus;
  std::set<std::string, std::less<>> skip{};  ///< checks to leave out
  std::int64_t least_gpus = 0;                ///< minimum for every node
};

Verdict judge(const Allocation& allocation);

/// Names of all checks, for --skip.
const std::vector<std::string>& check_names();

/// Whether links, ranks or folders are slow by the first measurement, so that a second one is due: it may have been
/// chance.
bool looks_slow(const Allocation& allocation);

/// The index into facts.gpus of the GPU that a rank uses: the one that it sees; of several, that of its local rank.
/// std::nullopt if that cannot be told.
std::optional<std::size_t> own_gpu(const RankFacts& facts);

/// A line per finding, the worst nodes first, equal ones together; what could not be checked; what was measured; the
/// option --exclude=... as the last line if there are nodes to exclude.
std::string report(const Verdict& verdict, const Allocation& allocation);
/// The same with all facts.
std::string report_json(const Verdict& verdict, const Allocation& allocation);

/// The worst finding, and how many others there are: "fail: gh1: ecc: ...; and 2 more (throttling, xid)". For verdicts
/// on one node.
std::string one_line(const Verdict& verdict);

/// "gh[1-4,7]"; names without a number, or with different padding, stand for themselves.
std::string fold_names(const std::vector<std::string>& names);

}  // namespace sailor::preflight
