// Pictures: points with error bars, lines, bars and box plots on linear or logarithmic axes, drawn by gnuplot.
//
// gnuplot is a separate program, found in PATH when a picture is asked for. It reads a script on stdin in which every
// text is a quoted constant and every number comes from us, and writes the picture to stdout: it never sees a path, and
// no name in a profile can become a command.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace sailor::reports {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
  double low = 0.0;  ///< ends of the error bar, or of the bar; only for PlotStyle::error_bars and bars
  double high = 0.0;
  std::string label{};  ///< in the bar, if there is room; only for PlotStyle::bars
  bool operator==(const PlotPoint&) const = default;
};

enum class PlotStyle {
  lines,
  points,
  lines_and_points,
  error_bars,
  bars,   ///< horizontal, from low to high along x around y: rows of a Gantt chart
  boxes,  ///< points with the same x as one box (BoxStatistics), and each of them beside it
};

/// Statistics of a box plot: the box from quartile to quartile, whiskers from the 5th to the 95th percentile.
struct BoxStatistics {
  double p5 = 0.0;
  double first_quartile = 0.0;
  double median = 0.0;
  double third_quartile = 0.0;
  double p95 = 0.0;
};
BoxStatistics box_statistics(std::span<const double> values);

/// One set of points. Points that an axis cannot show (not finite; not positive on a logarithmic axis) are left out.
struct PlotSeries {
  std::string title{};  ///< in the legend; empty: no entry
  PlotStyle style = PlotStyle::lines;
  int color = 0;   ///< any number: colours repeat after eight
  int marker = 0;  ///< shape of the points: any number; shapes repeat after seven
  bool dashed = false;
  std::optional<std::uint32_t> rgb{};  ///< 0xrrggbb instead of a colour of the palette
  double thickness = 0.8;              ///< of bars and boxes, in units of the axis across them
  std::vector<PlotPoint> points{};
};

struct PlotTick {
  double at = 0.0;
  std::string label{};
};

struct PlotAxis {
  std::string title{};
  bool logarithmic = false;
  std::vector<PlotTick> ticks{};  ///< empty: gnuplot's own
  /// Lower and upper end; std::nullopt: the range of the points, with a margin.
  std::optional<std::pair<double, double>> range{};
};

struct Plot {
  std::string title{};
  std::string note{};  ///< below the title: what was left out
  PlotAxis x{};
  PlotAxis y{};
  std::vector<PlotSeries> series{};
  int width = 900;                    ///< of the picture in pixels at 96 per inch; legend lines add to the height
  int height = 520;                   ///< of the plotting area
  bool legend_in_line = false;        ///< short titles side by side instead of one per line
  std::optional<double> zero_line{};  ///< a horizontal line at this y
};

/// Ticks base^k in [low, high], thinned to at most `most`; on a decimal axis with few decades 2 and 5 in between.
std::vector<PlotTick> log_ticks(double low, double high, double base, std::size_t most,
                                const std::function<std::string(double)>& label);

/// A gnuplot string constant that prints `text` and cannot execute anything: control characters become spaces, other
/// bytes that are not UTF-8 become U+FFFD.
std::string gnuplot_quote(std::string_view text);

/// The script for a terminal: "pngcairo", "svg" or "pdfcairo".
std::string gnuplot_script(const Plot& plot, std::string_view terminal);

/// The terminal for the ending of a file name. Errors: usage (it is none of .svg, .png and .pdf).
Result<std::string> picture_kind(const std::filesystem::path& path);

/// Draws into a .png, .svg or .pdf file, atomically. Errors: usage (another ending), not_found (no gnuplot), failure
/// (what gnuplot said; nothing to draw).
Result<void> draw(const Plot& plot, const std::filesystem::path& path);

}  // namespace sailor::reports
