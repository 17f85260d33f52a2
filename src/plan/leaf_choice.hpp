// Chooses the leaf switch (or block) of each node of a plan: this places ranks, and counts links across switches.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace sailor {

/// Number of nodes left at each leaf.
class LeafRoom {
 public:
  explicit LeafRoom(std::vector<std::size_t> left = {}) : left_(std::move(left)) {}

  /// A number of nodes of one leaf.
  struct Part {
    std::size_t leaf = 0;
    std::size_t nodes = 0;
  };
  /// Takes `count` nodes: from the leaf `near` if it has enough, else from the first that has, else from those with
  /// most. Takes fewer if there are no more. `near` becomes the last leaf that was taken from.
  std::vector<Part> take(std::size_t count, std::optional<std::size_t>& near);
  [[nodiscard]] std::size_t at(std::size_t leaf) const { return leaf < left_.size() ? left_[leaf] : 0; }

 private:
  [[nodiscard]] std::optional<std::size_t> choose(std::size_t count, std::optional<std::size_t> near) const;

  std::vector<std::size_t> left_;
};

/// Chooses for one kind of device of a plan after the other. All nodes are taken from one leaf if it has room for them;
/// else the nodes that a unit (a pipeline, or the replicas of a stage) is the first to use are taken together.
class LeafChoice {
 public:
  explicit LeafChoice(std::size_t leaves) : leaves_(leaves) {}

  /// A tensor-parallel group of a unit, on a node that others may use too.
  struct Group {
    std::size_t unit = 0;
    std::size_t slot = 0;  ///< number of the node
  };
  struct Taken {
    std::size_t slot = 0;
    std::size_t leaf = 0;
  };
  /// `groups` in the plan's order; `sizes`: number of devices of each slot's node; `room` by size. Returns the nodes in
  /// the order in which they are taken, without slots that no group uses or that find no room.
  std::vector<Taken> choose(std::span<const Group> groups, const std::vector<int>& sizes, std::map<int, LeafRoom> room);

 private:
  void find_home(std::span<const Group> groups, const std::vector<int>& sizes, const std::map<int, LeafRoom>& room);

  std::size_t leaves_;
  std::vector<std::optional<std::size_t>> near_;  // by unit: the leaf its nodes were last taken from
  std::optional<std::size_t> home_;
};

}  // namespace sailor
