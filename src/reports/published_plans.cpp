#include "reports/published_plans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "planner/baselines/plan_list_json.hpp"
#include "reports/prediction.hpp"

namespace sailor::reports {

namespace published_plans_detail {

using nlohmann::ordered_json;
using planner::baselines::Baseline;
using planner::baselines::Faults;
using planner::baselines::HarnessAnswer;
using planner::baselines::Judge;
using planner::baselines::JudgedPlan;
using planner::baselines::Offer;
using planner::baselines::Problem;

std::string_view name_of(Judge judge) { return judge == Judge::simulator ? "simulator" : "artifact"; }
std::string_view name_of(Faults faults) { return faults == Faults::kept ? "kept" : "fixed"; }

/// JSON has no infinity.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }
double throughput(Seconds iteration_time) { return 1.0 / iteration_time.value(); }

int devices_of(const JudgedPlan& judged) {
  int devices = 0;
  for (const auto& [gpu, count] : judged.proposal.plan.gpus()) devices += count;
  return devices;
}

/// The iterations per second by the judge that did not decide.
std::string other_throughput(const JudgedPlan& judged, Judge judge) {
  if (judge == Judge::artifact) {
    if (!judged.simulator) return "-";
    return fmt::format("{}{:#.3g}{}", judged.simulator->is_bound ? "<= " : "",
                       throughput(judged.simulator->iteration_time), judged.simulator->fits ? "" : " (too large)");
  }
  if (!judged.artifact) return "-";
  return fmt::format("{:#.3g}{}", throughput(judged.artifact->iteration_time),
                     judged.artifact->fits ? "" : " (too large)");
}

ordered_json artifact_to_json(const JudgedPlan& judged) {
  if (!judged.artifact) return nullptr;
  const auto& score = *judged.artifact;
  return {{"iteration_time_s", score.iteration_time.value()},
          {"throughput_iterations_per_s", number(throughput(score.iteration_time))},
          {"pipeline_time_s", score.pipeline_time.value()},
          {"synchronization_time_s", score.synchronization_time.value()},
          {"cost_usd_per_iteration", score.cost.value()},
          {"egress_cost_usd_per_iteration", score.egress_cost.value()},
          {"fits", score.fits},
          {"peak_memory_bytes", score.peak_memory.value()}};
}

ordered_json simulator_to_json(const JudgedPlan& judged) {
  if (!judged.simulator) return nullptr;
  const auto& verdict = *judged.simulator;
  return {{"iteration_time_s", verdict.iteration_time.value()},
          {"throughput_iterations_per_s", number(throughput(verdict.iteration_time))},
          {"cost_usd_per_iteration", verdict.cost.value()},
          {"fits", verdict.fits},
          {"peak_memory_bytes", verdict.peak_memory.value()},
          {"is_bound", verdict.is_bound}};
}

ordered_json plan_row(const JudgedPlan& judged, const Problem& problem) {
  const auto& expected = judged.proposal;
  ordered_json row{
      {"iteration_time_s", judged.iteration_time.value()},
      {"throughput_iterations_per_s", number(throughput(judged.iteration_time))},
      {"cost_usd_per_iteration", judged.cost.value()},
      {"peak_memory_bytes", judged.peak_memory.value()},
      {"fits", true},
      {"is_bound", judged.is_bound},
      {"description", describe(judged.proposal.plan)},
      {"gpus", judged.proposal.plan.gpus()},
      {"expected",
       {{"throughput_iterations_per_s", expected.throughput ? number(*expected.throughput) : ordered_json()},
        {"cost_usd_per_iteration", expected.cost ? number(expected.cost->value()) : ordered_json()}}},
      {"artifact", artifact_to_json(judged)},
      {"simulator", simulator_to_json(judged)},
      {"plan", judged.plan ? plan_to_json(*judged.plan) : ordered_json()},
      {"list",
       ordered_json::parse(planner::baselines::plan_list_to_json(judged.proposal.plan, problem.job.global_batch))}};
  if (!judged.artifact) row["artifact_error"] = judged.artifact.error().message();
  if (!judged.simulator) row["simulator_error"] = judged.simulator.error().message();
  if (!judged.plan) row["why_no_plan"] = judged.why_no_plan;
  return row;
}

}  // namespace published_plans_detail

std::string planner_list() {
  std::string text =
      "sailor      this project's own: all that Sailor can run, by its simulator, with a bound on what is better\n";
  for (const planner::baselines::Baseline* baseline : planner::baselines::all_baselines())
    text += fmt::format("{:11} {} ({}): {}\n", baseline->name(), baseline->title(), baseline->citation(),
                        baseline->summary());
  return text;
}

std::string counts_text(const planner::baselines::HarnessAnswer& answer) {
  std::vector<std::string> counts;
  const auto add = [&](std::size_t count, std::string_view one, std::string_view several) {
    if (count > 0) counts.push_back(fmt::format("{} {}", count, count == 1 ? one : several));
  };
  add(answer.did_not_fit, "does not fit", "do not fit");
  add(answer.not_available, "takes more devices than there are", "take more devices than there are");
  add(answer.rejected_by_limits, "misses a limit", "miss a limit");
  add(answer.not_judged, "cannot be judged", "cannot be judged");
  std::string text = fmt::format("{} proposed", plural(answer.proposed, "plan"));
  if (counts.empty()) return text;
  return fmt::format("{}; {}{}", text, answer.plans.empty() ? "" : "before the first that is accepted, ",
                     join(counts, ", "));
}

std::string published_report(const Heading& heading, const planner::baselines::Baseline& baseline,
                             const planner::baselines::Problem& problem, planner::baselines::Judge judge,
                             const planner::baselines::HarnessAnswer& answer) {
  using namespace published_plans_detail;
  std::string text = heading_text(heading) + "\n";
  text +=
      fmt::format("{} ({}), faults of its adaptation {}: {}, {} of search.\n\n", baseline.title(), baseline.citation(),
                  name_of(problem.faults), counts_text(answer), format_time(answer.search_time));
  Table table({{"#"},
               {"time"},
               {"iterations/s"},
               {"USD/iteration"},
               {"devices"},
               {"peak memory"},
               {"it expects"},
               {judge == Judge::simulator ? "by the artifact" : "by the simulator"},
               {"plan", Align::left}});
  bool bounds = false;
  for (std::size_t i = 0; i < answer.plans.size(); ++i) {
    const JudgedPlan& judged = answer.plans[i];
    bounds = bounds || (judged.simulator && judged.simulator->is_bound);
    const char* const at_least = judged.is_bound ? ">= " : "";
    table.add_row({fmt::format("{}", i + 1), at_least + format_time(judged.iteration_time),
                   fmt::format("{}{:#.3g}", judged.is_bound ? "<= " : "", throughput(judged.iteration_time)),
                   at_least + format_usd(judged.cost), fmt::format("{}", devices_of(judged)),
                   at_least + format_bytes(judged.peak_memory),
                   judged.proposal.throughput ? fmt::format("{:#.3g}", *judged.proposal.throughput) : "-",
                   other_throughput(judged, judge), describe(judged.proposal.plan)});
  }
  text += table.to_string();
  text += fmt::format(
      "Plans are in the planner's own order, judged by {}; P: stages, D: replicas, T: tensor parallel, "
      "b: micro-batch.\n",
      judge == Judge::simulator ? "this project's simulator" : "the artifact's evaluator");
  if (bounds)
    text +=
        "<=, >=: a bound in the planner's favour, as this project's runtime cannot run the plan (replicas that differ "
        "in number\nbetween stages, or groups over several nodes).\n";
  for (const std::string& note : answer.notes) text += "note: " + note + "\n";
  return text;
}

nlohmann::ordered_json published_to_json(const Heading& heading, const planner::baselines::Baseline& baseline,
                                         const planner::baselines::Problem& problem, planner::baselines::Judge judge,
                                         const planner::baselines::HarnessAnswer& answer) {
  using namespace published_plans_detail;
  ordered_json offers = ordered_json::array();
  for (const Offer& offer : answer.offers)
    offers.push_back(
        {{"gpu", offer.gpu}, {"zone", offer.zone}, {"gpus", offer.gpus}, {"gpus_per_node", offer.gpus_per_node}});
  ordered_json plans = ordered_json::array();
  for (const JudgedPlan& judged : answer.plans) plans.push_back(plan_row(judged, problem));
  ordered_json json = heading_to_json(heading);
  json.update({{"planner", baseline.name()},
               {"faults", name_of(problem.faults)},
               {"judge", name_of(judge)},
               {"objective", to_string(problem.objective)},
               {"search_time_s", answer.search_time.value()},
               {"out_of_time", answer.out_of_time},
               {"proposed", answer.proposed},
               {"did_not_fit", answer.did_not_fit},
               {"rejected_by_limits", answer.rejected_by_limits},
               {"not_available", answer.not_available},
               {"not_judged", answer.not_judged},
               {"notes", answer.notes},
               {"offers", std::move(offers)},
               {"plans", std::move(plans)}});
  return json;
}

std::string estimate_report(const OwnEstimate& own, const OtherEstimate& other, std::optional<Seconds> measured_time,
                            std::optional<Bytes> measured_memory) {
  const auto error = [](auto estimate, const auto& measured) {
    return measured ? fmt::format(" ({:+.1f}%)", (estimate / *measured - 1.0) * 100.0) : std::string();
  };
  const std::string at_least = own.is_bound ? ">= " : "";
  std::vector<Table::Column> columns{{"", Align::left}, {"Sailor"}, {other.title}};
  if (measured_time || measured_memory) columns.push_back({"measured"});
  Table table(columns);
  const auto& [time, memory] = other.estimate;
  std::vector<std::string> row{"iteration time",
                               at_least + format_time(own.iteration_time) + error(own.iteration_time, measured_time),
                               time ? format_time(*time) + error(*time, measured_time) : "not modelled"};
  if (columns.size() > 3) row.push_back(measured_time ? format_time(*measured_time) : "-");
  table.add_row(row);
  row = {"peak memory", at_least + format_bytes(own.peak_memory) + error(own.peak_memory, measured_memory),
         memory ? format_bytes(*memory) + error(*memory, measured_memory) : "not modelled"};
  if (columns.size() > 3) row.push_back(measured_memory ? format_bytes(*measured_memory) : "-");
  table.add_row(row);
  return table.to_string();
}

nlohmann::ordered_json estimate_to_json(const OtherEstimate& other, std::optional<Seconds> measured_time,
                                        std::optional<Bytes> measured_memory) {
  using published_plans_detail::number;
  const auto& [time, memory] = other.estimate;
  nlohmann::ordered_json json{{"estimator", other.estimator},
                              {"iteration_time_s", time ? number(time->value()) : nlohmann::ordered_json()},
                              {"peak_memory_bytes", memory ? number(memory->value()) : nlohmann::ordered_json()}};
  if (time && measured_time) json["iteration_time_error_percent"] = number((*time / *measured_time - 1.0) * 100.0);
  if (memory && measured_memory) json["peak_memory_error_percent"] = number((*memory / *measured_memory - 1.0) * 100.0);
  return json;
}

}  // namespace sailor::reports
