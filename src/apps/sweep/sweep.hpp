// Runs the points of an experiment on this machine, each as a process of sailor-plan, and collects their answers. Every
// finished point is a file in the sweep's folder, written atomically: if the sweep is killed, only the points under way
// are lost.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "apps/sweep/experiment.hpp"
#include "core/error.hpp"
#include "profile/sweep_file.hpp"

namespace sailor::apps::sweep {

struct Sweep {
  Experiment experiment{};
  std::vector<Point> points{};
  std::filesystem::path folder{};
  std::filesystem::path program{};     ///< sailor-plan
  std::vector<std::string> options{};  ///< given to every point besides its own: --gpus, --models
  /// Hash of the inputs besides the points: the program, the profile and the catalogues. Points that were finished with
  /// another hash are run again.
  std::string inputs{};
};

/// Indices into `sweep.points` of the points that are still to be run, in their order, including failed ones. `again`:
/// all points. `changed` is the number of points that were finished, but with another program or other inputs.
struct Pending {
  std::vector<std::size_t> points{};
  std::size_t changed = 0;
};
Result<Pending> pending_points(const Sweep& sweep, bool again);

struct RunOptions {
  int jobs = 1;                          ///< processes at the same time
  int threads = 1;                       ///< threads per process
  std::function<bool()> is_cancelled{};  ///< may be empty
};
/// Runs these points; progress goes to stderr. A point that fails does not end it. Errors: io, failure (cancelled).
Result<void> run_points(const Sweep& sweep, const std::vector<std::size_t>& points, const RunOptions& options);

/// One row per point, in their order; points without a file are failed ones.
Result<std::vector<SweepRow>> rows_of(const Sweep& sweep);

/// The file with the cluster of a point (cluster.toml), which is written when the point is run.
std::filesystem::path cluster_file(const Sweep& sweep, const Point& point);

/// The command line of a point.
std::vector<std::string> command_of(const Sweep& sweep, const Point& point, int threads);

}  // namespace sailor::apps::sweep
