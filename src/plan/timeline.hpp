// Activity of every stage or rank of a plan over time, from the event-driven simulation or from a measured run.
#pragma once

#include <string_view>
#include <vector>

#include "core/units.hpp"

namespace sailor {

enum class Activity { forward, backward, send, receive, reduce, update };
std::string_view to_string(Activity activity);

/// Something that a rank does, or that all ranks of a stage do at the same time, in every copy of its pipeline.
struct TimelineEvent {
  int pipeline_entry = 0;  ///< index into Plan::pipelines
  int stage = 0;
  Activity activity = Activity::forward;
  /// Whether it overlaps the computation of the stage (a transfer or reduction).
  bool overlapped = false;
  int micro_batch = -1;  ///< -1: no micro-batch (reduce, update)
  int chunk = 0;
  int peer = -1;  ///< for send and receive: the other stage
  Seconds start{};
  Seconds end{};
  int rank = -1;  ///< of the plan; -1: all ranks of the stage
  bool operator==(const TimelineEvent&) const = default;
};

/// Events of a stage (or rank, if they have one: all or none) that are not `overlapped` never overlap each other; gaps
/// between them are idle.
struct Timeline {
  std::vector<TimelineEvent> events;  ///< by pipeline entry, stage, rank, start
  Seconds length{};                   ///< of the iteration
};

}  // namespace sailor
