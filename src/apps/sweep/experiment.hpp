// An experiment file (experiments/*.toml): planners x models x clusters x constraints x repetitions. Each combination
// is a point, which is one call of sailor-plan. experiments/README.md lists the keys.
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
  std::vector<std::string> options{};  ///< options of sailor-plan: "--planner", "amp", ...
  std::optional<std::int64_t> seed{};  ///< seed of repetition 0; each further repetition adds 1
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

/// Excludes the points that match all values given here.
struct Exclusion {
  std::optional<std::string> planner{};
  std::optional<std::string> model{};
  std::optional<std::string> cluster{};
  std::optional<std::string> constraint{};
};

struct Experiment {
  std::string name{};     ///< also the name of its files
  std::string title{};    ///< for people
  std::string profile{};  ///< --profile of every point
  int repetitions = 1;
  int most_at_once = 0;  ///< max number of points measured at the same time; 0: as --jobs says
  Seconds time_limit{};  ///< limit per point; after it the point counts as failed
  std::vector<PlannerChoice> planners{};
  std::vector<ModelChoice> models{};
  std::vector<ClusterChoice> clusters{};
  std::vector<ConstraintChoice> constraints{};
  std::vector<Exclusion> exclusions{};
  std::string text{};  ///< the file's content
};

/// Reads an experiment. Errors: those of reading TOML, with file, line and column: unknown keys, a duplicate name, an
/// unknown GPU type, model, planner or precision, an exclusion of something that does not exist. `models` is the folder
/// with the models that are known by name; if it is empty, names of models and planners are not checked: another
/// sailor-plan may know them.
Result<Experiment> load_experiment(const std::filesystem::path& path, const GpuCatalogue& gpus,
                                   const std::filesystem::path& models);
/// Parses an experiment. `name` stands for the file in messages; paths in the file are relative to `folder`.
Result<Experiment> parse_experiment(const std::string& text, const std::string& name,
                                    const std::filesystem::path& folder, const GpuCatalogue& gpus,
                                    const std::filesystem::path& models);

/// One call of sailor-plan.
struct Point {
  std::string id{};  ///< name of its file; differs if any input of the point differs
  std::string planner{};
  std::string model{};
  std::string cluster{};  ///< name of the cluster
  std::string constraint{};
  std::int64_t repetition = 0;
  std::string cluster_toml{};
  std::vector<std::string> options{};  ///< all but --cluster, whose file is written for the run

  /// "amp, opt-350m-sailor, 32 A100, throughput, repetition 1": what several points have in common is left out where
  /// the experiment has only one of it.
  [[nodiscard]] std::string label(const Experiment& experiment) const;
};

/// All points, in the order of the file: clusters outermost, then models, constraints, planners, repetitions.
std::vector<Point> points_of(const Experiment& experiment);

}  // namespace sailor::apps::sweep
