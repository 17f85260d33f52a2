// The page of sailor-report: what is known of a plan or of a training, as one HTML file that needs no other.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "plan/timeline.hpp"
#include "planner/planner.hpp"
#include "profile/run_file.hpp"
#include "reports/page/html.hpp"
#include "simulator/simulator.hpp"

namespace sailor::reports {

/// What an elastic training wrote about itself (events.jsonl), and its account of the time.
struct ElasticEvents {
  std::string file{};
  std::vector<nlohmann::json> lines{};
  Seconds total{};  ///< from the end of the first iteration until the last event
  Seconds without_training{};
  Seconds again{};  ///< iterations that were run a second time
  double goodput = 1.0;
};

/// Content of a page. Pointers may be null: then the page has no such section.
struct PageInput {
  const Plan& plan;
  std::string file{};       ///< the plan or run file, as it was named
  std::string made_by{};    ///< "sailor-report 0.1.0"
  std::string profile{};    ///< profile store of the prediction
  std::string framework{};  ///< framework of the prediction
  std::string cluster{};    ///< name of the cluster; empty: not given

  /// Of the simulator; or only the figures that the plan file carries (prediction_is_stored), then without stages.
  const simulator::Prediction* prediction = nullptr;
  bool prediction_is_stored = false;
  const Timeline* timeline = nullptr;  ///< simulated
  std::string memory_problem{};        ///< why the plan does not fit; empty: it does, or it is not known
  std::vector<std::string> notes{};    ///< what the reader must know, a sentence each
  std::vector<std::string> nodes{};    ///< node of each rank; empty: not known
  const std::vector<planner::Candidate>* front = nullptr;  ///< Pareto front of plans for the same job and cluster

  const RunRecord* run = nullptr;
  const Timeline* measured_timeline = nullptr;  ///< of one iteration; `timeline` may have another length
  const ElasticEvents* events = nullptr;
};

/// The page.
std::string report_page(const PageInput& input);

/// The prediction that a plan file carries; std::nullopt if it has none.
std::optional<simulator::Prediction> stored_prediction(const Plan& plan);

// Its parts, in the order of the page. Each adds nothing if the input does not have it.
std::string page_heading(const PageInput& input);
void add_comparison_section(const PageInput& input, std::vector<HtmlSection>& sections);
void add_plan_sections(const PageInput& input, std::vector<HtmlSection>& sections);
void add_run_sections(const PageInput& input, std::vector<HtmlSection>& sections);
void add_front_section(const PageInput& input, std::vector<HtmlSection>& sections);

}  // namespace sailor::reports
