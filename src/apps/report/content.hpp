// sailor-report reads its input and what goes with it, as far as the files are there, and predicts the rest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/simulate/plan_input.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "plan/timeline.hpp"
#include "planner/planner.hpp"
#include "profile/run_file.hpp"
#include "reports/page/page.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

struct ReportOptions : CommonOptions, PlanInputOptions {
  OptionValue<std::string> input, output, profile, framework, trace, events, elastic_trace;
  OptionValue<bool> pareto, measured_only;
};

/// Owns what a page shows.
struct ReportContent {
  Plan plan{};
  std::string profile{};
  std::string framework{};
  std::string cluster{};
  std::optional<simulator::Prediction> prediction{};
  bool prediction_is_stored = false;
  std::optional<Timeline> timeline{};
  std::string memory_problem{};
  std::vector<std::string> notes{};
  std::vector<std::string> nodes{};
  std::optional<std::vector<planner::Candidate>> front{};
  std::optional<RunRecord> run{};
  std::optional<Timeline> measured_timeline{};
  std::optional<reports::ElasticEvents> events{};

  /// References this object.
  [[nodiscard]] reports::PageInput page(const std::string& file, const std::string& made_by) const;
};

/// Reads the plan or run file `path` and the files that options name, and predicts. Without --profile, a store that is
/// missing or has no times of the plan is no error: then the notes say so, and the figures in the plan count. Errors:
/// those of the files; usage (options that need a run or a cluster).
Result<ReportContent> gather_report(const std::string& path, const ReportOptions& options,
                                    const Environment& environment);

}  // namespace sailor::apps
