#include "apps/plan/questions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/plan/cluster_input.hpp"
#include "apps/simulate/plan_input.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"
#include "planner/explain.hpp"
#include "planner/outline.hpp"
#include "reports/placement.hpp"
#include "reports/prediction.hpp"

namespace sailor::apps {

using nlohmann::ordered_json;

namespace {

/// Problems of the plan besides limits and time.
std::vector<std::string> problems_of(const planner::Candidate& own, const planner::Request& request,
                                     const simulator::Environment& simulated) {
  std::vector<std::string> problems;
  if (const auto memory = simulator::memory_problem(own.plan, own.prediction, simulated))
    problems.push_back("it does not fit into memory: " + *memory);
  else if (own.memory_headroom < request.memory_margin)
    problems.push_back(fmt::format("it leaves {:.1f}% of a device's memory free, less than --memory-margin {:.1f}%",
                                   own.memory_headroom * 100.0, request.memory_margin * 100.0));
  if (simulated.cluster != nullptr)
    if (auto missing = what_is_missing(own.plan, without_excluded(*simulated.cluster, request), request.partitions))
      problems.push_back(*std::move(missing));
  for (std::string& pin : planner::broken_pins(own.plan, request.pins)) problems.push_back(std::move(pin));
  return problems;
}

ordered_json parts_to_json(const planner::Candidate& candidate) {
  const planner::TimeParts parts = planner::time_parts(candidate.plan, candidate.prediction);
  return {{"compute_s", parts.compute.value()},
          {"bubble_s", parts.bubble.value()},
          {"transfers_s", parts.transfers.value()},
          {"synchronization_s", parts.synchronization.value()},
          {"update_s", parts.update.value()}};
}

/// Adds the placement, or the reason why the nodes do not suffice for it.
void add_placement(const Plan& plan, const planner::Request& request, const Cluster& cluster, Answers& answers) {
  const auto nodes =
      placement_nodes(without_excluded(cluster, request).usable(request.partitions, request.availability));
  const auto places = place_on_nodes(plan, nodes);
  if (!places) {
    answers.text += fmt::format("\nPlacement: {}\n", places.error().message());
    answers.json["placement"] = {{"error", places.error().message()}};
    return;
  }
  answers.text += reports::placement_report(plan, nodes, *places);
  answers.json["placement"] = reports::placement_to_json(plan, nodes, *places);
}

}  // namespace

Result<void> check_same_job(const TrainingJob& own, const TrainingJob& asked, std::string_view option,
                            const std::string& path) {
  const auto differs = [&](std::string_view part, const auto& has, const auto& wanted) {
    return fail(ErrorCode::usage,
                fmt::format("--{} {}: the plan is for --{} {}, not {}", option, path, part, has, wanted),
                "compare plans for the same training");
  };
  if (own.model != asked.model) return differs("model", own.model, asked.model);
  if (own.global_batch != asked.global_batch) return differs("global-batch", own.global_batch, asked.global_batch);
  if (own.sequence_length != asked.sequence_length)
    return differs("sequence-length", own.sequence_length, asked.sequence_length);
  if (own.precision != asked.precision)
    return differs("precision", to_string(own.precision), to_string(asked.precision));
  return {};
}

Result<std::optional<planner::Candidate>> read_own_plan(const PlanOptions& options, const Environment& environment,
                                                        const planner::Request& request,
                                                        const simulator::Environment& simulated) {
  if (!options.why_not.has()) return std::nullopt;
  const std::string path = *options.why_not;
  auto input = read_plan_input(path, options, environment, simulated.gpus, simulated.profile);
  if (!input) return fail(input.error());
  planner::Candidate own{.plan = std::move(input->plan), .prediction = {}, .memory_headroom = 1.0};
  // The original's JSON does not contain the sequence length.
  if (own.plan.origin.tool.empty() && path.ends_with(".json"))
    own.plan.job.sequence_length = request.job.sequence_length;
  SAILOR_CHECK(check_same_job(own.plan.job, request.job, "why-not", path));
  auto prediction = simulator::simulate(own.plan, simulated);
  if (!prediction) return fail(prediction.error(), path);
  for (const simulator::StagePrediction& stage : prediction->stages)
    if (stage.capacity)
      own.memory_headroom = std::min(own.memory_headroom, 1.0 - stage.memory.total() / *stage.capacity);
  own.prediction = *std::move(prediction);
  return std::optional<planner::Candidate>(std::move(own));
}

Answers answer_questions(const PlanOptions& options, const planner::Request& request,
                         const simulator::Environment& simulated, const planner::SearchResult& found,
                         const std::optional<planner::Candidate>& own) {
  Answers answers;
  if (*options.explain) {
    const std::string text = planner::explain(found, request);
    answers.text += "\nWhy:\n" + text;
    answers.json["explanation"] = split(text, '\n');
  }
  if (*options.placement) add_placement(found.plans.front().plan, request, *simulated.cluster, answers);
  if (!own) return answers;
  const planner::Candidate& winner = found.plans.front();
  const std::vector<std::string> problems = problems_of(*own, request, simulated);
  const std::string text = planner::why_not(*own, winner, request, problems, simulated.cluster);
  answers.text += fmt::format("\nWhy not {}:\n{}", *options.why_not, text);
  std::vector<std::string> against = problems;
  for (std::string& limit : planner::broken_limits(*own, request, simulated.cluster))
    against.push_back(std::move(limit));
  ordered_json json = reports::prediction_to_json(own->prediction);
  json["memory_headroom"] = own->memory_headroom;
  json["description"] = planner::outline(own->plan);
  json["plan"] = reports::plan_to_json(own->plan);
  json["problems"] = against;
  json["time_ratio"] = own->prediction.iteration_time / winner.prediction.iteration_time;
  json["parts"] = parts_to_json(*own);
  json["parts_of_best"] = parts_to_json(winner);
  json["explanation"] = split(text.substr(0, text.find("\n\n")), '\n');
  answers.json["why_not"] = std::move(json);
  return answers;
}

}  // namespace sailor::apps
