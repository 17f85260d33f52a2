#include "reports/timeline_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/terminal.hpp"

namespace sailor::reports {

namespace {

constexpr int width = 1200;               // pixels
constexpr double drawn_width = 1070.0;    // of them, between the axes
constexpr std::uint32_t idle = 0xececec;  // light grey
constexpr double beside = 0.2;            // thickness of what overlaps with computation

struct Kind {
  const char* title;
  int color;  // of the plot's palette
};

constexpr std::array<Kind, 5> kinds{
    {{"forward", 0}, {"backward", 5}, {"communication", 3}, {"gradient reduction", 2}, {"update", 1}}};

std::size_t kind_of(Activity activity) {
  switch (activity) {
    case Activity::forward:
      return 0;
    case Activity::backward:
      return 1;
    case Activity::send:
    case Activity::receive:
      return 2;
    case Activity::reduce:
      return 3;
    case Activity::update:
      return 4;
  }
  return 0;
}

struct Unit {
  const char* name;
  double per_second;
};

Unit unit_for(Seconds length) {
  if (length.value() >= 1.0) return {"s", 1.0};
  if (length.value() >= 1e-3) return {"ms", 1e3};
  return {"us", 1e6};
}

std::string pipeline_label(const Plan& plan, std::size_t entry) {
  const int count = plan.pipelines[entry].count;
  return fmt::format("pipeline {}{}", entry, count > 1 ? fmt::format(" (x{})", count) : "");
}

/// Draws one row of the picture.
class RowPainter {
 public:
  RowPainter(double y, const Unit& unit, double pixel) : y_(y), unit_(unit), pixel_(pixel) {}

  /// Adds events that never overlap, in the order of time.
  void in_turn(const std::vector<const TimelineEvent*>& events) {
    for (std::size_t i = 0; i < events.size();) {
      std::size_t end = i;
      while (end < events.size() && width_of(*events[end]) < pixel_ &&
             (end == i || start_of(*events[end]) - end_of(*events[end - 1]) < pixel_))
        ++end;
      if (end - i > 2) {
        crowd({events.begin() + static_cast<std::ptrdiff_t>(i), events.begin() + static_cast<std::ptrdiff_t>(end)});
        i = end;
      } else {
        box(*events[i++]);
      }
    }
  }

  /// Adds events that overlap with computation: narrow bars, joined if less than a pixel apart.
  void beside_others(const std::vector<const TimelineEvent*>& events) {
    for (const TimelineEvent* event : events) {
      std::vector<PlotPoint>& joined = overlapped[kind_of(event->activity)];
      if (!joined.empty() && start_of(*event) - joined.back().high < pixel_)
        joined.back().high = std::max(joined.back().high, end_of(*event));
      else
        joined.push_back({.y = y_ - 0.4 + beside / 2.0, .low = start_of(*event), .high = end_of(*event)});
    }
  }

  std::array<std::vector<PlotPoint>, kinds.size()> bars;        ///< by kind
  std::array<std::vector<PlotPoint>, kinds.size()> overlapped;  ///< the same

 private:
  [[nodiscard]] double start_of(const TimelineEvent& event) const { return event.start.value() * unit_.per_second; }
  [[nodiscard]] double end_of(const TimelineEvent& event) const { return event.end.value() * unit_.per_second; }
  [[nodiscard]] double width_of(const TimelineEvent& event) const { return end_of(event) - start_of(event); }

  void box(const TimelineEvent& event) {
    const bool numbered = event.activity == Activity::forward || event.activity == Activity::backward;
    // A gap separates consecutive boxes.
    const double slit = width_of(event) > 5.0 * pixel_ ? 0.8 * pixel_ : 0.0;
    bars[kind_of(event.activity)].push_back(
        {.y = y_,
         .low = start_of(event),
         .high = end_of(event) - slit,
         .label = numbered && event.micro_batch >= 0 ? fmt::format("{}", event.micro_batch) : std::string()});
  }

  /// Adds many events narrower than a pixel: each pixel shows one kind, and over several pixels the share of each kind,
  /// including idle time, is its share of the time (error diffusion).
  void crowd(const std::vector<const TimelineEvent*>& events) {
    constexpr std::size_t nothing = kinds.size();
    std::array<double, nothing + 1> owed{};  // time that was not shown yet, by kind
    std::size_t last = nothing;
    std::size_t next = 0;
    const double until = end_of(*events.back());
    for (double at = start_of(*events.front()); at < until; at += pixel_) {
      const double to = std::min(at + pixel_, until);
      double idle_time = to - at;
      for (std::size_t i = next; i < events.size() && start_of(*events[i]) < to; ++i) {
        const double shared = std::min(end_of(*events[i]), to) - std::max(start_of(*events[i]), at);
        owed[kind_of(events[i]->activity)] += shared;
        idle_time -= shared;
        if (end_of(*events[i]) <= to) next = i + 1;
      }
      owed[nothing] += idle_time;
      const auto kind = static_cast<std::size_t>(std::max_element(owed.begin(), owed.end()) - owed.begin());
      owed[kind] -= to - at;
      if (kind != nothing && kind == last)
        bars[kind].back().high = to;
      else if (kind != nothing)
        bars[kind].push_back({.y = y_, .low = at, .high = to});
      last = kind;
    }
  }

  double y_;
  Unit unit_;
  double pixel_;
};

}  // namespace

Plot timeline_plot(const Plan& plan, const simulator::Prediction& prediction, const Timeline& timeline) {
  const Unit unit = unit_for(timeline.length);
  const double length = timeline.length.value() * unit.per_second;
  const double pixel = length / drawn_width;
  Plot plot{.title = fmt::format("{}: {} per iteration, bubble {:.1f}%", plan.job.model,
                                 format_time(prediction.iteration_time), prediction.bubble_fraction * 100.0),
            .note = describe(plan),
            .x = {.title = fmt::format("time ({})", unit.name), .range = std::pair(0.0, length)},
            .width = width,
            .legend_in_line = true};

  std::size_t stages = 0;
  for (const Pipeline& pipeline : plan.pipelines) stages += pipeline.stages.size();
  if (stages > most_drawn_rows) plot.note += fmt::format("; the first {} of {} stages", most_drawn_rows, stages);
  const auto count = static_cast<int>(std::min(stages, most_drawn_rows));
  std::map<std::pair<int, int>, int> rows;  // by pipeline entry and stage: y, from the top
  std::vector<std::string> labels;
  for (std::size_t entry = 0; entry < plan.pipelines.size(); ++entry)
    for (std::size_t stage = 0; stage < plan.pipelines[entry].stages.size() && labels.size() < most_drawn_rows;
         ++stage) {
      rows.emplace(std::pair(static_cast<int>(entry), static_cast<int>(stage)),
                   count - static_cast<int>(labels.size()));
      const Stage& held = plan.pipelines[entry].stages[stage];
      labels.push_back(fmt::format("{}stage {}: {}{}, {}",
                                   plan.pipelines.size() > 1 ? pipeline_label(plan, entry) + ", " : "", stage, held.gpu,
                                   held.tensor_parallel > 1 ? fmt::format(" x{}", held.tensor_parallel) : "",
                                   plural(static_cast<std::size_t>(held.layer_count()), "layer")));
    }
  plot.height = 110 + std::clamp(900 / count, 9, 38) * count;
  plot.y.range = std::pair(0.5, count + 0.5);
  const int every = (count + 39) / 40;  // of the labels, so that they do not touch
  for (int row = 0; row < count; row += every)
    plot.y.ticks.push_back({static_cast<double>(count - row), labels[static_cast<std::size_t>(row)]});

  PlotSeries blank{.title = "idle", .style = PlotStyle::bars, .rgb = idle};
  for (const auto& [stage, y] : rows) blank.points.push_back({.y = static_cast<double>(y), .low = 0.0, .high = length});
  std::array<PlotSeries, kinds.size()> in_turn;
  std::array<PlotSeries, kinds.size()> overlapped;
  std::map<std::tuple<int, int, bool>, std::vector<const TimelineEvent*>> events;  // entry, stage, overlapped
  for (const TimelineEvent& event : timeline.events)
    events[{event.pipeline_entry, event.stage, event.overlapped}].push_back(&event);
  for (auto& [key, of_lane] : events) {
    const auto& [entry, stage, is_overlapped] = key;
    const auto row = rows.find({entry, stage});
    if (row == rows.end()) continue;
    std::stable_sort(of_lane.begin(), of_lane.end(),
                     [](const TimelineEvent* a, const TimelineEvent* b) { return a->start < b->start; });
    RowPainter painter(row->second, unit, pixel);
    if (is_overlapped)
      painter.beside_others(of_lane);
    else
      painter.in_turn(of_lane);
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto append = [](PlotSeries& series, const std::vector<PlotPoint>& points) {
        series.points.insert(series.points.end(), points.begin(), points.end());
      };
      append(in_turn[kind], painter.bars[kind]);
      append(overlapped[kind], painter.overlapped[kind]);
    }
  }
  plot.series.push_back(std::move(blank));
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    in_turn[kind].title = kinds[kind].title;
    if (in_turn[kind].points.empty()) overlapped[kind].title = kinds[kind].title;
    overlapped[kind].thickness = beside;
    for (PlotSeries* series : {&in_turn[kind], &overlapped[kind]}) {
      series->style = PlotStyle::bars;
      series->color = kinds[kind].color;
    }
    plot.series.push_back(std::move(in_turn[kind]));
  }
  for (PlotSeries& series : overlapped) plot.series.push_back(std::move(series));  // above all others
  return plot;
}

}  // namespace sailor::reports
