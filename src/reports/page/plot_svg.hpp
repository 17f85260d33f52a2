// Draws a Plot as SVG inside a page: its colours are classes of the page's style, so that they follow light and dark.
// (draw() of plot.hpp makes files of their own, with gnuplot.)
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/plot.hpp"

namespace sailor::reports {

/// The ends and steps of an axis: about `most` round values that cover [low, high], labelled without needless zeros.
std::vector<PlotTick> linear_ticks(double low, double high, int most);

/// A figure with its legend. Plot::title and note are left to the page. Axes are linear; series are bars, lines or
/// points; points that are not finite are left out. `css_class`: "wide" (scrolls in narrow windows) or "chart";
/// `description`: what a screen reader says.
std::string plot_svg(const Plot& plot, std::string_view css_class, std::string_view description);

}  // namespace sailor::reports
