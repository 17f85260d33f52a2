// What a page says of a training: predicted beside measured, iterations, parts, ranks, events.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/terminal.hpp"
#include "reports/page/page.hpp"
#include "reports/page/plot_svg.hpp"
#include "reports/prediction.hpp"

namespace sailor::reports {

using simulator::Prediction;
using simulator::StagePrediction;

namespace {

constexpr std::size_t most_chart_points = 500;
constexpr std::size_t most_rank_rows = 256;
constexpr std::size_t most_event_rows = 200;

std::string measured_by(const RunRecord& run) {
  const Provenance& from = run.provenance;
  std::string text = from.tool;
  if (!from.device.empty()) text += " on " + from.device;
  if (!from.host.empty()) text += " (" + from.host + ")";
  if (!from.date.empty()) text += ", " + from.date;
  return text;
}

/// "Measured by sailor-train ...: the median of 58 iterations after 2 of warm-up."
std::string run_source(const RunRecord& run) {
  return fmt::format("Measured by {}: median of {} after {} of warm-up.", measured_by(run),
                     plural(static_cast<std::size_t>(run.iteration_time().samples), "iteration"),
                     plural(static_cast<std::size_t>(run.warm_up_iterations), "iteration"));
}

std::string comparison_table(const PageInput& input) {
  const nlohmann::ordered_json json = comparison_to_json(*input.prediction, *input.run);
  const TimeStatistics time = input.run->iteration_time();
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"iteration time", format_time(input.prediction->iteration_time), format_time(time.median),
                  fmt::format("{:+.1f}%", json.at("iteration_time_error_percent").get<double>()),
                  fmt::format("P10 to P90: {} to {}", format_time(time.p10), format_time(time.p90))});
  if (const Bytes memory = input.run->peak_resident_memory(); memory > Bytes{})
    rows.push_back({"peak memory", format_bytes(input.prediction->peak_memory), format_bytes(memory),
                    fmt::format("{:+.1f}%", json.at("peak_memory_error_percent").get<double>()), "largest over ranks"});
  return html_table({{"", Align::left}, {"predicted"}, {"measured"}, {"error"}, {"spread", Align::left}}, rows);
}

/// Mean over ranks of the predicted time of `part` in an iteration; `per_micro_batch`: the part is the time of a
/// micro-batch. std::nullopt without a prediction of stages.
std::optional<Seconds> predicted_mean(const PageInput& input, Seconds StagePrediction::*part, bool per_micro_batch) {
  if (input.prediction == nullptr || input.prediction->stages.empty()) return std::nullopt;
  Seconds sum{};
  for (const StagePrediction& row : input.prediction->stages) {
    const Pipeline& pipeline = input.plan.pipelines[static_cast<std::size_t>(row.pipeline_entry)];
    const int ranks = pipeline.count * input.plan.ranks_of(pipeline.stages[static_cast<std::size_t>(row.stage)]);
    sum += (row.*part) * static_cast<double>(ranks * (per_micro_batch ? pipeline.micro_batches : 1));
  }
  return sum / static_cast<double>(input.plan.ranks());
}

/// A table of the parts of an iteration: predicted, and measured as means over the iterations that count.
std::string parts_of_iteration(const PageInput& input) {
  const RunRecord& run = *input.run;
  struct Row {
    const char* title;
    PartsRecord::Part PartsRecord::*part;
    std::optional<Seconds> predicted;
  };
  const std::array<Row, 6> parts{
      {{"forward", &PartsRecord::forward, predicted_mean(input, &StagePrediction::forward, true)},
       {"backward", &PartsRecord::backward, predicted_mean(input, &StagePrediction::backward, true)},
       {"waits for activations", &PartsRecord::wait_activation, {}},
       {"waits for gradients", &PartsRecord::wait_gradient, {}},
       {"gradient reduction", &PartsRecord::reduction, {}},
       {"update", &PartsRecord::update, predicted_mean(input, &StagePrediction::update, false)}}};
  std::vector<std::vector<std::string>> rows;
  std::set<std::int64_t> counted;
  for (const IterationRecord& iteration : run.counted_iterations()) counted.insert(iteration.iteration);
  double count = 0.0;
  for (const PartsRecord& record : run.parts) count += counted.contains(record.iteration) ? 1.0 : 0.0;
  if (count == 0.0) return "";
  for (const Row& row : parts) {
    Seconds mean{};
    Seconds slowest{};
    for (const PartsRecord& record : run.parts) {
      if (!counted.contains(record.iteration)) continue;
      mean += (record.*row.part).mean;
      slowest += (record.*row.part).slowest;
    }
    rows.push_back({row.title, row.predicted ? format_time(*row.predicted) : "", format_time(mean / count),
                    format_time(slowest / count)});
  }
  return "<h3>Parts of an iteration (mean over iterations)</h3>\n" + html_table({{"part", Align::left},
                                                                                 {"predicted, mean of ranks"},
                                                                                 {"measured, mean of ranks"},
                                                                                 {"measured, slowest rank"}},
                                                                                rows);
}

/// A line over the iterations; of more than most_chart_points, means of equally many each.
struct Curve {
  std::vector<PlotPoint> points{};
  std::size_t per_point = 1;
  std::size_t not_finite = 0;
};

template <class Value>
Curve curve_of(const RunRecord& run, const Value& value) {
  Curve curve{.per_point = (run.iterations.size() + most_chart_points - 1) / most_chart_points};
  for (std::size_t i = 0; i < run.iterations.size(); i += curve.per_point) {
    const std::size_t end = std::min(i + curve.per_point, run.iterations.size());
    double sum = 0.0;
    for (std::size_t k = i; k < end; ++k) {
      sum += value(run.iterations[k]);
      if (!std::isfinite(value(run.iterations[k]))) ++curve.not_finite;
    }
    curve.points.push_back(
        {.x = static_cast<double>(run.iterations[i].iteration + run.iterations[end - 1].iteration) / 2.0,
         .y = sum / static_cast<double>(end - i)});
  }
  return curve;
}

std::string iteration_chart(const std::string& title, const std::string& what, std::vector<PlotSeries> series) {
  const Plot plot{
      .x = {.title = "iteration"}, .y = {.title = title}, .series = std::move(series), .width = 520, .height = 280};
  return plot_svg(plot, "chart", what);
}

/// Upright lines where the epochs of an elastic training begin, as high as the points reach.
PlotSeries epoch_lines(const RunRecord& run, const std::vector<PlotPoint>& points) {
  PlotSeries lines{.title = "an epoch begins", .style = PlotStyle::lines, .color = 7};
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const PlotPoint& point : points)
    if (std::isfinite(point.y)) {
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  for (const EpochRecord& epoch : run.epochs) {
    const auto x = static_cast<double>(epoch.first_iteration);
    if (epoch.first_iteration <= run.iterations.front().iteration) continue;
    lines.points.insert(lines.points.end(), {{.x = x, .y = low}, {.x = x, .y = high}, {.x = x, .y = std::nan("")}});
  }
  return lines;
}

void add_iterations(const PageInput& input, std::vector<HtmlSection>& sections) {
  const RunRecord& run = *input.run;
  const Curve loss = curve_of(run, [](const IterationRecord& row) { return row.loss; });
  const Curve time = curve_of(run, [](const IterationRecord& row) { return row.time.value(); });
  const PlotStyle style = loss.points.size() > 1 ? PlotStyle::lines : PlotStyle::points;
  std::vector<PlotSeries> times{{.title = "measured", .style = style, .color = 0, .points = time.points}};
  if (input.prediction != nullptr && time.points.size() > 1) {
    PlotSeries predicted{.title = "predicted", .style = PlotStyle::lines, .color = 1, .dashed = true};
    // Of an elastic training the plan changes; the prediction is of the last one.
    const double from =
        run.epochs.empty() ? time.points.front().x : static_cast<double>(run.epochs.back().first_iteration);
    for (const double x : {from, std::max(from, time.points.back().x)})
      predicted.points.push_back({.x = x, .y = input.prediction->iteration_time.value()});
    times.push_back(std::move(predicted));
  }
  std::vector<PlotSeries> losses{{.title = "measured", .style = style, .color = 0, .points = loss.points}};
  if (run.epochs.size() > 1) {
    losses.push_back(epoch_lines(run, loss.points));
    times.push_back(epoch_lines(run, time.points));
  }
  HtmlSection section{.id = "iterations", .title = "Loss and time of every iteration"};
  section.source = fmt::format("Measured by {}; the loss is the mean cross-entropy per token.", measured_by(run));
  if (loss.per_point > 1) section.source += fmt::format(" A point is the mean of {} iterations.", loss.per_point);
  if (loss.not_finite > 0)
    section.source += fmt::format(" {} not finite and not drawn.",
                                  loss.not_finite == 1 ? "One loss is" : fmt::format("{} losses are", loss.not_finite));
  section.body = "<div class=\"charts\">\n" +
                 iteration_chart("loss (nat/token)", "loss of every iteration", std::move(losses)) +
                 iteration_chart("time (s)", "time of every iteration", std::move(times)) + "</div>\n";
  sections.push_back(std::move(section));
}

/// Predicted memory by pipeline entry and stage.
std::map<std::pair<int, int>, Bytes> predicted_memory(const Prediction* prediction) {
  std::map<std::pair<int, int>, Bytes> memory;
  if (prediction != nullptr)
    for (const StagePrediction& row : prediction->stages) memory[{row.pipeline_entry, row.stage}] = row.memory.total();
  return memory;
}

void add_ranks(const PageInput& input, std::vector<HtmlSection>& sections) {
  const RunRecord& run = *input.run;
  const auto predicted = predicted_memory(input.prediction);
  std::map<int, RankRole> roles;
  for (const RankRole& role : rank_roles(input.plan)) roles.emplace(role.rank, role);
  std::vector<std::vector<std::string>> rows;
  for (const RankRecord& rank : run.ranks) {
    if (rows.size() == most_rank_rows) break;
    const auto role = roles.find(rank.rank);
    const auto found =
        role == roles.end() ? predicted.end() : predicted.find({role->second.pipeline_entry, role->second.stage});
    const bool both = found != predicted.end() && rank.peak_resident_memory > Bytes{};
    rows.push_back({fmt::format("{}", rank.rank), rank.host, fmt::format("{}", rank.pipeline),
                    fmt::format("{}", rank.stage), fmt::format("{}", rank.tensor_parallel_index),
                    found == predicted.end() ? "" : format_bytes(found->second),
                    format_bytes(rank.peak_resident_memory),
                    both ? fmt::format("{:+.1f}%", (found->second / rank.peak_resident_memory - 1.0) * 100.0) : "",
                    format_bytes(rank.peak_tensor_memory)});
  }
  std::string body = html_table({{"rank"},
                                 {"node", Align::left},
                                 {"pipeline"},
                                 {"stage"},
                                 {"tp index"},
                                 {"predicted"},
                                 {"measured"},
                                 {"error"},
                                 {"tensors, measured"}},
                                rows);
  if (rows.size() < run.ranks.size())
    body += fmt::format("<p class=\"source\">The first {} of {} ranks.</p>\n", rows.size(), run.ranks.size());
  if (run.ranks.size() > 16) body = "<details><summary>all ranks</summary>\n" + body + "</details>\n";
  sections.push_back(
      {.id = "ranks",
       .title = "Memory of every rank",
       .source =
           fmt::format("Measured by {}: peaks of the process, and of its tensors by the allocator.", measured_by(run)),
       .body = std::move(body)});
}

/// "rank 5, host n2": the members of an event that are no heading.
std::string event_details(const nlohmann::json& event) {
  std::string text;
  for (const auto& [key, value] : event.items()) {
    if (key == "what" || key == "unix_time_s") continue;
    const std::string shown = value.is_string()         ? value.get<std::string>()
                              : value.is_array()        ? fmt::to_string(value.size())
                              : value.is_number_float() ? fmt::format("{:.4g}", value.get<double>())
                                                        : value.dump();
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', ' ');
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, shown);
  }
  return text;
}

void add_events(const PageInput& input, std::vector<HtmlSection>& sections) {
  const ElasticEvents& events = *input.events;
  const auto time_of = [](const nlohmann::json& event) {
    const auto found = event.find("unix_time_s");
    return found != event.end() && found->is_number() ? found->get<double>() : std::nan("");
  };
  const double start = events.lines.empty() ? 0.0 : time_of(events.lines.front());
  std::vector<std::vector<std::string>> rows;
  const std::size_t skipped = events.lines.size() > most_event_rows ? events.lines.size() - most_event_rows : 0;
  for (std::size_t i = skipped; i < events.lines.size(); ++i) {
    const nlohmann::json& event = events.lines[i];
    const auto what = event.find("what");
    std::string name = what != event.end() && what->is_string() ? what->get<std::string>() : "";
    std::replace(name.begin(), name.end(), '_', ' ');
    rows.push_back({format_time(Seconds(time_of(event) - start)), name, event_details(event)});
  }
  std::string body;
  if (events.total > Seconds{})
    body = fmt::format(
        "<p>{} from the end of the first iteration to the last event: {} without training, {} for "
        "iterations that were run again; goodput {:.1f}%.</p>\n",
        format_time(events.total), format_time(events.without_training), format_time(events.again),
        events.goodput * 100.0);
  if (skipped > 0)
    body += fmt::format("<p class=\"source\">The last {} of {} events.</p>\n", rows.size(), events.lines.size());
  body += html_table({{"after"}, {"event", Align::left}, {"details", Align::left}}, rows);
  sections.push_back({.id = "events",
                      .title = "Events of the elastic training",
                      .source = fmt::format("Written by the controller of the training, as kept in {}.", events.file),
                      .body = std::move(body)});
}

}  // namespace

void add_comparison_section(const PageInput& input, std::vector<HtmlSection>& sections) {
  if (input.run == nullptr || input.run->iteration_time().samples == 0) return;
  HtmlSection section{.id = "measured", .title = "Predicted and measured", .source = run_source(*input.run)};
  if (input.run->epochs.size() > 1)
    section.source += fmt::format(" The training had {} epochs: these are its iterations under the last plan.",
                                  input.run->epochs.size());
  if (input.prediction_is_stored) section.source += " The prediction is the one that the plan carries.";
  if (input.prediction != nullptr) section.body = comparison_table(input);
  if (!input.run->parts.empty()) section.body += parts_of_iteration(input);
  if (!section.body.empty()) sections.push_back(std::move(section));
}

void add_run_sections(const PageInput& input, std::vector<HtmlSection>& sections) {
  if (input.run != nullptr && !input.run->iterations.empty()) add_iterations(input, sections);
  if (input.run != nullptr && !input.run->ranks.empty()) add_ranks(input, sections);
  if (input.events != nullptr) add_events(input, sections);
}

}  // namespace sailor::reports
