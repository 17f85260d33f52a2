// The controller of an elastic training decides which ranks take part, under which plan, and from when on. It is a
// process of its own, apart from the ranks; when it dies, another one goes on from its folder (folder.hpp) while the
// ranks train.
//
// A dead rank is noticed at once, by its connection; a silent node by its heartbeats; a hanging rank by iterations that
// end too late. The remaining ranks ask for the next epoch, and get it as soon as there is a plan for their devices.
// Training does not wait for new devices: a plan with them is made while it goes on, and where that plan pays, the
// running epoch ends after its iteration.
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
  Plan plan;             ///< plan of the first epoch
  PlanMaker make_plan;   ///< makes the plans of later epochs
  int min_ranks = 1;     ///< with fewer devices the training waits for more
  int max_ranks = 0;     ///< further ranks are not used; 0: no limit
  Seconds silence{5.0};  ///< heartbeat timeout after which a rank or a controller is lost
  /// How long the training waits for missing devices, at the start and later.
  Seconds patience{600.0};
  double min_gain = 0.02;  ///< min gain in throughput of a planned change, as a share of the current one
  /// Cost of a planned change: how long the training stands still.
  Seconds switch_time{3.0};
  /// Whether a plan is trained with copies of its state (EpochPayload); `hosts` are those of its ranks. Called with the
  /// controller's lock held.
  std::function<bool(const Plan& plan, const std::vector<std::string>& hosts)> copies;
  int port = 0;
  /// Shows a line to the user.
  std::function<void(const std::string& line)> say;
  /// Called several times a second.
  std::function<void()> beat;
  /// Returns the signal that asks the controller to stop, or 0.
  std::function<int()> stop_request;
};

/// Runs a training to its end and returns the exit status of its ranks (0 done, 75 stopped with a checkpoint, 6 stopped
/// without one). Errors: io (the folder), unavailable (ranks are missing for longer than `patience`, or all are lost),
/// failure (ranks hang repeatedly, or a rank reported it).
Result<int> control(const ControllerSettings& settings);

}  // namespace sailor::elastic
