// sailor-plan --watch: follows the nodes of partitions, plans again when they change, and says whether a running
// training should change its plan; with --elastic it asks the training's controller for what pays.
#pragma once

#include "apps/options.hpp"
#include "apps/plan/cluster_input.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "planner/request.hpp"
#include "profile/profile.hpp"
#include "simulator/framework.hpp"

namespace sailor::apps {

/// What does not change while the cluster is watched.
struct WatchInputs {
  const GpuCatalogue& gpus;
  const Model& model;
  const Profile& profile;
  const simulator::Framework& framework;
};

/// Looks at the cluster every --interval until SIGINT, SIGTERM or --watch-count; `first` is what was read at the start.
/// A cluster that stops answering is a message, and is asked again. Errors: those of --against and --elastic; usage
/// (pins that contradict the job).
Result<void> watch(const Options& options, const Environment& environment, const WatchInputs& inputs,
                   const ClusterInput& first, const planner::Request& request);

}  // namespace sailor::apps
