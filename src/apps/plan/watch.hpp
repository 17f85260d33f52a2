// sailor-plan --watch: follows the nodes of partitions, plans again when they change, and reports whether a running
// training should change its plan; with --elastic it requests plans that pay from the controller of the training.
#pragma once

#include "apps/plan/cluster_input.hpp"
#include "apps/plan/plan_options.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "planner/request.hpp"
#include "profile/profile.hpp"
#include "simulator/framework.hpp"

namespace sailor::apps {

/// Inputs that do not change while the cluster is watched.
struct WatchInputs {
  const GpuCatalogue& gpus;
  const Model& model;
  const Profile& profile;
  const simulator::Framework& framework;
};

/// Looks at the cluster every --interval until SIGINT, SIGTERM or --watch-count; `first` is what was read at the start.
/// If the cluster stops answering, a message is printed and it is asked again. Errors: those of --against and
/// --elastic; usage (pins that contradict the job).
Result<void> watch(const PlanOptions& options, const Environment& environment, const WatchInputs& inputs,
                   const ClusterInput& first, const planner::Request& request);

}  // namespace sailor::apps
