// Whether the nodes of an allocation are fit to train on: a judgement of what their ranks found out (rank_facts.hpp)
// and measured, against the plan, the site and one another. Pure: no rank is asked. For sailor-check.
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
  send,                      ///< from one rank to another; of two nodes
  all_reduce_within_node,    ///< over the ranks of a node
  all_reduce_between_nodes,  ///< over one rank of each node
  all_reduce_all,            ///< over all ranks, where nodes have several
};

/// What a link reached, the best of its repetitions.
struct LinkSpeed {
  LinkKind kind = LinkKind::send;
  int from = 0;  ///< rank: the sender, or the first of a collective
  int to = 0;    ///< rank: the receiver, or the last of a collective
  int ranks = 2;
  Bytes message{};
  BytesPerSecond bandwidth{};  ///< of the message; of an all-reduce the bus bandwidth, as nccl-tests count it
};

/// Sends of the ring of nodes, and all-reduces.
struct JobSpeed {
  bool on_gpu = false;  ///< between GPUs and not host memory: then it is compared with the site's thresholds
  std::vector<LinkSpeed> links{};
  std::vector<Unknown> unknown{};
};

struct Finding {
  Outcome outcome = Outcome::ok;
  std::string check{};   ///< "gpu-memory", "speed": the name for --skip
  std::string what{};    ///< with the numbers
  std::string remedy{};  ///< empty: exclude the node, or nothing
  bool operator==(const Finding&) const = default;
};

struct NodeVerdict {
  std::string node{};
  std::vector<int> ranks{};  ///< on it, ascending
  std::vector<Finding> findings{};
  [[nodiscard]] Outcome outcome() const;
};

struct Verdict {
  std::vector<NodeVerdict> nodes{};    ///< in the order of their first ranks
  std::vector<Finding> job{};          ///< of the job as a whole: no node is to blame
  std::vector<Finding> not_checked{};  ///< with the nodes that it holds for in `what`, unless all
  [[nodiscard]] Outcome outcome() const;
  /// Nodes to resubmit without: those that fail, unless all do.
  [[nodiscard]] std::vector<std::string> exclude() const;
};

/// What is judged.
struct Allocation {
  const std::vector<RankFacts>& ranks;  ///< by rank
  const JobSpeed& speed;
  const slurm::Site& site;
  const GpuCatalogue& gpus;
  std::set<std::string, std::less<>> skip{};  ///< checks that are not wanted
  std::int64_t least_gpus = 0;                ///< that every node must have
};

Verdict judge(const Allocation& allocation);

/// Names of all checks, for --skip.
const std::vector<std::string>& check_names();

/// Links, ranks and folders that are slow by the first measurement, for which a second one is due: it may have been
/// chance.
bool looks_slow(const Allocation& allocation);

/// The index into facts.gpus of the GPU that a rank is to use: the one that it sees, of several that of its local rank.
/// Nothing if that cannot be told.
std::optional<std::size_t> own_gpu(const RankFacts& facts);

/// A line per finding, the worst nodes first, alike ones together; what could not be checked; what was measured; the
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
