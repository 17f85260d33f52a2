// An experiment file (experiments/*.toml): planners x models x clusters x constraints x repetitions, each combination a
// point, which is one call of sailor-plan. experiments/README.md lists the keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::apps::sweep {

struct PlannerChoice {
  std::string name{};                  ///< in tables
  std::vector<std::string> options{};  ///< of sailor-plan, "--planner", "amp", ...
  std::optional<std::int64_t> seed{};  ///< of repetition 0; each other has the next one
};

struct ModelChoice {
  std::string name{};                  ///< in tables
  std::vector<std::string> options{};  ///< --model, --global-batch, ...
};

struct ClusterChoice {
  std::string name{};
  std::string toml{};  ///< cluster.toml
};

struct ConstraintChoice {
  std::string name{};
  std::vector<std::string> options{};  ///< --objective, --max-cost, ...
};

/// Points that are left out: those that have all that is said here.
struct Exclusion {
  std::optional<std::string> planner{};
  std::optional<std::string> model{};
  std::optional<std::string> cluster{};
  std::optional<std::string> constraint{};
};

struct Experiment {
  std::string name{};     ///< also of files
  std::string title{};    ///< for people
  std::string profile{};  ///< --profile of every point
  int repetitions = 1;
  int most_at_once = 0;  ///< points that are measured at the same time, at most; 0: as many as --jobs says
  Seconds time_limit{};  ///< of a point; then it counts as failed
  std::vector<PlannerChoice> planners{};
  std::vector<ModelChoice> models{};
  std::vector<ClusterChoice> clusters{};
  std::vector<ConstraintChoice> constraints{};
  std::vector<Exclusion> exclusions{};
  std::string text{};  ///< the file's content
};

/// Errors: those of reading TOML, with file, line and column: unknown keys, a name that is there twice, an unknown GPU
/// type, an exclusion of something that is not there.
Result<Experiment> load_experiment(const std::filesystem::path& path, const GpuCatalogue& gpus);
/// `name` stands for the file in messages; what the file names is relative to `folder`.
Result<Experiment> parse_experiment(const std::string& text, const std::string& name,
                                    const std::filesystem::path& folder, const GpuCatalogue& gpus);

/// One call of sailor-plan.
struct Point {
  std::string id{};  ///< of its file; another one when anything that is asked changes
  std::string planner{};
  std::string model{};
  std::string cluster{};  ///< its name
  std::string constraint{};
  std::int64_t repetition = 0;
  std::string cluster_toml{};
  std::vector<std::string> options{};  ///< all but --cluster, whose file is made for the run

  /// "amp, opt-350m-sailor, 32 A100, throughput, repetition 1": what several points have in common is left out where
  /// the experiment has only one of it.
  [[nodiscard]] std::string label(const Experiment& experiment) const;
};

/// All of them, in the order of the file: clusters outside, then models, constraints, planners, repetitions.
std::vector<Point> points_of(const Experiment& experiment);

}  // namespace sailor::apps::sweep
