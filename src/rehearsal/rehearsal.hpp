// Runs a plan with the real trainer on ranks without its devices: computation, messages and collectives take the
// simulator's times; tensors have addresses but no memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/world.hpp"
#include "simulator/costs.hpp"
#include "simulator/framework.hpp"

namespace sailor::rehearsal {

/// The plan to rehearse; all members must outlive the rehearsal. `costs` are those of the plan.
struct Subject {
  const Plan& plan;
  const Model& model;
  const simulator::Framework& framework;
  const simulator::PlanCosts& costs;
  Seconds simulated{};  ///< iteration time by the simulator
};

struct RehearsalSettings {
  std::int64_t iterations = 3;  ///< the first one connects the ranks
  /// Time passes this many times slower than on the devices; 0: no waiting, time is only added up. std::nullopt: as
  /// slow as this machine needs for this many ranks.
  std::optional<double> slowdown{};
  // Callbacks on rank 0:
  std::function<void(double slowdown)> started{};
  std::function<void(std::int64_t iteration, std::optional<Seconds> waited, Seconds due)> ran{};
};

/// Times in the devices' time, one per iteration.
struct IterationTimes {
  std::vector<double> waited;  ///< s; empty if nobody waits
  std::vector<double> due;     ///< s; as if all waits ended exactly on time
};

/// The worst rank of a stage.
struct StageNeed {
  int rank = -1;
  Bytes tensors{};   ///< of the runtime, plus the base of a process
  Bytes profiled{};  ///< predicted by the profile and the framework
  int communicators = 0;
};

struct Rehearsal {
  IterationTimes times;
  std::vector<StageNeed> needs;  ///< by stage, on rank 0; empty elsewhere
};

/// The plan as the trainer sees it: TF32 is a mode of the GPUs' matrix products, whose tensors are fp32.
Plan trained_plan(Plan plan);

/// Collective over as many ranks as the plan has; trained_plan() of the plan must have passed check_trainable(). Throws
/// TransportError and everything else that the trainer throws.
Rehearsal rehearse(const Subject& subject, const RehearsalSettings& settings, const runtime::World& world);

}  // namespace sailor::rehearsal
