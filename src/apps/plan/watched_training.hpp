// The elastic training that sailor-plan --watch --elastic watches: the nodes it has, and those it is to release.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "cluster/node_changes.hpp"
#include "core/error.hpp"
#include "elastic/folder.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

class WatchedTraining {
 public:
  /// With an empty folder there is no training, and the other methods do nothing.
  explicit WatchedTraining(std::filesystem::path folder) : folder_(std::move(folder)) {}
  [[nodiscard]] bool is_there() const { return !folder_.empty(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// State of its journal at the last look().
  [[nodiscard]] const elastic::JournalState& state() const { return state_; }

  /// Reads the journal. Errors: those of elastic::read_journal_state().
  Result<void> look();

  /// Marks the allocated nodes of the training as idle.
  void free_own_nodes(Cluster& cluster) const;

  struct Left {
    std::vector<std::string> nodes{};       ///< released from now on
    std::vector<std::string> taken_back{};  ///< may be used again
  };
  /// Makes the training release its nodes that plans may not use any more (drained, in a maintenance reservation), as
  /// long as it has others, and use them again when they are back. `offers`: nodes that plans may use; `up`: those and
  /// nodes with jobs, of which a node that the training has left still has the training's. Errors: io.
  Result<Left> leave_nodes(const NodeOffers& offers, const NodeOffers& up);

  /// Whether the nodes that the training keeps suffice for the plan: the controller refuses other plans. (Companion
  /// jobs bring further nodes, for which it plans itself.)
  [[nodiscard]] bool can_run(const Plan& plan, const Cluster& cluster) const;

 private:
  [[nodiscard]] bool takes_part(const std::string& node) const { return nodes_.contains(node); }

  std::filesystem::path folder_;
  elastic::JournalState state_;
  std::set<std::string> nodes_;  ///< nodes of state_
  std::set<std::string> left_;   ///< nodes that it is asked to release
};

}  // namespace sailor::apps
