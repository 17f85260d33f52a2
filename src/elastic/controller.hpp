// The controller of an elastic training: who takes part, under which plan, from when on. It lives in a process of its
// own, apart from the ranks; when it dies, another one goes on from its folder (folder.hpp) while the ranks train.
//
// A rank that dies is noticed by its connection, at once; a node that is silent by the heartbeats; a rank that hangs by
// the iterations, which end too late. The ranks that are left ask for the next epoch, and get it as soon as there is a
// plan for their devices. Devices that come are waited for by nobody: a plan with them is made while the training goes
// on, and where it pays the running epoch ends after its iteration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "elastic/plan_desk.hpp"
#include "plan/plan.hpp"

namespace sailor::elastic {

struct ControllerSettings {
  std::filesystem::path folder;
  Plan plan;             ///< of the first epoch
  PlanMaker make_plan;   ///< of the later ones
  int min_ranks = 1;     ///< with fewer devices the training waits for more
  int max_ranks = 0;     ///< more are not used; 0: any number
  Seconds silence{5.0};  ///< a rank, or a controller, that is not heard of for longer is lost
  /// Devices that are missing, at the start and later, are waited for so long.
  Seconds patience{600.0};
  double min_gain = 0.02;  ///< planned changes: so much more throughput, as a share of today's
  /// What a planned change costs: the training stands still for so long.
  Seconds switch_time{3.0};
  bool copies = true;  ///< see EpochPayload
  int port = 0;
  /// A line for people.
  std::function<void(const std::string& line)> say;
  /// Some times a second.
  std::function<void()> beat;
  /// The signal that asks it to stop, or 0.
  std::function<int()> stop_request;
};

/// Runs a training to its end; returns its exit status: that of the ranks (0 done, 75 stopped with a checkpoint, 6
/// without one). Errors: io (the folder), unavailable (ranks are missing for longer than `patience`; all are lost),
/// failure (ranks hang again and again; a rank said so).
Result<int> control(const ControllerSettings& settings);

}  // namespace sailor::elastic
