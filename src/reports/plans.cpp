#include "reports/plans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "planner/explain.hpp"
#include "planner/outline.hpp"
#include "planner/search_space.hpp"
#include "reports/prediction.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t most_kinds = 8;  // max lines of a plan

struct Row {
  const Plan* plan = nullptr;
  Seconds time{};
  Usd cost{};
  std::optional<double> node_hours;  // of an iteration
  Bytes memory{};
  double headroom = 0.0;
  std::optional<Origin> origin;
};

std::string training_text(const Row& row, double iterations) {
  const double hours = row.time.value() * iterations / 3600.0;
  return fmt::format("{:#.3g} h{}, {}", hours,
                     row.node_hours ? fmt::format(", {:#.3g} node-h", *row.node_hours * iterations) : "",
                     format_usd(row.cost * iterations));
}

std::string rows_table(const planner::Request& request, const std::vector<Row>& rows) {
  const bool only_measured = std::all_of(rows.begin(), rows.end(),
                                         [](const Row& row) { return !row.origin || *row.origin == Origin::measured; });
  const bool per_usd = request.objective == planner::Objective::throughput_per_usd;
  const bool node_hours =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.node_hours.has_value(); });
  std::vector<Table::Column> columns{{"#"}, {"time"}, {"iterations/s"}, {"USD/iteration"}};
  if (node_hours) columns.push_back({"node-h/iteration"});
  if (per_usd) columns.push_back({"iterations/s per USD"});
  if (request.iterations) columns.push_back({"whole training"});
  columns.insert(columns.end(), {{"devices"}, {"peak memory"}, {"headroom"}});
  if (!only_measured) columns.push_back({"from", Align::left});
  columns.push_back({"plan", Align::left});
  Table table(columns);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const double throughput = 1.0 / row.time.value();
    std::vector<std::string> cells{fmt::format("{}", i + 1), format_time(row.time), fmt::format("{:#.3g}", throughput),
                                   format_usd(row.cost)};
    if (node_hours) cells.push_back(fmt::format("{:#.3g}", *row.node_hours));
    if (per_usd) cells.push_back(row.cost > Usd(0.0) ? fmt::format("{:#.3g}", throughput / row.cost.value()) : "-");
    if (request.iterations) cells.push_back(training_text(row, *request.iterations));
    cells.push_back(fmt::format("{}", row.plan->ranks()));
    cells.push_back(format_bytes(row.memory));
    cells.push_back(fmt::format("{:.0f}%", row.headroom * 100.0));
    if (!only_measured) cells.emplace_back(row.origin ? to_string(*row.origin) : "");
    std::vector<planner::PipelineKind> kinds = planner::pipeline_kinds(*row.plan);
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      std::string text = k == 0 ? "" : "+ ";
      if (k + 1 == most_kinds && kinds.size() > most_kinds) {
        int pipelines = 0;
        for (std::size_t rest = k; rest < kinds.size(); ++rest) pipelines += kinds[rest].count;
        text += fmt::format("{} of {} other kinds (--format json has all)",
                            plural(static_cast<std::size_t>(pipelines), "pipeline"), kinds.size() - k);
        kinds.resize(most_kinds);
      } else {
        text += kinds[k].text;
        if (kinds.size() > 1)
          text += kinds[k].batch_share < 0.005 ? ", under 1% of the batch"
                                               : fmt::format(", {:.0f}% of the batch", kinds[k].batch_share * 100.0);
      }
      if (k + 1 == kinds.size()) text += planner::unusual(*row.plan, kinds.size() > 1);
      std::vector<std::string> line = k == 0 ? cells : std::vector<std::string>(cells.size());
      line.push_back(std::move(text));
      table.add_row(std::move(line));
    }
  }
  const bool divided = std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return row.plan->context_parallel > 1 || row.plan->expert_parallel > 1;
  });
  const bool grouped =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.plan->sharding_degree > 0; });
  return table.to_string() +
         "plan: pipelines x [device tpN: layers of each stage | ...] bB nM; tpN: stages on N devices, bB: "
         "micro-batches "
         "of B\nsequences, nM: M of them per pipeline and iteration, 2x6: two stages of 6 layers each\n" +
         (divided ? "cpN, epN: sequences and experts divided among N devices\n" : "") +
         (grouped ? "zeroK over N: sharded within groups of N replicas\n" : "");
}

std::string stop_text(planner::Stop stop) {
  switch (stop) {
    case planner::Stop::time_limit:
      return " The search stopped at its time limit: with more time it may find something better.";
    case planner::Stop::work_limit:
      return " The search stopped at its work limit.";
    case planner::Stop::interrupted:
      return " The search was interrupted: with more time it may find something better.";
    case planner::Stop::done:
      break;
  }
  return "";
}

std::string bound_text(const planner::Request& request, const planner::Bound& bound, planner::Stop stop,
                       std::string_view judge) {
  const char* const better = request.objective == planner::Objective::throughput ? "faster"
                             : request.objective == planner::Objective::cost     ? "cheaper"
                                                                                 : "better";
  const std::string proved = planner::proved_text(bound, better);
  const std::string text =
      proved.empty() ? "How much better another plan could be is not known." : fmt::format("{} ({}).", proved, judge);
  return text + stop_text(stop) + "\n";
}

template <class SearchOrArtifact>
std::string title(const Heading& heading, const planner::Request& request, const SearchOrArtifact& result) {
  const TrainingJob& job = request.job;
  return fmt::format("{}\nthe best of {} for {} of {} ({} did not fit into memory)\n\n", heading_text(heading),
                     plural(static_cast<std::size_t>(result.considered), "plan"),
                     plural(static_cast<std::size_t>(job.global_batch), "sequence"),
                     plural(static_cast<std::size_t>(job.sequence_length), "token"), result.did_not_fit);
}

/// Text on the prices of these plans' devices that nobody has set; "" if there are none.
std::string prices_text(const std::vector<planner::Candidate>& plans) {
  std::map<std::string, UsdPerHour> assumed;
  for (const planner::Candidate& candidate : plans)
    for (const simulator::DeviceCost& device : candidate.prediction.device_costs)
      if (device.price_is_assumed) assumed.emplace(device.gpu, device.price);
  if (assumed.empty()) return "";
  std::vector<std::string> texts;
  for (const auto& [gpu, price] : assumed) texts.push_back(fmt::format("{} ${:.4g}/h", gpu, price.value()));
  return fmt::format("assumed prices, of gpus.toml: {} ([[prices]] of the cluster or site file say yours)\n",
                     join(texts, ", "));
}

std::string pareto_text(const planner::Request& request, const planner::SearchResult& result) {
  std::string text = "Pareto front: no plan found is better than any of these in time, money and devices at once.";
  if (result.plans.size() >= request.max_plans) text += " These are spread over it: --top K shows more.";
  return text + stop_text(result.stop) + "\n";
}

std::string_view unit_of(planner::Objective objective) {
  switch (objective) {
    case planner::Objective::throughput:
      return "iterations_per_s";
    case planner::Objective::cost:
      return "usd_per_iteration";
    case planner::Objective::throughput_per_usd:
      return "iterations_per_s_per_usd";
  }
  return "";
}

template <class SearchOrArtifact>
ordered_json head(const Heading& heading, const planner::Request& request, std::string_view cost_model,
                  const SearchOrArtifact& result, ordered_json plans) {
  // A search that was stopped early may know no bound.
  const bool known = std::isfinite(result.bound.gap) && result.bound.bound > 0.0;
  const auto if_known = [&](double value) { return known ? ordered_json(value) : ordered_json(nullptr); };
  ordered_json json = heading_to_json(heading);
  json.update({{"objective", to_string(request.objective)},
               {"space", to_string(request.space)},
               {"cost_model", cost_model},
               {"considered", result.considered},
               {"did_not_fit", result.did_not_fit},
               {"stop", to_string(result.stop)},
               {"bound",
                {{"unit", unit_of(request.objective)},
                 {"by", cost_model == "simulator" ? "closed_form" : "artifact"},
                 {"found", result.bound.found},
                 {"bound", if_known(result.bound.bound)},
                 {"gap", if_known(result.bound.gap)}}},
               {"left_out", result.left_out},
               {"pareto", request.pareto},
               {"plans", std::move(plans)}});
  return json;
}

}  // namespace

Heading heading_of(const planner::Request& request, const simulator::Environment& environment,
                   const std::vector<NodeGroup>& nodes, const std::string& profile) {
  Heading heading{.model = request.job.model,
                  .precision = request.job.precision,
                  .why_precision = {},
                  .cluster = environment.cluster->name,
                  .nodes = 0,
                  .devices = {},
                  .zones = 1,
                  .profile = profile,
                  .profile_has_model = !environment.profile.precisions(request.job.model).empty()};
  std::set<std::string> zones;
  for (const NodeGroup& group : nodes) {
    heading.nodes += group.count;
    heading.devices[group.gpu] += std::int64_t{group.count} * group.gpus_per_node;
    zones.insert(group.zone);
  }
  heading.zones = zones.size();
  return heading;
}

std::string heading_text(const Heading& heading) {
  std::vector<std::string> devices;
  for (const auto& [gpu, count] : heading.devices) devices.push_back(fmt::format("{} {}", count, gpu));
  return fmt::format("{} in {} on {}{}: {}{}; profile {}{}", heading.model, to_string(heading.precision),
                     plural(static_cast<std::size_t>(heading.nodes), "node"),
                     heading.cluster.empty() ? "" : " of " + heading.cluster, join(devices, ", "),
                     heading.zones > 1 ? fmt::format(" in {} zones", heading.zones) : "", heading.profile,
                     heading.profile_has_model ? "" : ", which has no times of the model");
}

ordered_json heading_to_json(const Heading& heading) {
  return {
      {"model", heading.model},
      {"cluster",
       {{"name", heading.cluster}, {"nodes", heading.nodes}, {"devices", heading.devices}, {"zones", heading.zones}}},
      {"precision", to_string(heading.precision)},
      {"precision_reason", heading.why_precision},
      {"profile", heading.profile}};
}

std::string plans_report(const Heading& heading, const planner::Request& request, const planner::SearchResult& result) {
  std::vector<Row> rows;
  std::set<simulator::EstimatedInput> inputs;
  bool published = false;
  for (const planner::Candidate& candidate : result.plans) {
    const simulator::Prediction& prediction = candidate.prediction;
    rows.push_back({.plan = &candidate.plan,
                    .time = prediction.iteration_time,
                    .cost = prediction.cost_per_iteration,
                    .node_hours = prediction.node_hours(),
                    .memory = prediction.peak_memory,
                    .headroom = candidate.memory_headroom,
                    .origin = prediction.origin});
    inputs.insert(prediction.estimated_inputs.begin(), prediction.estimated_inputs.end());
    published = published || prediction.origin == Origin::published;
  }
  std::string text = title(heading, request, result) + rows_table(request, rows) + "\n";
  text += request.pareto ? pareto_text(request, result)
                         : bound_text(request, result.bound, result.stop, "by the planner's formula of the time");
  if (!result.degrees.empty()) text += result.degrees + "\n";
  text += prices_text(result.plans);
  text += estimates_text({inputs.begin(), inputs.end()});
  return published ? text + published_text() : text;
}

std::string plans_report(const Heading& heading, const planner::Request& request,
                         const planner::ArtifactResult& result) {
  std::vector<Row> rows;
  for (const planner::ArtifactPlan& plan : result.plans)
    rows.push_back({.plan = &plan.plan,
                    .time = plan.score.iteration_time,
                    .cost = plan.score.cost_per_iteration,
                    .node_hours = {},
                    .memory = plan.score.peak_memory,
                    .headroom = plan.memory_headroom,
                    .origin = {}});
  return title(heading, request, result) + rows_table(request, rows) + "\n" +
         bound_text(request, result.bound, result.stop, "by the artifact's evaluator") +
         "These are the figures of the Sailor artifact's evaluator, its prices and memory rule, to compare with "
         "published\nfigures only: leave out --cost-model artifact for what to expect of a run.\n";
}

ordered_json plans_to_json(const Heading& heading, const planner::Request& request,
                           const planner::SearchResult& result) {
  ordered_json plans = ordered_json::array();
  for (const planner::Candidate& candidate : result.plans) {
    ordered_json row = prediction_to_json(candidate.prediction);
    row["memory_headroom"] = candidate.memory_headroom;
    row["description"] = planner::outline(candidate.plan);
    row["found_by"] = ordered_json::array();
    for (const planner::Step step : candidate.found_by) row["found_by"].push_back(to_string(step));
    row["plan"] = plan_to_json(candidate.plan);
    plans.push_back(std::move(row));
  }
  ordered_json json = head(heading, request, "simulator", result, std::move(plans));
  // By the closed form. The simulator may say that a plan is a little better: then that is what was found, and no
  // bound.
  const bool less_is_better = request.objective == planner::Objective::cost;
  for (const char* key : {"found", "bound"})
    if (ordered_json& value = json["bound"][key]; value.is_number())
      for (const planner::Candidate& candidate : result.plans) {
        const double reached = planner::objective_value(request.objective, candidate.prediction);
        value = less_is_better ? std::min(value.get<double>(), reached) : std::max(value.get<double>(), reached);
      }
  if (!result.degrees.empty()) json["degrees"] = result.degrees;
  return json;
}

ordered_json plans_to_json(const Heading& heading, const planner::Request& request,
                           const planner::ArtifactResult& result) {
  ordered_json plans = ordered_json::array();
  for (const planner::ArtifactPlan& plan : result.plans) {
    const planner::ArtifactScore& score = plan.score;
    plans.push_back({{"iteration_time_s", score.iteration_time.value()},
                     {"throughput_iterations_per_s", 1.0 / score.iteration_time.value()},
                     {"pipeline_time_s", score.pipeline_time.value()},
                     {"synchronization_time_s", score.synchronization_time.value()},
                     {"peak_memory_bytes", score.peak_memory.value()},
                     {"fits", score.fits},
                     {"cost_usd_per_iteration", score.cost_per_iteration.value()},
                     {"egress_cost_usd_per_iteration", score.egress_cost_per_iteration.value()},
                     {"memory_headroom", plan.memory_headroom},
                     {"description", planner::outline(plan.plan)},
                     {"plan", plan_to_json(plan.plan)}});
  }
  return head(heading, request, "artifact", result, std::move(plans));
}

}  // namespace sailor::reports
