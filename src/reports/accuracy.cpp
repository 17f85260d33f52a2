#include "reports/accuracy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/terminal.hpp"
#include "simulator/cases.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;

namespace {

enum class Figure { time, memory };

std::vector<double> errors_of(std::span<const CaseOutcome> cases, Figure figure, bool with_artefacts) {
  std::vector<double> errors;
  for (const CaseOutcome& outcome : cases) {
    if (outcome.artefact && !with_artefacts) continue;
    const std::optional<double> error = figure == Figure::time ? outcome.time_error() : outcome.memory_error();
    if (error) errors.push_back(*error);
  }
  return errors;
}

bool has_artefacts(std::span<const CaseOutcome> cases) {
  return std::any_of(cases.begin(), cases.end(), [](const CaseOutcome& outcome) { return outcome.artefact; });
}

std::string percent(double share) { return fmt::format("{:.1f}%", share * 100.0); }
std::string signed_percent(double share) { return fmt::format("{:+.1f}%", share * 100.0); }

ordered_json summary_to_json(std::span<const double> errors) {
  if (errors.empty()) return nullptr;
  const simulator::ErrorSummary summary = simulator::summarize_errors(errors);
  return {{"cases", summary.cases},
          {"mean_absolute_error_percent", summary.mean * 100.0},
          {"median_absolute_error_percent", summary.median * 100.0},
          {"p95_absolute_error_percent", summary.p95 * 100.0},
          {"largest_absolute_error_percent", summary.largest * 100.0},
          {"bias_percent", summary.bias * 100.0},
          {"lowest_error_percent", summary.lowest * 100.0}};
}

template <class T>
ordered_json value_or_null(const std::optional<T>& value) {
  return value ? ordered_json(value->value()) : ordered_json(nullptr);
}

ordered_json percent_or_null(const std::optional<double>& share) {
  return share ? ordered_json(*share * 100.0) : ordered_json(nullptr);
}

void add_summary(Table& table, const std::string& of, const std::vector<double>& errors) {
  if (errors.empty()) return;
  const simulator::ErrorSummary summary = simulator::summarize_errors(errors);
  table.add_row({of, fmt::format("{}", summary.cases), percent(summary.mean), percent(summary.median),
                 percent(summary.p95), percent(summary.largest), signed_percent(summary.bias),
                 signed_percent(summary.lowest)});
}

}  // namespace

double CaseOutcome::time_error() const { return predicted_time / measured_time - 1.0; }

std::optional<double> CaseOutcome::memory_error() const {
  if (!measured_memory) return std::nullopt;
  return predicted_memory / *measured_memory - 1.0;
}

std::string accuracy_report(const std::string& title, std::span<const CaseOutcome> cases) {
  std::string text = fmt::format("{}: {}\n\n", title, plural(cases.size(), "case"));
  const bool spread_known = std::any_of(cases.begin(), cases.end(),
                                        [](const CaseOutcome& outcome) { return outcome.measured_low.has_value(); });
  std::vector<Table::Column> columns{{"case", Align::left}, {"time measured"}, {"predicted"}, {"error"}};
  if (spread_known) columns.insert(columns.begin() + 2, {"95% of repetitions"});
  for (const char* title_of : {"memory measured", "predicted", "error"}) columns.push_back({title_of});
  columns.push_back({"", Align::left});
  Table table(columns);
  std::string notes;
  for (const CaseOutcome& outcome : cases) {
    const auto memory = outcome.memory_error();
    std::vector<std::string> row{outcome.name, format_time(outcome.measured_time)};
    if (spread_known)
      row.push_back(
          outcome.measured_low && outcome.measured_high
              ? fmt::format("{} to {}", format_time(*outcome.measured_low), format_time(*outcome.measured_high))
              : "-");
    row.push_back(format_time(outcome.predicted_time));
    row.push_back(signed_percent(outcome.time_error()));
    row.push_back(outcome.measured_memory ? format_bytes(*outcome.measured_memory) : "-");
    row.push_back(format_bytes(outcome.predicted_memory));
    row.push_back(memory ? signed_percent(*memory) : "-");
    row.push_back(outcome.artefact ? "*" : "");
    table.add_row(std::move(row));
    if (outcome.artefact) notes += fmt::format("* an artefact: {}\n", outcome.note);
  }
  text += table.to_string() + "\n";
  Table summary({{"error", Align::left}, {"cases"}, {"mean"}, {"median"}, {"P95"}, {"largest"}, {"bias"}, {"lowest"}});
  add_summary(summary, "time", errors_of(cases, Figure::time, true));
  if (has_artefacts(cases)) add_summary(summary, "time, without artefacts", errors_of(cases, Figure::time, false));
  add_summary(summary, "memory", errors_of(cases, Figure::memory, true));
  if (has_artefacts(cases)) add_summary(summary, "memory, without artefacts", errors_of(cases, Figure::memory, false));
  return text + summary.to_string() +
         "mean, median, P95 and largest are of |error|; bias is the mean with its sign, lowest the worst below\n" +
         notes;
}

ordered_json accuracy_to_json(const std::string& title, std::span<const CaseOutcome> cases) {
  ordered_json rows = ordered_json::array();
  for (const CaseOutcome& outcome : cases)
    rows.push_back({{"name", outcome.name},
                    {"artefact", outcome.artefact},
                    {"note", outcome.note},
                    {"measured_iteration_time_s", outcome.measured_time.value()},
                    {"measured_iteration_time_low_s", value_or_null(outcome.measured_low)},
                    {"measured_iteration_time_high_s", value_or_null(outcome.measured_high)},
                    {"iteration_time_s", outcome.predicted_time.value()},
                    {"iteration_time_p5_s", outcome.predicted_p5.value()},
                    {"iteration_time_p95_s", outcome.predicted_p95.value()},
                    {"iteration_time_error_percent", outcome.time_error() * 100.0},
                    {"measured_peak_memory_bytes", value_or_null(outcome.measured_memory)},
                    {"peak_memory_bytes", outcome.predicted_memory.value()},
                    {"peak_memory_error_percent", percent_or_null(outcome.memory_error())}});
  return {{"name", title},
          {"iteration_time", summary_to_json(errors_of(cases, Figure::time, true))},
          {"iteration_time_without_artefacts", summary_to_json(errors_of(cases, Figure::time, false))},
          {"peak_memory", summary_to_json(errors_of(cases, Figure::memory, true))},
          {"peak_memory_without_artefacts", summary_to_json(errors_of(cases, Figure::memory, false))},
          {"cases", std::move(rows)}};
}

Plot accuracy_plot(const std::string& title, std::span<const CaseOutcome> cases) {
  Plot plot{.title = fmt::format("{}: error of the prediction", title),
            .note = "box: quartiles; whiskers: 5th to 95th percentile; points: single cases",
            .x = {.ticks = {{1.0, "iteration time"}, {2.0, "peak memory"}}, .range = std::pair(0.5, 2.7)},
            .y = {.title = "predicted / measured - 1 (%)"},
            .width = 700,
            .zero_line = 0.0};
  PlotSeries time{.style = PlotStyle::boxes, .color = 0, .thickness = 0.4};
  PlotSeries memory{.style = PlotStyle::boxes, .color = 2, .marker = 1, .thickness = 0.4};
  for (const double error : errors_of(cases, Figure::time, true)) time.points.push_back({1.0, error * 100.0});
  for (const double error : errors_of(cases, Figure::memory, true)) memory.points.push_back({2.0, error * 100.0});
  plot.series = {std::move(time), std::move(memory)};
  return plot;
}

}  // namespace sailor::reports
