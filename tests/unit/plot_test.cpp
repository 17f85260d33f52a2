// Plots: the script for gnuplot; no text in it can become a command.
#include "reports/plot.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/process.hpp"

namespace sailor::reports::plot_test {
namespace {

namespace fs = std::filesystem;

Plot two_points() {
  Plot plot;
  plot.title = "title";
  plot.x = {.title = "x", .logarithmic = true};
  plot.y = {.title = "y", .logarithmic = true};
  plot.series.push_back(
      {.title = "measured", .style = PlotStyle::error_bars, .points = {{1, 2, 1, 3}, {10, 20, 10, 30}}});
  return plot;
}

class Pictures : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sailor_plot_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    there_ = run_command({.arguments = {"gnuplot", "--version"}, .input = {}, .deadline = Seconds(60)}).has_value();
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
  bool there_ = false;
};

TEST(Plot, TextIsQuoted) {
  EXPECT_EQ(gnuplot_quote("A100-40 x4 (us-central1-a)"), "\"A100-40 x4 (us-central1-a)\"");
  EXPECT_EQ(gnuplot_quote("it's"), "\"it\\047s\"");
  EXPECT_EQ(gnuplot_quote("a\nb\x7f"), "\"a b \"");
  EXPECT_EQ(gnuplot_quote("`\\\"@$#"), "\"\\140\\134\\042\\100\\044\\043\"");
  EXPECT_EQ(gnuplot_quote("±\xff"), "\"±\xef\xbf\xbd\"");
}

TEST(Plot, PointsThatAnAxisCannotShowAreLeftOut) {
  Plot plot = two_points();
  plot.series[0].points.push_back({100, 0, 0, 0});
  plot.series[0].points.push_back({std::nan(""), 1, 1, 1});
  plot.series[0].points.push_back({100, std::numeric_limits<double>::infinity(), 1, 1});
  EXPECT_NE(gnuplot_script(plot, "svg").find("<< END\n1 2 1 3\n10 20 10 30\nEND\n"), std::string::npos)
      << gnuplot_script(plot, "svg");
  plot.series[0].points = {{0, 1, 1, 1}};
  EXPECT_EQ(gnuplot_script(plot, "svg"), "");
}

TEST(Plot, BarsLieAlongTheirRowAndSayWhatFits) {
  // 870 of the 1000 pixels are drawn in: one unit takes 87 of them, a letter 7.
  Plot plot{.title = "t",
            .x = {.title = "x", .range = std::pair(0.0, 10.0)},
            .series = {{.title = "busy",
                        .style = PlotStyle::bars,
                        .rgb = 0x0000ff,
                        .thickness = 0.5,
                        .points = {{.y = 1, .low = 0, .high = 4, .label = "12"},
                                   {.y = 1, .low = 4, .high = 4.1, .label = "13"},
                                   {.y = 2, .low = std::nan(""), .high = 4}}}},
            .width = 1000};
  const std::string script = gnuplot_script(plot, "svg");
  EXPECT_NE(script.find("<< END\n2 1 0 4 0.75 1.25\n4.05 1 4 4.1 0.75 1.25\nEND\n"), std::string::npos) << script;
  EXPECT_NE(script.find("set label \"12\" at 2,1 center front font ',8' tc rgb '#ffffff'\n"), std::string::npos);
  EXPECT_EQ(script.find("\"13\""), std::string::npos) << "wider than its bar";
  EXPECT_NE(script.find("set xrange [0:10]"), std::string::npos);
  EXPECT_NE(script.find("with boxxyerror fs solid noborder lc rgb '#0000ff' title \"busy\""), std::string::npos);
}

TEST(Plot, BoxesAreQuartilesAndPercentilesOfPointsWithTheSameX) {
  // Of 1, 2, ..., 21 (order statistics at 0, 0.05, ..., 1): P5 is the second, the quartiles the 6th and 16th.
  std::vector<double> values;
  for (int i = 21; i >= 1; --i) values.push_back(i);
  const BoxStatistics box = box_statistics(values);
  EXPECT_DOUBLE_EQ(box.p5, 2);
  EXPECT_DOUBLE_EQ(box.first_quartile, 6);
  EXPECT_DOUBLE_EQ(box.median, 11);
  EXPECT_DOUBLE_EQ(box.third_quartile, 16);
  EXPECT_DOUBLE_EQ(box.p95, 20);
  // Of 0, 10, 20: between neighbours in proportion, so P5 lies at 0.1 of the first interval.
  Plot plot{.series = {{.style = PlotStyle::boxes,
                        .thickness = 0.4,
                        .points = {{.x = 1, .y = 20}, {.x = 1, .y = 0}, {.x = 2, .y = 7}, {.x = 1, .y = 10}}}}};
  const std::string script = gnuplot_script(plot, "svg");
  EXPECT_NE(script.find("$series0 << END\n1 1 5 10 19 15 0.4\n2 7 7 7 7 7 0.4\nEND\n"), std::string::npos) << script;
  // Beside the box, which ends at 1.2.
  EXPECT_NE(script.find("$points0 << END\n1.26 20\n1.3 0\n1.34 10\n2.26 7\nEND\n"), std::string::npos) << script;
}

TEST(Plot, TicksArePowersThinnedToFit) {
  auto number = [](double value) { return std::to_string(static_cast<int>(value)); };
  auto labels = [&](double low, double high, double base, std::size_t most) {
    std::string text;
    for (const PlotTick& tick : log_ticks(low, high, base, most, number)) text += tick.label + " ";
    return text;
  };
  EXPECT_EQ(labels(1, 16, 2, 10), "1 2 4 8 16 ");
  EXPECT_EQ(labels(1, 256, 2, 5), "1 4 16 64 256 ");
  EXPECT_EQ(labels(3, 90, 10, 10), "1 2 5 10 20 50 100 200 500 ");
  EXPECT_EQ(labels(1, 1e5, 10, 10), "1 10 100 1000 10000 100000 ");
  EXPECT_EQ(labels(0, 1, 10, 10), "");
}

TEST_F(Pictures, AreWrittenInTheKindThatTheNameSays) {
  if (!there_) GTEST_SKIP() << "gnuplot is not installed";
  for (const auto& [name, beginning] :
       {std::pair("a.png", "\x89PNG"), std::pair("a.svg", "<?xml"), std::pair("a.PDF", "%PDF")}) {
    const auto drawn = draw(two_points(), folder_ / name);
    ASSERT_TRUE(drawn) << drawn.error().message();
    EXPECT_EQ(read_text_file(folder_ / name)->substr(0, 4), std::string(beginning).substr(0, 4));
  }
}

TEST_F(Pictures, NoTextBecomesACommand) {
  if (!there_) GTEST_SKIP() << "gnuplot is not installed";
  const std::string file = (folder_ / "owned").string();
  Plot plot = two_points();
  plot.series.push_back({.style = PlotStyle::bars, .points = {{.y = 1, .low = 1, .high = 1e300}}});
  plot.series.push_back({.style = PlotStyle::boxes, .points = {{.x = 1, .y = 1}}});
  for (const std::string& text :
       {"'\nsystem('touch " + file + "')\n'", "`touch " + file + "`", "'.system('touch " + file + "').'",
        "\"; system \"touch " + file + "\"", "\\'; system 'touch " + file + "'", "END\nsystem 'touch " + file + "'",
        std::string("@x %s %d %n \\ {/*9 x}"), std::string("\xff\xfe\x00 x", 5)}) {
    plot.title = plot.note = plot.x.title = plot.y.title = plot.series[0].title = text;
    plot.x.ticks = {{1, text}, {10, text}};
    plot.x.range = std::pair(1.0, 1e300);
    plot.series[1].title = plot.series[1].points[0].label = plot.series[2].title = text;
    const auto drawn = draw(plot, folder_ / "a.svg");
    ASSERT_TRUE(drawn) << drawn.error().message();
    EXPECT_FALSE(fs::exists(file)) << text;
  }
  // What is written is what was said.
  plot.series[0].title = "@x %s `y` \\n {/*9 z}";
  ASSERT_TRUE(draw(plot, folder_ / "a.svg"));
  EXPECT_NE(read_text_file(folder_ / "a.svg")->find("@x %s `y` \\n {/*9 z}"), std::string::npos);
}

TEST_F(Pictures, WhatCannotBeDrawnSaysWhy) {
  EXPECT_EQ(draw(two_points(), folder_ / "a.gif").error().message(),
            "'" + (folder_ / "a.gif").string() +
                "' is no kind of picture that can be drawn; end the name in .svg, .png or .pdf");
  EXPECT_EQ(draw(Plot{}, folder_ / "a.svg").error().message(),
            "'" + (folder_ / "a.svg").string() + "' would be empty: there are no points to draw");
  const std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  ::setenv("PATH", folder_.c_str(), 1);
  const auto drawn = draw(two_points(), folder_ / "a.svg");
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(drawn);
  EXPECT_EQ(drawn.error().message(),
            "pictures are drawn by gnuplot, which is not in PATH; install it (Debian: apt install gnuplot-nox) or load "
            "its module");
  EXPECT_FALSE(fs::exists(folder_ / "a.svg"));
}

}  // namespace
}  // namespace sailor::reports::plot_test
