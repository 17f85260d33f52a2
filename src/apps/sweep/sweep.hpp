// Runs the points of an experiment on this machine, each a process of sailor-plan, and gathers what they answered.
// Every finished point is a file in the sweep's folder, written atomically: who is killed loses the points under way.
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
  std::vector<std::string> options{};  ///< that every point gets besides its own: --gpus, --models
  /// Hash of what the answers rest on besides the points: the program, the profile and the catalogues. Points that were
  /// finished with another one are done again.
  std::string inputs{};
};

/// Points of `sweep.points` (by index) that are still to be done, in their order; those that failed are among them.
/// `again`: all. `changed` is the number of points that were finished, but by another program or from other figures.
struct Pending {
  std::vector<std::size_t> points{};
  std::size_t changed = 0;
};
Result<Pending> pending_points(const Sweep& sweep, bool again);

struct RunOptions {
  int jobs = 1;                          ///< processes at the same time
  int threads = 1;                       ///< of each
  std::function<bool()> is_cancelled{};  ///< may be empty
};
/// Runs these points; progress goes to stderr. A point that fails does not end it. Errors: io, failure (cancelled).
Result<void> run_points(const Sweep& sweep, const std::vector<std::size_t>& points, const RunOptions& options);

/// One row for each point, in their order; points that have no file yet are failed ones.
Result<std::vector<SweepRow>> rows_of(const Sweep& sweep);

/// The command line of a point.
std::vector<std::string> command_of(const Sweep& sweep, const Point& point, int threads);

}  // namespace sailor::apps::sweep
