// --explain and --why-not: text beside the plans.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "apps/plan/plan_options.hpp"
#include "core/error.hpp"
#include "planner/planner.hpp"
#include "planner/request.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

struct Answers {
  std::string text;                                                ///< below the table
  nlohmann::ordered_json json = nlohmann::ordered_json::object();  ///< keys explanation, why_not
};

/// Refuses a plan, read from the file that the option names, if it is for another training. Errors: usage.
Result<void> check_same_job(const TrainingJob& own, const TrainingJob& asked, std::string_view option,
                            const std::string& path);

/// The plan that --why-not names, with its prediction; std::nullopt without the option. Errors: those of the file;
/// usage if it is a plan for another job.
Result<std::optional<planner::Candidate>> read_own_plan(const PlanOptions& options, const Environment& environment,
                                                        const planner::Request& request,
                                                        const simulator::Environment& simulated);

Answers answer_questions(const PlanOptions& options, const planner::Request& request,
                         const simulator::Environment& simulated, const planner::SearchResult& found,
                         const std::optional<planner::Candidate>& own);

}  // namespace sailor::apps
