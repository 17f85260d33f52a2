#include "reports/page/plot_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/text.hpp"
#include "reports/page/html.hpp"

namespace sailor::reports {

namespace {

constexpr double svg_letter = 7.2;  ///< pixels, about, of a letter of 13 pixels
constexpr double svg_small_letter = 6.2;

bool is_shown(const PlotSeries& series, const PlotPoint& point) {
  if (!std::isfinite(point.y)) return false;
  if (series.style == PlotStyle::bars) return std::isfinite(point.low) && std::isfinite(point.high);
  return std::isfinite(point.x);
}

/// The range of the points in one direction, with a margin; [0, 1] if there is no point.
std::pair<double, double> range_of(const Plot& plot, bool along_x) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  const auto include = [&](double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  };
  for (const PlotSeries& series : plot.series)
    for (const PlotPoint& point : series.points) {
      if (!is_shown(series, point)) continue;
      if (along_x && series.style == PlotStyle::bars) {
        include(point.low);
        include(point.high);
      } else {
        include(along_x ? point.x : point.y);
      }
    }
  if (!(low <= high)) return {0.0, 1.0};
  const double margin = high > low ? (high - low) * 0.06 : std::max(std::abs(high) * 0.06, 1e-9);
  return {low - margin, high + margin};
}

/// Maps values to pixels, and collects the picture.
class SvgPainter {
 public:
  explicit SvgPainter(const Plot& plot) : plot_(plot) {
    x_ = plot.x.range.value_or(range_of(plot, true));
    y_ = plot.y.range.value_or(range_of(plot, false));
    y_ticks_ = plot.y.ticks.empty() ? linear_ticks(y_.first, y_.second, 5) : plot.y.ticks;
    std::size_t longest = 0;
    for (const PlotTick& tick : y_ticks_) longest = std::max(longest, tick.label.size());
    left_ = std::clamp(static_cast<double>(longest) * svg_letter + 12.0, 40.0, plot.width * 0.4);
    if (!plot.y.title.empty()) top_ = 24.0;
  }

  std::string picture(std::string_view css_class, std::string_view description) {
    out_ = fmt::format("<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", css_class,
                       plot_.width, plot_.height, html_text(description));
    axes();
    for (const PlotSeries& series : plot_.series) draw(series);
    return out_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void add(fmt::format_string<const Args&...> format, const Args&... args) {
    append(out_, format, args...);
  }
  [[nodiscard]] double right() const { return plot_.width - 14.0; }
  [[nodiscard]] double bottom() const { return plot_.height - (plot_.x.title.empty() ? 26.0 : 44.0); }
  [[nodiscard]] double at_x(double value) const {
    return left_ + (value - x_.first) / (x_.second - x_.first) * (right() - left_);
  }
  [[nodiscard]] double at_y(double value) const {
    return bottom() - (value - y_.first) / (y_.second - y_.first) * (bottom() - top_);
  }

  void axes() {
    const bool rows = !plot_.y.ticks.empty();  // labels of rows: no lines across
    for (const PlotTick& tick : y_ticks_) {
      if (tick.at < y_.first || tick.at > y_.second) continue;
      if (!rows) add("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", left_, at_y(tick.at), right());
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left_ - 6.0, at_y(tick.at) + 4.5,
          html_text(tick.label));
    }
    const auto x_ticks =
        plot_.x.ticks.empty() ? linear_ticks(x_.first, x_.second, plot_.width > 700 ? 10 : 6) : plot_.x.ticks;
    for (const PlotTick& tick : x_ticks) {
      if (tick.at < x_.first || tick.at > x_.second) continue;
      add("<path class=\"axis\" d=\"M{:.1f} {:.1f}v5\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
          "text-anchor=\"middle\">{}</text>\n",
          at_x(tick.at), bottom(), at_x(tick.at), bottom() + 19.0, html_text(tick.label));
    }
    add("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left_, bottom(), right());
    if (!plot_.x.title.empty())
      add("<text class=\"soft\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (left_ + right()) / 2.0,
          plot_.height - 8, html_text(plot_.x.title));
    if (!plot_.y.title.empty()) add("<text class=\"soft\" x=\"4\" y=\"14\">{}</text>\n", html_text(plot_.y.title));
  }

  void draw(const PlotSeries& series) {
    if (series.style == PlotStyle::bars) {
      draw_svg_bars(series);
      return;
    }
    if (series.style != PlotStyle::points) draw_svg_line(series);
    if (series.style == PlotStyle::lines) return;
    for (const PlotPoint& point : series.points) {
      if (!is_shown(series, point)) continue;
      add("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\">", fill_class(series.color), at_x(point.x),
          at_y(point.y));
      if (!point.label.empty()) add("<title>{}</title>", html_text(point.label));
      add("</circle>\n");
    }
  }

  /// A point that is not finite interrupts the line.
  void draw_svg_line(const PlotSeries& series) {
    std::string path;
    bool pen_down = false;
    for (const PlotPoint& point : series.points) {
      const bool shown = is_shown(series, point);
      if (shown) path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", at_x(point.x), at_y(point.y));
      pen_down = shown;
    }
    if (path.empty()) return;
    std::string stroke = fill_class(series.color);
    stroke.front() = 's';
    add("<path class=\"line {}{}\" d=\"{}\"/>\n", stroke, series.dashed ? " dashed" : "", path);
  }

  void draw_svg_bars(const PlotSeries& series) {
    const double half = series.thickness / 2.0;
    std::string labels;
    // One path for all: there may be a hundred thousand bars.
    std::string path;
    for (const PlotPoint& point : series.points) {
      if (!is_shown(series, point)) continue;
      const double from = at_x(point.low);
      const double width = at_x(point.high) - from;
      const double top = at_y(point.y + half);
      path += fmt::format("M{:.1f} {:.1f}h{:.2f}V{:.1f}h-{:.2f}z", from, top, std::max(width, 0.3),
                          at_y(point.y - half), std::max(width, 0.3));
      if (!point.label.empty() && width >= static_cast<double>(point.label.size()) * svg_small_letter + 3.0)
        labels += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", from + width / 2.0, at_y(point.y) + 4.0,
                              html_text(point.label));
    }
    if (!path.empty())
      add("<path class=\"{}\" d=\"{}\"/>\n", series.rgb ? std::string("idle") : fill_class(series.color), path);
    if (!labels.empty())
      add("<g class=\"numbers {}\" text-anchor=\"middle\">\n{}</g>\n", letters_class(series.color), labels);
  }

  const Plot& plot_;
  std::pair<double, double> x_{};
  std::pair<double, double> y_{};
  std::vector<PlotTick> y_ticks_{};
  double left_ = 0.0;
  double top_ = 8.0;
  std::string out_{};
};

}  // namespace

std::vector<PlotTick> linear_ticks(double low, double high, int most) {
  std::vector<PlotTick> ticks;
  if (!(high > low) || !std::isfinite(high - low) || most < 1) return ticks;
  const double power = std::pow(10.0, std::floor(std::log10((high - low) / most)));
  double step = 10.0 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power * most >= high - low) {
      step = factor * power;
      break;
    }
  for (auto k = static_cast<long long>(std::ceil(low / step)); static_cast<double>(k) * step <= high; ++k)
    ticks.push_back({static_cast<double>(k) * step, fmt::format("{:.6g}", static_cast<double>(k) * step)});
  return ticks;
}

std::string plot_svg(const Plot& plot, std::string_view css_class, std::string_view description) {
  std::vector<LegendEntry> legend;
  for (const PlotSeries& series : plot.series)
    if (!series.title.empty() && !series.points.empty())
      legend.push_back({series.rgb ? "idle" : fill_class(series.color), series.title});
  return "<figure>\n" + html_legend(legend) + "<div class=\"scroll\">" +
         SvgPainter(plot).picture(css_class, description) + "</div></figure>\n";
}

}  // namespace sailor::reports
