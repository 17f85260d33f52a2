// What a page says of a plan and its prediction: picture, timeline, time, cost, memory, and other plans.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/terminal.hpp"
#include "planner/outline.hpp"
#include "reports/page/memory_bars.hpp"
#include "reports/page/page.hpp"
#include "reports/page/plan_picture.hpp"
#include "reports/page/plot_svg.hpp"
#include "reports/prediction.hpp"
#include "reports/stage_tables.hpp"
#include "reports/timeline_plot.hpp"

namespace sailor::reports {

using simulator::Prediction;

namespace {

constexpr std::size_t most_open_rows = 16;  ///< larger tables are folded

/// "by the event-driven simulator for the framework sailor, with the profile 'store' (origin of its times: measured)"
std::string simulated_by(const PageInput& input) {
  return fmt::format(
      "by the event-driven simulator for the framework {}, with the profile '{}' (origin of its times: {})",
      input.framework, input.profile, to_string(input.prediction->origin));
}

std::string html_stage_table(const StageTable& table) {
  std::string html = html_table(table.columns, table.rows);
  if (!table.same.empty()) html += fmt::format("<p class=\"source\">All rows: {}.</p>\n", html_text(table.same));
  if (table.left_out > 0)
    html += fmt::format("<p class=\"source\">{} in the middle left out; sailor-simulate --format json has all.</p>\n",
                        plural(table.left_out, "row"));
  return table.rows.size() > most_open_rows ? "<details><summary>as a table</summary>\n" + html + "</details>\n" : html;
}

/// One bar that is divided in the given shares, with its legend.
std::string divided_bar(const std::vector<std::pair<LegendEntry, Seconds>>& parts, Seconds whole) {
  std::vector<LegendEntry> legend;
  std::string svg = "<svg class=\"bar\" role=\"img\">";
  Seconds at{};
  for (const auto& [entry, time] : parts) {
    if (!(time > Seconds{})) continue;
    legend.push_back({entry.color, fmt::format("{}: {}", entry.title, format_time(time))});
    svg += fmt::format("<rect class=\"{}\" x=\"{:.3f}%\" width=\"{:.3f}%\" height=\"20\"><title>{}</title></rect>",
                       entry.color, at / whole * 100.0, time / whole * 100.0, html_text(legend.back().title));
    at += time;
  }
  return html_legend(legend) + svg + "</svg>\n";
}

HtmlSection plan_section(const PageInput& input) {
  const std::string nodes = input.nodes.empty()    ? ""
                            : input.run != nullptr ? "; nodes are those of the run"
                                                   : "; nodes are those that placement takes on the cluster now";
  return {.id = "plan",
          .title = "Plan",
          .source = fmt::format("{} says who holds which layers{}.", input.file, nodes),
          .body = plan_picture(input.plan, input.nodes)};
}

std::string timeline_figure(const PageInput& input, const Timeline& timeline, const std::string& description) {
  return plot_svg(timeline_plot(input.plan, *input.prediction, timeline), "wide", description);
}

HtmlSection timeline_section(const PageInput& input) {
  HtmlSection section{.id = "timeline", .title = "Timeline of an iteration"};
  std::string figure;
  if (input.timeline != nullptr) {
    section.source =
        fmt::format("A row per stage, predicted {}; numbers are micro-batches, narrow bars overlap with computation.",
                    simulated_by(input));
    figure = timeline_figure(input, *input.timeline, "simulated timeline, a row per stage");
  }
  if (input.measured_timeline == nullptr) {
    section.body = figure;
    return section;
  }
  section.source += " The measured one is the first rank of each stage, in the iteration that was traced.";
  section.body = (figure.empty() ? "" : "<h3>Simulated</h3>\n" + figure) + "<h3>Measured</h3>\n" +
                 timeline_figure(input, *input.measured_timeline, "measured timeline, a row per stage");
  return section;
}

HtmlSection time_section(const PageInput& input) {
  const Prediction& prediction = *input.prediction;
  HtmlSection section{.id = "time", .title = "Time"};
  section.source = input.prediction_is_stored
                       ? "Figures that the planner wrote into the plan; they were not computed again."
                       : fmt::format("Predicted {}.", simulated_by(input));
  const Seconds bubble = prediction.bubble_fraction * prediction.pipeline_time;
  section.body =
      divided_bar({{{fill_class(0), input.prediction_is_stored ? "pipelines" : "pipelines, computing"},
                    prediction.pipeline_time - bubble},
                   {{"idle", "pipelines, bubble"}, bubble},
                   {{fill_class(2), "gradient reduction that is not hidden"}, prediction.synchronization_time},
                   {{fill_class(1), "update"}, prediction.update_time}},
                  prediction.iteration_time);
  if (prediction.stages.empty()) return section;
  section.body +=
      html_facts({{"bound by", bound_text(prediction)},
                  {"straggler", straggler_text(input.plan, prediction)},
                  {"bubble", fmt::format("{:.1f}% of the pipelines' time", prediction.bubble_fraction * 100.0)},
                  {"messages that keep the busiest stage waiting", format_time(prediction.transfer_time)},
                  {"the same iteration by the closed form", format_time(prediction.closed_form_time)}});
  section.body += "<h3>Times of a micro-batch (forward, backward, link) and of the iteration (reduce, update)</h3>\n" +
                  html_stage_table(times_table(input.plan, prediction));
  if (prediction.estimated_inputs.empty() && prediction.origin != Origin::published) return section;
  std::string inputs;
  constexpr std::size_t most_inputs = 12;
  for (std::size_t i = 0; i < std::min(most_inputs, prediction.estimated_inputs.size()); ++i)
    inputs += fmt::format("<li>{}: {}</li>\n", to_string(prediction.estimated_inputs[i].origin),
                          html_text(prediction.estimated_inputs[i].what));
  if (prediction.estimated_inputs.size() > most_inputs)
    inputs += fmt::format("<li>and {} more</li>\n", prediction.estimated_inputs.size() - most_inputs);
  if (prediction.origin == Origin::published) inputs += fmt::format("<li>{}</li>\n", html_text(published_text()));
  section.body += "<h3>Not measured</h3>\n<ul class=\"notes\">\n" + inputs + "</ul>\n";
  return section;
}

HtmlSection cost_section(const PageInput& input) {
  const Prediction& prediction = *input.prediction;
  std::vector<std::vector<std::string>> rows;
  for (const simulator::DeviceCost& row : prediction.device_costs)
    rows.push_back(
        {fmt::format("{} {}{}", row.devices, row.gpu, row.zone.empty() ? "" : " in " + row.zone),
         fmt::format("{}/h each{}", format_usd(Usd(row.price.value())), row.price_is_assumed ? ", assumed" : ""),
         format_usd(row.cost)});
  for (const simulator::EgressCost& row : prediction.egress_costs)
    rows.push_back(
        {fmt::format("egress from {} to {}", row.from, row.to), format_bytes(row.amount), format_usd(row.cost)});
  rows.push_back({"all", "", format_usd(prediction.cost_per_iteration)});
  HtmlSection section{.id = "cost",
                      .title = "Cost of an iteration",
                      .source =
                          "Device-hours at the cluster's prices, else the GPU catalogue's (assumed), and bytes that "
                          "leave a zone.",
                      .body = html_table({{"what", Align::left}, {"amount"}, {"cost"}}, rows)};
  if (const auto hours = prediction.node_hours())
    section.body += fmt::format("<p>{:.3g} node-hours per iteration, on {}.</p>\n", *hours,
                                plural(static_cast<std::size_t>(*prediction.nodes), "node"));
  return section;
}

HtmlSection memory_section(const PageInput& input) {
  return {.id = "memory",
          .title = "Memory of a rank",
          .source = fmt::format("Predicted {}{}.", simulated_by(input),
                                input.run != nullptr ? "; measured by the run, as the system counted it" : ""),
          .body = memory_bars(input.plan, *input.prediction, input.run) +
                  html_stage_table(memory_table(input.plan, *input.prediction))};
}

}  // namespace

void add_plan_sections(const PageInput& input, std::vector<HtmlSection>& sections) {
  sections.push_back(plan_section(input));
  if (input.prediction == nullptr) return;
  if (input.timeline != nullptr || input.measured_timeline != nullptr) sections.push_back(timeline_section(input));
  sections.push_back(time_section(input));
  if (input.prediction->stages.empty()) return;
  if (!input.prediction->device_costs.empty()) sections.push_back(cost_section(input));
  sections.push_back(memory_section(input));
}

void add_front_section(const PageInput& input, std::vector<HtmlSection>& sections) {
  if (input.front == nullptr) return;
  PlotSeries front{.title = "Pareto front", .style = PlotStyle::points, .color = 0};
  std::vector<std::vector<std::string>> rows;
  for (const planner::Candidate& candidate : *input.front) {
    const Prediction& prediction = candidate.prediction;
    const std::string text = planner::outline(candidate.plan);
    front.points.push_back(
        {.x = prediction.iteration_time.value(), .y = prediction.cost_per_iteration.value(), .label = text});
    rows.push_back({format_time(prediction.iteration_time), format_usd(prediction.cost_per_iteration),
                    fmt::format("{}", candidate.plan.ranks()), format_bytes(prediction.peak_memory), text});
  }
  PlotSeries own{.title = "this plan", .style = PlotStyle::points, .color = 1};
  own.points.push_back({.x = input.prediction->iteration_time.value(),
                        .y = input.prediction->cost_per_iteration.value(),
                        .label = "this plan: " + planner::outline(input.plan)});
  const Plot plot{.x = {.title = "iteration time (s)"},
                  .y = {.title = "USD per iteration"},
                  .series = {std::move(front), std::move(own)},
                  .width = 520,
                  .height = 300};
  sections.push_back(
      {.id = "pareto",
       .title = "Other plans for this job",
       .source = fmt::format(
           "Found by the planner for the nodes of cluster '{}': no plan it found is better than one of these in "
           "time, money and devices at once.",
           input.cluster),
       .body = plot_svg(plot, "chart", "iteration time and cost of plans") +
               html_table({{"time"}, {"USD/iteration"}, {"devices"}, {"peak memory"}, {"plan", Align::left}}, rows)});
}

}  // namespace sailor::reports
