// Pictures: points with error bars and lines on linear or logarithmic axes, drawn by gnuplot.
//
// gnuplot is a separate program, found in PATH when a picture is asked for. It reads a script on stdin in which every
// text is a quoted constant and every number comes from us, and writes the picture to stdout: it never sees a path, and
// no name in a profile can become a command.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace sailor::apps {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
  double low = 0.0;  ///< ends of the error bar; only of PlotStyle::error_bars
  double high = 0.0;
  bool operator==(const PlotPoint&) const = default;
};

enum class PlotStyle { lines, points, lines_and_points, error_bars };

/// One set of points. Points that an axis cannot show (not finite; not positive on a logarithmic axis) are left out.
struct PlotSeries {
  std::string title{};  ///< in the legend; empty: not there
  PlotStyle style = PlotStyle::lines;
  int color = 0;   ///< any number: colours repeat after eight
  int marker = 0;  ///< form of the points, likewise
  bool dashed = false;
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
};

struct Plot {
  std::string title{};
  std::string note{};  ///< below the title: what was left out
  PlotAxis x{};
  PlotAxis y{};
  std::vector<PlotSeries> series{};
  int width = 900;   ///< of the picture in pixels at 96 per inch; legend lines add to the height
  int height = 520;  ///< of its plotting part
};

/// Ticks base^k in [low, high], thinned to at most `most`; on a decimal axis with few decades 2 and 5 in between.
std::vector<PlotTick> log_ticks(double low, double high, double base, std::size_t most,
                                const std::function<std::string(double)>& label);

/// A gnuplot string constant that says `text` and can do nothing: control characters become spaces, other bytes that
/// are no UTF-8 become U+FFFD.
std::string gnuplot_quote(std::string_view text);

/// The script for a terminal: "pngcairo", "svg" or "pdfcairo".
std::string gnuplot_script(const Plot& plot, std::string_view terminal);

/// Draws into a .png, .svg or .pdf file, atomically. Errors: usage (another ending), not_found (no gnuplot), failure
/// (what gnuplot said; nothing to draw).
Result<void> draw(const Plot& plot, const std::filesystem::path& path);

}  // namespace sailor::apps
