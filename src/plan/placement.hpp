// Assigns ranks to nodes from a plan alone: every GPU type in every zone has its own nodes, which tensor-parallel
// groups fill in the order of the plan, each going to the first node with room for it.
//
// With context or expert parallelism, the tensor-parallel groups that exchange tokens are placed as one group, or in
// parts as large as fit into a node (StageParts).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// Number of devices per node, by GPU type and zone.
class NodeSizes {
 public:
  struct Size {
    int devices = 0;
    int count = 0;  ///< number of such nodes; 0: unlimited
    bool operator==(const Size&) const = default;
  };

  NodeSizes() = default;
  /// Nodes of one size for each type, in any zone and any number.
  NodeSizes(std::initializer_list<std::pair<std::string, int>> sizes) {
    for (const auto& [gpu, devices] : sizes) add(gpu, "", devices, 0);
  }

  /// `zone`: a name that a stage may use, of a zone or partition; empty: any. Nodes with several names are added under
  /// each.
  void add(std::string_view gpu, std::string_view zone, int devices, int count);
  /// Largest first, each once: the order in which they are filled. If there are more groups than nodes, further nodes
  /// of the smallest size that holds the group follow. Empty: not known, one device per node. A zone without a list of
  /// its own uses the type's list without zone.
  [[nodiscard]] const std::vector<Size>& of(std::string_view gpu, std::string_view zone) const;
  /// Whether there is a list for exactly this type and zone.
  [[nodiscard]] bool has(std::string_view gpu, std::string_view zone) const { return find(gpu, zone) != nullptr; }

 private:
  struct List {
    std::string gpu;
    std::string zone;
    std::vector<Size> sizes;
  };
  [[nodiscard]] const List* find(std::string_view gpu, std::string_view zone) const;

  std::vector<List> lists_;
};

/// All ranks in the order in which they are placed: by copies that are placed together, stage, copy, rank of the stage.
std::vector<std::size_t> ranks_by_part(const Plan& plan);

/// How the ranks of a stage that are placed together (those of Plan::copies_together() copies of its pipeline) are
/// divided among nodes: into parts of equal size, each on one node.
struct StageParts {
  int parts = 1;   ///< number of parts
  int groups = 1;  ///< tensor-parallel groups in each of them
  int ranks = 1;   ///< of each part
};
/// `largest_node`: number of devices; 0: not known, so that each tensor-parallel group has a node of its own.
StageParts parts_of(const Plan& plan, const Stage& stage, int largest_node);

/// The node index of every stage of every copy of every pipeline, in the order of the ranks; of a stage in several
/// parts, that of its first rank. Nodes are numbered in the order of first use. Errors: invalid_input if a
/// tensor-parallel group is larger than the largest node.
Result<std::vector<int>> nodes_of_stages(const Plan& plan, const NodeSizes& sizes);

/// The node index of every rank.
Result<std::vector<int>> nodes_of_ranks(const Plan& plan, const NodeSizes& sizes);

/// The result of nodes_of_stages(), folded: nodes that hold the same are one row. Stages are numbered over the entries
/// of Plan::pipelines, copies not counted. The time to compute it hardly grows with Pipeline::count.
class NodeUse {
 public:
  /// Parts of one stage on a node: each is one tensor-parallel group, or StageParts::groups of them.
  struct Group {
    int stage = 0;
    int count = 0;
  };
  struct Node {
    std::int64_t count = 0;       ///< number of nodes that hold this
    int ranks = 0;                ///< on each of them
    std::size_t first_group = 0;  ///< see groups_of()
    std::size_t groups = 0;
  };

  /// Replaces the previous content; storage is reused. Errors as nodes_of_stages().
  Result<void> place(const Plan& plan, const NodeSizes& sizes);

  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] std::span<const Group> groups_of(const Node& node) const {
    return std::span(groups_).subspan(node.first_group, node.groups);
  }
  /// Whether every copy of the stage shares a node with the next stage of its pipeline (the last stage: with the
  /// first).
  [[nodiscard]] bool with_next(std::size_t stage) const { return with_next_[stage]; }
  [[nodiscard]] const StageParts& parts(std::size_t stage) const { return parts_[stage]; }

 private:
  // Neighbouring nodes of a pool with the same room and content.
  struct Run {
    int room = 0;     // free devices
    int content = 0;  // index into contents_
    std::int64_t count = 0;
    std::int64_t token = -1;  // of the node that a copy has just used, alone in its run; else -1
    [[nodiscard]] bool alike(const Run& other) const { return room == other.room && content == other.content; }
  };
  // The nodes of a GPU type in a zone.
  struct Pool {
    const Stage* first = nullptr;  // first stage of the plan that is placed here
    std::vector<int> group_sizes;  // sizes of the groups placed here, ascending: less room than the first is of no use
    int least_of_entry = 0;        // smallest group of the pipeline entry that is being placed; 0: none
    std::vector<Run> runs;         // nodes in use, then unused ones, in the order in which they are filled
    std::size_t used = 0;          // runs of nodes in use
    std::vector<Run> before;       // `runs` when the pattern was last noted
  };
  // Content of a node: that of `parent` and a group of `stage`; looked up from the parent.
  struct Content {
    int parent = 0;
    int stage = -1;
    int ranks = 0;
    int child = -1;    // the first content that adds a group to this
    int sibling = -1;  // the next that adds one to `parent`
  };

  Result<void> find_pools(const Plan& plan, const NodeSizes& sizes);
  void place_entry(const Pipeline& pipeline, std::int64_t copies, int first_stage);
  std::int64_t place_group(Pool& pool, int stage, int size);
  int content_with(int content, int stage, int size);
  void tidy(Pool& pool);
  void note_pattern();
  [[nodiscard]] bool pattern_is_back() const;
  [[nodiscard]] std::int64_t repetitions(std::int64_t groups) const;
  void repeat(std::int64_t times);
  void fold();
  [[nodiscard]] std::int64_t ranks() const;

  std::vector<Pool> pools_;
  std::size_t pools_used_ = 0;
  std::vector<std::size_t> pool_of_;  // by stage
  std::vector<StageParts> parts_;     // by stage
  std::vector<Content> contents_;
  std::vector<std::int64_t> full_;  // nodes that no group fits into any more, by content
  std::vector<std::int64_t> full_before_;
  std::int64_t tokens_ = 0;
  std::vector<bool> with_next_;
  std::vector<std::int64_t> node_of_copy_;  // tokens, by stage of the entry
  std::vector<Node> nodes_;
  std::vector<Group> groups_;
};

}  // namespace sailor
