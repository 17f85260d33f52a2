// What sailor-plan --watch says when the nodes of a cluster change: a line of text or of JSON.
#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cluster/node_changes.hpp"
#include "core/units.hpp"
#include "planner/availability.hpp"
#include "planner/planner.hpp"

namespace sailor::reports {

/// A query of the cluster that found a change, or the first query.
struct WatchEvent {
  std::time_t time = 0;
  bool first = false;
  NodeOffers nodes{};                 ///< nodes that plans may use now
  std::vector<NodeChange> changes{};  ///< since the previous query
  planner::Decision decision = planner::Decision::pause;
  std::optional<planner::Candidate> found{};
  std::string problem{};                         ///< why nothing was found
  std::optional<planner::PricedPlan> running{};  ///< the running plan, on the current nodes
  std::string running_problem{};                 ///< why it cannot go on: "the plan needs 16 cpu, there are 12"
  double gain = 0.0;  ///< gain of changing from `running` to `found`: planner::gain_of_change()
  Seconds horizon{};  ///< horizon for which `gain` was computed
  Seconds switch_cost{};
  std::vector<std::string> left{};        ///< nodes that a running training is asked to leave
  std::vector<std::string> taken_back{};  ///< nodes that it is no longer asked to leave
  std::string requested{};                ///< the file that asks a running training for `found`; empty: none
};

/// "2026-11-25T03:12:05Z gh3 went (drained: pump): best plan ...: switch", without a newline.
std::string watch_line(const WatchEvent& event, planner::Objective objective);
nlohmann::ordered_json watch_to_json(const WatchEvent& event, planner::Objective objective);

/// Says that the cluster does not answer (`problem`), or answers again after `silent` (`problem` is empty).
std::string watch_line(std::time_t time, const std::string& problem, Seconds silent);
nlohmann::ordered_json watch_to_json(std::time_t time, const std::string& problem, Seconds silent);

}  // namespace sailor::reports
