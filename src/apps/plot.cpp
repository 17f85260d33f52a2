#include "apps/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "core/files.hpp"
#include "core/process.hpp"
#include "core/text.hpp"

namespace sailor::apps {

namespace {

// Okabe & Ito, Color Universal Design (2008): eight colours that colour-blind readers tell apart.
constexpr std::array<const char*, 8> colors{"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                            "#E69F00", "#56B4E9", "#000000", "#8C6D1F"};
constexpr std::array<int, 7> markers{7, 5, 9, 11, 13, 6, 4};  // gnuplot's: discs, squares, triangles, ...
constexpr int legend_line = 22;                               // pixels

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

/// What the points take, and a margin of a twentieth on both sides.
Range with_margin(Range range, bool logarithmic) {
  if (logarithmic) {
    const double margin = std::max(std::pow(range.high / range.low, 0.05), 1.1);
    return {range.low / margin, range.high * margin};
  }
  const double margin = std::max(range.high - range.low, std::abs(range.high) * 0.1 + 1e-300) * 0.05;
  return {range.low - margin, range.high + margin};
}

std::string axis_commands(const std::string& name, const PlotAxis& axis, const Range& range) {
  std::string text =
      fmt::format("set {}label {}{}\n", name, gnuplot_quote(axis.title), name == "x" ? " offset 0,0.9" : "");
  if (axis.logarithmic) text += fmt::format("set logscale {} 10\n", name);
  const Range shown = with_margin(range, axis.logarithmic);
  text += fmt::format("set {}range [{:.9g}:{:.9g}]\n", name, shown.low, shown.high);
  std::string ticks;
  for (const PlotTick& tick : axis.ticks)
    if (tick.at >= shown.low && tick.at <= shown.high)
      ticks += fmt::format("{}{} {:.9g}", ticks.empty() ? "" : ", ", tick_label(tick.label), tick.at);
  if (!ticks.empty()) text += fmt::format("set {}tics ({})\n", name, ticks);
  return text;
}

std::string series_style(const PlotSeries& series) {
  const char* color = cyclic(colors, series.color);
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
  }
  return "";
}

std::string terminal_command(const Plot& plot, std::string_view terminal, int height) {
  if (terminal == "svg")
    return fmt::format("set terminal svg size {},{} font 'DejaVu Sans,13' noenhanced background '#ffffff'\n",
                       plot.width, height);
  if (terminal == "pdfcairo")
    return fmt::format("set terminal pdfcairo size {:.2f}in,{:.2f}in font 'DejaVu Sans,10' noenhanced\n",
                       plot.width / 96.0, height / 96.0);
  // One and a half pixels per pixel: sharp on the screens of today.
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
  // Letters, digits and harmless marks as they are, all else as octal escapes: what gnuplot looks for before or while
  // it reads quotes (backticks, @macros, quotes, backslashes, braces) never stands in the script. Single quotes will
  // not do: gnuplot 5.4 takes the first two of '''x''' for an empty string and reads on outside of it.
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

std::string gnuplot_script(const Plot& plot, std::string_view terminal) {
  Range x;
  Range y;
  int legend = 0;
  std::string blocks;
  std::string curves;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const PlotSeries& series = plot.series[i];
    std::string rows;
    for (const PlotPoint& point : series.points) {
      if (!can_show(plot, point)) continue;
      const bool bars = series.style == PlotStyle::error_bars;
      const double low = bars && can_show(plot.y, point.low) ? point.low : point.y;
      const double high = bars && can_show(plot.y, point.high) ? point.high : point.y;
      x.include(point.x);
      for (const double value : {low, point.y, high}) y.include(value);
      rows += fmt::format("{:.9g} {:.9g} {:.9g} {:.9g}\n", point.x, point.y, low, high);
    }
    if (rows.empty()) continue;
    blocks += fmt::format("$series{} << END\n{}END\n", i, rows);
    curves += fmt::format("{}$series{} {} {}", curves.empty() ? "plot " : ", \\\n     ", i, series_style(series),
                          series.title.empty() ? "notitle" : "title " + gnuplot_quote(series.title));
    if (!series.title.empty()) ++legend;
  }
  if (curves.empty()) return "";
  return terminal_command(plot, terminal, plot.height + legend * legend_line) +
         "set encoding utf8\nset border 3 lc rgb '#404040'\nset tics nomirror out\nunset mxtics\nunset mytics\n"
         "set grid xtics ytics lt 1 lw 0.6 lc rgb '#d8d8d8'\nset errorbars 0.6\n"
         "set key below center vertical maxcols 1 Left reverse samplen 2 spacing 1.2 font ',9'\n" +
         fmt::format("set title {}\n", heading(plot)) + axis_commands("x", plot.x, x) + axis_commands("y", plot.y, y) +
         blocks + curves + "\n";
}

Result<void> draw(const Plot& plot, const std::filesystem::path& path) {
  const std::string ending = to_lower(path.extension().string());
  const std::string terminal = ending == ".png"   ? "pngcairo"
                               : ending == ".svg" ? "svg"
                               : ending == ".pdf" ? "pdfcairo"
                                                  : "";
  if (terminal.empty())
    return fail(ErrorCode::usage, fmt::format("'{}' is no kind of picture that can be drawn", path.string()),
                "end the name in .svg, .png or .pdf");
  SAILOR_CHECK(check_can_write(path));
  const std::string script = gnuplot_script(plot, terminal);
  if (script.empty())
    return fail(ErrorCode::failure, fmt::format("'{}' would be empty: there are no points to draw", path.string()));
  // Without the user's ~/.gnuplot.
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

}  // namespace sailor::apps
