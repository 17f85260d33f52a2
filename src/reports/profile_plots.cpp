#include "reports/profile_plots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/terminal.hpp"
#include "profile/describe.hpp"

namespace sailor::reports {

namespace {

struct Link {
  std::map<Bytes, TimeStatistics> points;
  const LinkFit* fit = nullptr;
};

/// "64 KiB": a size in binary units, without trailing zeros.
std::string size_label(double bytes) {
  static constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024.0 && unit + 1 < units.size(); ++unit) bytes /= 1024.0;
  return fmt::format("{:.4g} {}", bytes, units[unit]);
}

std::string number_label(double value) { return fmt::format("{:.4g}", value); }

/// The first of every group, then the second of every group, and so on, so that all groups are represented.
template <class Group, class Item>
std::vector<Item> round_robin(const std::map<Group, std::vector<Item>>& groups, std::size_t most) {
  std::vector<Item> chosen;
  bool more = true;
  for (std::size_t i = 0; more && chosen.size() < most; ++i) {
    more = false;
    for (const auto& [group, items] : groups) {
      if (i >= items.size() || chosen.size() == most) continue;
      chosen.push_back(items[i]);
      more = true;
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

/// Points of the curve over the range of its fit and of the measured points.
std::vector<PlotPoint> curve_points(const Link& link) {
  const LinkCurve& curve = link.fit->curve;
  double low = curve.smallest_message.value() > 0.0 ? curve.smallest_message.value() : mib.value();
  double high = curve.largest_message.value() > 0.0 ? curve.largest_message.value() : 1024.0 * mib.value();
  for (const auto& [message, time] : link.points)
    if (message.value() > 0.0) {
      low = std::min(low, message.value());
      high = std::max(high, message.value());
    }
  constexpr int steps = 96;
  std::vector<PlotPoint> points;
  for (int i = 0; i <= steps; ++i) {
    const Bytes message(low * std::pow(high / low, static_cast<double>(i) / steps));
    const Seconds time = curve.time(message, link.fit->key.from.ranks);
    if (time.value() > 0.0) points.push_back({message.value(), (message / time).value() / 1e9});
  }
  return points;
}

std::string legend(const LinkKey& key, const Link& link) {
  std::string text = describe(key);
  if (link.fit == nullptr) return text;
  if (link.fit->curve.latency.value() > 0.0) text += fmt::format("; latency {}", format_time(link.fit->curve.latency));
  if (link.fit->points > 0)
    text += fmt::format("; fit off by {:.1f}%, at most {:.1f}%", 100.0 * link.fit->median_error,
                        100.0 * link.fit->largest_error);
  else
    text += "; published fit";
  return text;
}

/// Ticks over all points.
void set_ticks(Plot& plot, double x_base, std::string (*x_label)(double)) {
  double low_x = INFINITY;
  double high_x = 0.0;
  double low_y = INFINITY;
  double high_y = 0.0;
  for (const PlotSeries& series : plot.series)
    for (const PlotPoint& point : series.points) {
      low_x = std::min(low_x, point.x);
      high_x = std::max(high_x, point.x);
      for (const double y : {point.y, series.style == PlotStyle::error_bars ? point.low : point.y,
                             series.style == PlotStyle::error_bars ? point.high : point.y}) {
        if (y > 0.0) low_y = std::min(low_y, y);
        high_y = std::max(high_y, y);
      }
    }
  plot.x.ticks = log_ticks(low_x, high_x, x_base, 11, x_label);
  plot.y.ticks = log_ticks(low_y, high_y, 10.0, 9, number_label);
}

}  // namespace

Result<Plot> link_plot(const ProfileData& data) {
  std::map<LinkKey, Link> links;
  for (const LinkMeasurement& row : data.links) links[row.key].points[row.message] = row.time;
  for (const LinkFit& row : data.fits) links[row.key].fit = &row;
  if (links.empty())
    return fail(ErrorCode::not_found, "there are no links to draw",
                "measure them with sailor-profile links, or draw layers with --table layer_times");

  std::map<std::tuple<std::string, std::string, LinkScope, LinkOperation>, std::vector<LinkKey>> routes;
  for (const bool with_points : {true, false})  // measured ones first
    for (const auto& [key, link] : links)
      if (link.points.empty() != with_points)
        routes[{key.from.gpu, key.to.gpu, key.scope, key.operation}].push_back(key);
  const std::vector<LinkKey> chosen = round_robin(routes, most_curves);

  Plot plot{.title = "Bandwidth of a message",
            .x = {.title = "message size", .logarithmic = true},
            .y = {.title = "bandwidth (GB/s)", .logarithmic = true}};
  bool bars = false;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Link& link = links.at(chosen[i]);
    const int color = static_cast<int>(i);
    PlotSeries points{
        .title = legend(chosen[i], link), .style = PlotStyle::error_bars, .color = color, .marker = color};
    for (const auto& [message, time] : link.points)
      if (message.value() > 0.0 && time.median.value() > 0.0)
        points.points.push_back({message.value(), (message / time.median).value() / 1e9,
                                 (message / std::max(time.p90, time.median)).value() / 1e9,
                                 time.p10.value() > 0.0 ? (message / time.p10).value() / 1e9 : 0.0});
    bars = bars || !points.points.empty();
    PlotSeries line{.title = points.points.empty() ? points.title : "", .color = color};
    if (link.fit != nullptr) line.points = curve_points(link);
    // Dashed if another link has the same curve, so that both are seen.
    line.dashed = std::any_of(plot.series.begin(), plot.series.end(),
                              [&](const PlotSeries& other) { return other.points == line.points; });
    if (!line.points.empty()) plot.series.push_back(std::move(line));
    if (!points.points.empty()) plot.series.push_back(std::move(points));
  }
  plot.note = bars ? "medians with p10 to p90; lines: fits" : "lines: fits";
  if (chosen.size() < links.size())
    plot.note += fmt::format("; {} of {} links: choose with --gpu, --zone, --operation", chosen.size(), links.size());
  set_ticks(plot, 2.0, size_label);
  return plot;
}

Result<Plot> layer_plot(const ProfileData& data) {
  // A curve is keyed by everything but the micro-batch and the layer.
  std::map<LayerKey, std::map<int, std::vector<const LayerTime*>>> curves;
  for (const LayerTime& row : data.layer_times) {
    if (row.key.kind != LayerKind::block || row.forward.median.value() <= 0.0) continue;
    LayerKey key = row.key;
    key.micro_batch = 1;
    key.first_layer = 0;
    curves[key][row.key.micro_batch].push_back(&row);
  }
  if (curves.empty())
    return fail(ErrorCode::not_found, "there are no times of blocks to draw",
                "measure them with sailor-profile layers");

  std::map<std::string, std::vector<LayerKey>> by_gpu;
  std::set<std::string> settings;
  std::map<std::string, int> colors;
  std::map<int, int> markers;
  auto setting = [](const LayerKey& key) {
    LayerKey plain = key;
    plain.gpu = "any GPU";
    return describe_setting(plain);
  };
  for (const auto& [key, rows] : curves) {
    by_gpu[key.gpu].push_back(key);
    settings.insert(setting(key));
  }
  const std::vector<LayerKey> chosen = round_robin(by_gpu, most_curves);
  for (const LayerKey& key : chosen) {
    colors.emplace(describe_setting(key), static_cast<int>(colors.size()));
    markers.emplace(key.tensor_parallel, static_cast<int>(markers.size()));
  }
  const bool one_setting = settings.size() == 1;
  const LayerKey& first = chosen.front();
  Plot plot{.title = one_setting ? fmt::format("A block of {} ({}, sequence {})", first.model,
                                               to_string(first.precision), first.sequence_length)
                                 : "A block",
            .note = "forward and backward of one micro-batch, medians over the layers",
            .x = {.title = "micro-batch (sequences)", .logarithmic = true},
            .y = {.title = "time (ms)", .logarithmic = true}};
  for (const LayerKey& key : chosen) {
    PlotSeries series{.title = fmt::format("{}, tensor parallel {}", one_setting ? key.gpu : describe_setting(key),
                                           key.tensor_parallel),
                      .style = PlotStyle::lines_and_points,
                      .color = colors.at(describe_setting(key)),
                      .marker = markers.at(key.tensor_parallel),
                      .dashed = markers.at(key.tensor_parallel) % 2 == 1};
    for (const auto& [micro_batch, rows] : curves.at(key)) {
      std::vector<double> times;
      for (const LayerTime* row : rows) times.push_back((row->forward.median + row->backward.median).value());
      series.points.push_back({static_cast<double>(micro_batch), quantile(times, 0.5) * 1e3});
    }
    plot.series.push_back(std::move(series));
  }
  if (chosen.size() < curves.size())
    plot.note += fmt::format("; {} of {} curves: choose with --gpu, --model", chosen.size(), curves.size());
  set_ticks(plot, 2.0, number_label);
  return plot;
}

}  // namespace sailor::reports
