#include "reports/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "core/files.hpp"
#include "core/process.hpp"
#include "core/statistics.hpp"
#include "core/text.hpp"

namespace sailor::reports {

namespace {

// Okabe & Ito, Color Universal Design (2008): eight colours that colour-blind readers tell apart.
constexpr std::array<const char*, 8> colors{"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                            "#E69F00", "#56B4E9", "#000000", "#8C6D1F"};
constexpr std::array<int, 7> markers{7, 5, 9, 11, 13, 6, 4};  // gnuplot's: discs, squares, triangles, ...
constexpr int legend_line = 22;                               // pixels
constexpr double margins = 130.0;                             // pixels beside the plotting part, about
constexpr double letter_width = 7.0;                          // pixels, of a label in a bar

template <class Array>
auto cyclic(const Array& values, int index) {
  const auto size = static_cast<int>(values.size());
  return values[static_cast<std::size_t>(((index % size) + size) % size)];
}

bool can_show(const PlotAxis& axis, double value) { return std::isfinite(value) && (!axis.logarithmic || value > 0.0); }

bool can_show(const Plot& plot, const PlotPoint& point) {
  return can_show(plot.x, point.x) && can_show(plot.y, point.y);
}

/// "title" over "note".
std::string heading(const Plot& plot) {
  return gnuplot_quote(plot.title) + (plot.note.empty() ? "" : ".\"\\n\"." + gnuplot_quote(plot.note));
}

/// A tick's label is a printf format to gnuplot.
std::string tick_label(std::string_view label) {
  std::string text;
  for (const char c : label) text += c == '%' ? "%%" : std::string(1, c);
  return gnuplot_quote(text);
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// The range of the points, with a margin of a twentieth on both sides.
Range with_margin(Range range, bool logarithmic) {
  if (logarithmic) {
    const double margin = std::max(std::pow(range.high / range.low, 0.05), 1.1);
    return {range.low / margin, range.high * margin};
  }
  const double margin = std::max(range.high - range.low, std::abs(range.high) * 0.1 + 1e-300) * 0.05;
  return {range.low - margin, range.high + margin};
}

std::string axis_commands(const std::string& name, const PlotAxis& axis, const Range& range, double title_offset) {
  std::string text = fmt::format("set {}label {} offset 0,{}\n", name, gnuplot_quote(axis.title), title_offset);
  if (axis.logarithmic) text += fmt::format("set logscale {} 10\n", name);
  const Range shown = axis.range ? Range{axis.range->first, axis.range->second} : with_margin(range, axis.logarithmic);
  text += fmt::format("set {}range [{:.9g}:{:.9g}]\n", name, shown.low, shown.high);
  std::string ticks;
  for (const PlotTick& tick : axis.ticks)
    if (tick.at >= shown.low && tick.at <= shown.high)
      ticks += fmt::format("{}{} {:.9g}", ticks.empty() ? "" : ", ", tick_label(tick.label), tick.at);
  if (!ticks.empty()) text += fmt::format("set {}tics ({})\n", name, ticks);
  return text;
}

std::string color_of(const PlotSeries& series) {
  return series.rgb ? fmt::format("#{:06x}", *series.rgb & 0xffffffU) : cyclic(colors, series.color);
}

/// White letters on dark colours, black ones on light colours.
const char* letters_on(const std::string& color) {
  const auto part = [&](std::size_t at) { return std::stoi(color.substr(at, 2), nullptr, 16); };
  return 0.3 * part(1) + 0.59 * part(3) + 0.11 * part(5) < 140.0 ? "#ffffff" : "#000000";
}

std::string series_style(const PlotSeries& series) {
  const std::string color = color_of(series);
  const int marker = cyclic(markers, series.marker);
  const std::string line = fmt::format("lw 2 dt {} lc rgb '{}'", series.dashed ? 2 : 1, color);
  switch (series.style) {
    case PlotStyle::lines:
      return "using 1:2 with lines " + line;
    case PlotStyle::points:
      return fmt::format("using 1:2 with points pt {} ps 0.8 lc rgb '{}'", marker, color);
    case PlotStyle::lines_and_points:
      return fmt::format("using 1:2 with linespoints pt {} ps 0.8 {}", marker, line);
    case PlotStyle::error_bars:
      return fmt::format("using 1:2:3:4 with yerrorbars pt {} ps 0.8 lw 1.5 lc rgb '{}'", marker, color);
    case PlotStyle::bars:
      return fmt::format("using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '{}'", color);
    case PlotStyle::boxes:
      return fmt::format("using 1:3:2:5:6:7 with candlesticks whiskerbars 0.5 fs solid 0.25 border lw 1.5 lc rgb '{}'",
                         color);
  }
  return "";
}

/// gnuplot input for a series: rows of numbers, and the commands that draw them.
struct Drawing {
  std::string blocks{};
  std::vector<std::string> curves{};
  std::string labels{};
  Range x{};
  Range y{};
};

std::string title_of(const PlotSeries& series) {
  return series.title.empty() ? "notitle" : "title " + gnuplot_quote(series.title);
}

void draw_points(const Plot& plot, const PlotSeries& series, std::size_t number, Drawing& drawing) {
  std::string rows;
  for (const PlotPoint& point : series.points) {
    if (!can_show(plot, point)) continue;
    const bool bars = series.style == PlotStyle::error_bars;
    const double low = bars && can_show(plot.y, point.low) ? point.low : point.y;
    const double high = bars && can_show(plot.y, point.high) ? point.high : point.y;
    drawing.x.include(point.x);
    for (const double value : {low, point.y, high}) drawing.y.include(value);
    rows += fmt::format("{:.9g} {:.9g} {:.9g} {:.9g}\n", point.x, point.y, low, high);
  }
  if (rows.empty()) return;
  drawing.blocks += fmt::format("$series{} << END\n{}END\n", number, rows);
  drawing.curves.push_back(fmt::format("$series{} {} {}", number, series_style(series), title_of(series)));
}

void draw_bars(const Plot& plot, const PlotSeries& series, std::size_t number, Drawing& drawing) {
  std::string rows;
  const double half = series.thickness / 2.0;
  for (const PlotPoint& point : series.points) {
    if (!can_show(plot.x, point.low) || !can_show(plot.x, point.high) || !can_show(plot.y, point.y)) continue;
    for (const double x : {point.low, point.high}) drawing.x.include(x);
    for (const double y : {point.y - half, point.y + half}) drawing.y.include(y);
    rows += fmt::format("{:.9g} {:.9g} {:.9g} {:.9g} {:.9g} {:.9g}\n", (point.low + point.high) / 2.0, point.y,
                        point.low, point.high, point.y - half, point.y + half);
    if (point.label.empty() || !plot.x.range) continue;
    const double pixels =
        (point.high - point.low) / (plot.x.range->second - plot.x.range->first) * (plot.width - margins);
    if (pixels >= static_cast<double>(point.label.size()) * letter_width + 2.0)
      drawing.labels +=
          fmt::format("set label {} at {:.9g},{:.9g} center front font ',8' tc rgb '{}'\n", gnuplot_quote(point.label),
                      (point.low + point.high) / 2.0, point.y, letters_on(color_of(series)));
  }
  if (rows.empty()) return;
  drawing.blocks += fmt::format("$series{} << END\n{}END\n", number, rows);
  drawing.curves.push_back(fmt::format("$series{} {} {}", number, series_style(series), title_of(series)));
}

void draw_boxes(const Plot& plot, const PlotSeries& series, std::size_t number, Drawing& drawing) {
  std::map<double, std::vector<double>> groups;
  for (const PlotPoint& point : series.points)
    if (can_show(plot, point)) groups[point.x].push_back(point.y);
  if (groups.empty()) return;
  std::string boxes;
  std::string singles;
  const double half = series.thickness / 2.0;
  for (const auto& [x, values] : groups) {
    const BoxStatistics box = box_statistics(values);
    boxes += fmt::format("{:.9g} {:.9g} {:.9g} {:.9g} {:.9g} {:.9g} {:.9g}\n", x, box.p5, box.first_quartile,
                         box.median, box.p95, box.third_quartile, series.thickness);
    for (const double side : {x - half * 2.0, x + half * 2.0}) drawing.x.include(side);
    // Single points are beside the box in three columns, so that they overlap less.
    for (std::size_t i = 0; i < values.size(); ++i) {
      drawing.y.include(values[i]);
      singles += fmt::format("{:.9g} {:.9g}\n", x + half * (1.3 + 0.2 * static_cast<double>(i % 3)), values[i]);
    }
  }
  const std::string color = color_of(series);
  drawing.blocks += fmt::format("$series{0} << END\n{1}END\n$points{0} << END\n{2}END\n", number, boxes, singles);
  drawing.curves.push_back(fmt::format("$series{} {} {}", number, series_style(series), title_of(series)));
  drawing.curves.push_back(
      fmt::format("$series{} using 1:4:4:4:4:7 with candlesticks lw 2.5 lc rgb '{}' notitle", number, color));
  drawing.curves.push_back(fmt::format("$points{} using 1:2 with points pt {} ps 0.6 lc rgb '{}' notitle", number,
                                       cyclic(markers, series.marker), color));
}

std::string terminal_command(const Plot& plot, std::string_view terminal, int height) {
  if (terminal == "svg")
    return fmt::format("set terminal svg size {},{} font 'DejaVu Sans,13' noenhanced background '#ffffff'\n",
                       plot.width, height);
  if (terminal == "pdfcairo")
    return fmt::format("set terminal pdfcairo size {:.2f}in,{:.2f}in font 'DejaVu Sans,10' noenhanced\n",
                       plot.width / 96.0, height / 96.0);
  // 1.5 device pixels per pixel, to be sharp on today's screens.
  return fmt::format(
      "set terminal pngcairo size {},{} font 'DejaVu Sans,10' fontscale 1.5 linewidth 1.5 "
      "pointscale 1.5 noenhanced background '#ffffff'\n",
      plot.width * 3 / 2, height * 3 / 2);
}

}  // namespace

std::vector<PlotTick> log_ticks(double low, double high, double base, std::size_t most,
                                const std::function<std::string(double)>& label) {
  std::vector<PlotTick> ticks;
  if (!(low > 0.0) || !(high >= low) || !std::isfinite(high)) return ticks;
  const int first = static_cast<int>(std::floor(std::log(low) / std::log(base) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log(high) / std::log(base) - 1e-9));
  const bool between = base == 10.0 && last - first <= 3;
  int step = 1;
  while (static_cast<std::size_t>((last - first) / step + 1) > std::max<std::size_t>(most, 2)) ++step;
  for (int power = first; power <= last; power += step)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double at = factor * std::pow(base, power);
      if (factor == 1.0 || between) ticks.push_back({at, label(at)});
    }
  return ticks;
}

std::string gnuplot_quote(std::string_view text) {
  // Letters, digits and harmless characters are kept; everything else becomes an octal escape, so that what gnuplot
  // interprets before or inside quotes (backticks, @macros, quotes, backslashes, braces) never occurs in the script.
  // Single quotes do not work: gnuplot 5.4 takes the first two of '''x''' for an empty string and reads on outside of
  // it.
  constexpr std::string_view harmless = " ,.:;()[]-_/+=<>%*";
  std::string quoted = "\"";
  for (const char c : valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (byte < 0x20 || byte == 0x7f)
      quoted += ' ';
    else if (letter || byte >= 0x80 || harmless.find(c) != std::string_view::npos)
      quoted += c;
    else
      quoted += fmt::format("\\{:03o}", static_cast<unsigned>(byte));
  }
  return quoted + "\"";
}

BoxStatistics box_statistics(std::span<const double> values) {
  return {.p5 = quantile(values, 0.05),
          .first_quartile = quantile(values, 0.25),
          .median = quantile(values, 0.5),
          .third_quartile = quantile(values, 0.75),
          .p95 = quantile(values, 0.95)};
}

std::string gnuplot_script(const Plot& plot, std::string_view terminal) {
  Drawing drawing;
  int legend = 0;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const PlotSeries& series = plot.series[i];
    const std::size_t before = drawing.curves.size();
    if (series.style == PlotStyle::bars)
      draw_bars(plot, series, i, drawing);
    else if (series.style == PlotStyle::boxes)
      draw_boxes(plot, series, i, drawing);
    else
      draw_points(plot, series, i, drawing);
    if (!series.title.empty() && drawing.curves.size() > before) ++legend;
  }
  if (drawing.curves.empty()) return "";
  if (plot.legend_in_line) legend = std::min(legend, 1);
  std::string script =
      terminal_command(plot, terminal, plot.height + legend * legend_line) +
      "set encoding utf8\nset border 3 lc rgb '#404040'\nset tics nomirror out\nunset mxtics\nunset mytics\n"
      "set grid xtics ytics lt 1 lw 0.6 lc rgb '#d8d8d8'\nset errorbars 0.6\n";
  script += plot.legend_in_line
                ? "set key tmargin center horizontal Left reverse samplen 1 width 1 font ',9'\n"
                : "set key below center vertical maxcols 1 Left reverse samplen 2 spacing 1.2 font ',9'\n";
  script += fmt::format("set title {}\n", heading(plot)) +
            axis_commands("x", plot.x, drawing.x, plot.legend_in_line ? 0.5 : 0.9) +
            axis_commands("y", plot.y, drawing.y, 0);
  if (plot.zero_line)
    script += fmt::format("set arrow from graph 0, first {0:.9g} to graph 1, first {0:.9g} nohead lc rgb '#404040'\n",
                          *plot.zero_line);
  return script + drawing.labels + drawing.blocks + fmt::format("plot {}\n", join(drawing.curves, ", \\\n     "));
}

Result<std::string> picture_kind(const std::filesystem::path& path) {
  const std::string ending = to_lower(path.extension().string());
  if (ending == ".png") return "pngcairo";
  if (ending == ".svg") return "svg";
  if (ending == ".pdf") return "pdfcairo";
  return fail(ErrorCode::usage, fmt::format("'{}' is no kind of picture that can be drawn", path.string()),
              "end the name in .svg, .png or .pdf");
}

Result<void> draw(const Plot& plot, const std::filesystem::path& path) {
  const auto terminal = picture_kind(path);
  if (!terminal) return fail(terminal.error());
  SAILOR_CHECK(check_can_write(path));
  const std::string script = gnuplot_script(plot, *terminal);
  if (script.empty())
    return fail(ErrorCode::failure, fmt::format("'{}' would be empty: there are no points to draw", path.string()));
  // Runs without the user's ~/.gnuplot.
  auto drawn = run_command({.arguments = {"gnuplot", "-d", "-"}, .input = script, .deadline = Seconds(120)});
  if (!drawn && drawn.error().code == ErrorCode::not_found)
    return fail(ErrorCode::not_found, "pictures are drawn by gnuplot, which is not in PATH",
                "install it (Debian: apt install gnuplot-nox) or load its module");
  if (!drawn) return fail(drawn.error(), "gnuplot");
  if (!drawn->succeeded() || drawn->output.empty())
    return fail(ErrorCode::failure,
                fmt::format("gnuplot could not draw '{}': {}{}{}", path.string(), drawn->how_it_ended(),
                            drawn->errors.empty() ? "" : ", ", drawn->errors),
                "it must know the terminals pngcairo, svg and pdfcairo, as Debian's gnuplot-nox does");
  return write_file_atomically(path, drawn->output);
}

}  // namespace sailor::reports
