#include "reports/trace.hpp"

#include <fmt/format.h>

#include <map>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "planner/outline.hpp"
#include "reports/prediction.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;

namespace {

/// "160 A100-40 in 5 zones, 32 V100-16".
std::string gpus_text(const AvailabilityStep& step) {
  std::vector<std::string> order;
  std::map<std::string, std::pair<int, int>> types;  // GPUs and zones
  for (const AvailableGpus& gpus : step.gpus) {
    if (gpus.count == 0) continue;
    auto& [count, zones] = types[gpus.gpu];
    if (zones == 0) order.push_back(gpus.gpu);
    count += gpus.count;
    ++zones;
  }
  std::vector<std::string> texts;
  for (const std::string& gpu : order) {
    const auto& [count, zones] = types[gpu];
    texts.push_back(fmt::format("{} {}{}", count, gpu, zones > 1 ? fmt::format(" in {} zones", zones) : ""));
  }
  return join_or_none(texts);
}

planner::StepOutcome sum_of(const std::vector<planner::TraceStep>& steps) {
  planner::StepOutcome sum;
  for (const planner::TraceStep& step : steps) {
    sum.iterations += step.outcome.iterations;
    sum.cost += step.outcome.cost;
  }
  return sum;
}

}  // namespace

std::string trace_report(const planner::Request& request, const std::vector<planner::TraceStep>& steps,
                         const TraceTimes& times) {
  Table table({{"start"},
               {"lasts"},
               {"GPUs there", Align::left},
               {"decision", Align::left},
               {"iterations/s"},
               {"gain"},
               {"iterations"},
               {"cost"},
               {"devices"},
               {"plan", Align::left}});
  for (const planner::TraceStep& step : steps) {
    std::vector<std::string> row{fmt::format("{:.0f} s", step.step.start.value()),
                                 fmt::format("{:.0f} s", step.step.duration.value()), gpus_text(step.step),
                                 std::string(to_string(step.decision))};
    if (step.plan) {
      row.push_back(fmt::format("{:#.3g}", 1.0 / step.plan->iteration_time.value()));
      row.push_back(step.gain ? fmt::format("{:+.1f}%", *step.gain * 100.0) : "");
      row.push_back(fmt::format("{:.1f}", step.outcome.iterations));
      row.push_back(format_usd(step.outcome.cost));
      row.push_back(fmt::format("{}", step.plan->plan.ranks()));
      row.push_back(planner::outline(step.plan->plan));
    } else {
      row.insert(row.end(), {"", "", "0", "", "0", "none: " + step.problem});
    }
    table.add_row(std::move(row));
  }
  const planner::StepOutcome sum = sum_of(steps);
  std::string text = fmt::format("{} in {}: {} of availability, objective {}\n\n{}\n", request.job.model,
                                 to_string(request.job.precision), plural(steps.size(), "step"),
                                 to_string(request.objective), table.to_string());
  text += fmt::format("In all: {:.1f} iterations for {}.\n", sum.iterations, format_usd(sum.cost));
  text += fmt::format(
      "gain: of the step's best plan over the one that ran before. The latter is kept unless the gain pays, within "
      "the\nstep, for {} of reconfiguration (--reconfiguration-time). The last step is taken to last {:.0f} s "
      "(--last-step).\n",
      format_time(times.reconfiguration), times.last_step.value());
  return text;
}

ordered_json trace_to_json(const planner::Request& request, const std::string& cluster,
                           const std::vector<planner::TraceStep>& steps, const TraceTimes& times) {
  ordered_json rows = ordered_json::array();
  for (const planner::TraceStep& step : steps) {
    ordered_json gpus = ordered_json::array();
    for (const AvailableGpus& there : step.step.gpus)
      gpus.push_back({{"gpu", there.gpu}, {"zone", there.zone}, {"count", there.count}});
    ordered_json row{{"start_s", step.step.start.value()},
                     {"duration_s", step.step.duration.value()},
                     {"gpus", std::move(gpus)},
                     {"decision", to_string(step.decision)},
                     {"iterations", step.outcome.iterations},
                     {"cost_usd", step.outcome.cost.value()}};
    row["gain"] = step.gain ? ordered_json(*step.gain) : ordered_json(nullptr);
    if (step.plan) {
      row["iteration_time_s"] = step.plan->iteration_time.value();
      row["throughput_iterations_per_s"] = 1.0 / step.plan->iteration_time.value();
      row["cost_usd_per_iteration"] = step.plan->cost_per_iteration.value();
      row["description"] = planner::outline(step.plan->plan);
      row["plan"] = plan_to_json(step.plan->plan);
    } else {
      row["problem"] = step.problem;
      row["plan"] = nullptr;
    }
    rows.push_back(std::move(row));
  }
  const planner::StepOutcome sum = sum_of(steps);
  return {{"model", request.job.model},
          {"cluster", cluster.empty() ? ordered_json() : ordered_json{{"name", cluster}}},
          {"precision", to_string(request.job.precision)},
          {"objective", to_string(request.objective)},
          {"space", to_string(request.space)},
          {"cost_model", "simulator"},
          {"reconfiguration_time_s", times.reconfiguration.value()},
          {"last_step_s", times.last_step.value()},
          {"iterations", sum.iterations},
          {"cost_usd", sum.cost.value()},
          {"steps", std::move(rows)}};
}

}  // namespace sailor::reports
