// The pieces of a page: text, ticks, pictures whose places are computed by hand, and the reader of traces.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "plan/trace.hpp"
#include "plan/trace_reader.hpp"
#include "reports/page/html.hpp"
#include "reports/page/memory_bars.hpp"
#include "reports/page/plan_picture.hpp"
#include "reports/page/plot_svg.hpp"

namespace sailor::reports::report_page_test {
namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Two copies of a pipeline of two stages, the second one on a group of two.
Plan two_stages() {
  Plan plan;
  plan.job = {.model = "m", .global_batch = 4, .sequence_length = 64};
  plan.pipelines = {
      {.count = 2,
       .micro_batches = 2,
       .stages = {{.layers = {0, 1}, .gpu = "A100-40"}, {.layers = {1, 4}, .gpu = "V100-16", .tensor_parallel = 2}}}};
  return plan;
}

TEST(ReportPage, TextHasNoMarkup) {
  EXPECT_EQ(html_text("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_text("x\ny\x7f\xff±"), "x y \xef\xbf\xbd±");
  EXPECT_TRUE(has(html_table({{"<t>"}}, {{"<c>"}}), "<th class=\"n\">&lt;t&gt;</th>"));
  EXPECT_FALSE(has(html_facts({{"<a>", "<b>"}}), "<b>"));
  EXPECT_FALSE(has(html_legend({{"f0", "<b>"}}), "<b>"));
}

TEST(ReportPage, PageIsRecognisedAndForbidsRequests) {
  const std::string page = html_page("<t>", "", {{"id", "a & b", "source", "<p></p>"}}, "me");
  EXPECT_TRUE(is_html_page(page));
  EXPECT_FALSE(is_html_page("<!DOCTYPE html>\n<html lang=\"en\">\n"));
  EXPECT_TRUE(has(page, "default-src 'none'"));
  EXPECT_TRUE(has(page, "<title>&lt;t&gt;</title>"));
  EXPECT_TRUE(has(page, "<a href=\"#id\">a &amp; b</a>"));
}

TEST(ReportPage, TicksAreRound) {
  const auto labels = [](double low, double high, int most) {
    std::vector<std::string> texts;
    for (const PlotTick& tick : linear_ticks(low, high, most)) texts.push_back(tick.label);
    return texts;
  };
  EXPECT_EQ(labels(0, 10, 5), (std::vector<std::string>{"0", "2", "4", "6", "8", "10"}));
  EXPECT_EQ(labels(-0.11, 0.22, 4), (std::vector<std::string>{"-0.1", "0", "0.1", "0.2"}));
  EXPECT_EQ(labels(7e-6, 8e-6, 2), (std::vector<std::string>{"7e-06", "7.5e-06", "8e-06"}));
  EXPECT_TRUE(labels(1, 1, 5).empty());
  EXPECT_TRUE(labels(0, std::numeric_limits<double>::infinity(), 5).empty());
}

TEST(ReportPage, BarsAndLinesAreWhereTheirValuesAre) {
  // Labels of one letter: the plotting area is from 40 to 100 - 14 = 86 across, and from 8 to 100 - 26 = 74 down.
  Plot plot{.x = {.range = std::pair(0.0, 46.0)},
            .y = {.ticks = {{1.0, "a"}}, .range = std::pair(0.0, 2.0)},
            .width = 100,
            .height = 100};
  plot.series = {{.title = "<b>", .style = PlotStyle::bars, .color = 2, .thickness = 1.0}};
  plot.series[0].points = {{.y = 1.0, .low = 0.0, .high = 23.0}};
  const std::string bars = plot_svg(plot, "wide", "bars");
  EXPECT_TRUE(has(bars, "<path class=\"f2\" d=\"M40.0 24.5h23.00V57.5h-23.00z\"/>")) << bars;
  EXPECT_TRUE(has(bars, "&lt;b&gt;"));
  // A value that is not finite interrupts the line.
  plot.series = {{.style = PlotStyle::lines, .color = 1}};
  plot.series[0].points = {{0, 0}, {23, 2}, {30, std::nan("")}, {46, 1}};
  const std::string line = plot_svg(plot, "wide", "line");
  EXPECT_TRUE(has(line, "d=\"M40.0 74.0L63.0 8.0M86.0 41.0\"")) << line;
  plot.series[0].points.clear();
  EXPECT_FALSE(has(plot_svg(plot, "wide", "nothing"), "class=\"line"));
}

TEST(ReportPage, StagesAreAsWideAsTheirLayers) {
  const std::string picture = plan_picture(two_stages(), {"n1", "n2", "n2", "n10", "n3", "n3"});
  // 1100 pixels for four layers; rows begin below 22 pixels of text.
  EXPECT_TRUE(has(picture, "<rect class=\"f0 frame\" x=\"0.0\" y=\"22.0\" width=\"275.0\"")) << picture;
  EXPECT_TRUE(has(picture, "<rect class=\"f1 frame\" x=\"275.0\" y=\"22.0\" width=\"825.0\"")) << picture;
  EXPECT_TRUE(has(picture, "pipeline 0 (2 alike): 2 micro-batches of 1 sequence"));
  EXPECT_TRUE(has(picture, ">V100-16 x2 (tp 2)<"));
  EXPECT_TRUE(has(picture, ">nodes n1, n10<")) << "ranks 0 and 3 hold the first stage";
  EXPECT_TRUE(has(picture, ">nodes n2, n3<"));
}

simulator::Prediction with_memory(Bytes weights, Bytes activations, std::optional<Bytes> capacity) {
  simulator::Prediction prediction;
  for (const int stage : {0, 1})
    prediction.stages.push_back(
        {.stage = stage,
         .memory = {.weights = weights, .activations = stage == 0 ? activations : 0.0 * activations},
         .capacity = capacity});
  return prediction;
}

TEST(ReportPage, MemoryIsStackedAgainstTheDevice) {
  // The device's 100 bytes are 1/1.02 of the width: 25 bytes are 24.510%.
  const std::string fits = memory_bars(two_stages(), with_memory(Bytes(25), Bytes(50), Bytes(100)), nullptr);
  EXPECT_TRUE(has(fits, "<rect class=\"f0\" x=\"0.000%\" y=\"3\" width=\"24.510%\"")) << fits;
  EXPECT_TRUE(has(fits, "<rect class=\"f4\" x=\"24.510%\" y=\"3\" width=\"49.020%\"")) << fits;
  EXPECT_TRUE(has(fits, "<rect class=\"limit\" x=\"98.039%\"")) << fits;
  EXPECT_TRUE(has(fits, "stage 0 on A100-40 (2 ranks)"));
  EXPECT_TRUE(has(fits, "stage 1 on V100-16 (4 ranks)"));
  EXPECT_FALSE(has(fits, "too much"));
  EXPECT_TRUE(has(memory_bars(two_stages(), with_memory(Bytes(60), Bytes(50), Bytes(100)), nullptr),
                  "110 B of 100 B: too much"));
  // A hundredth of the device is drawn larger, and the limit is beyond the picture.
  EXPECT_FALSE(has(memory_bars(two_stages(), with_memory(Bytes(1), Bytes(0), Bytes(100)), nullptr), "limit"));
  RunRecord run;
  run.ranks = {{.rank = 0, .peak_resident_memory = Bytes(70)}, {.rank = 3, .peak_resident_memory = Bytes(80)}};
  EXPECT_TRUE(has(memory_bars(two_stages(), with_memory(Bytes(25), Bytes(50), Bytes(100)), &run),
                  "<rect class=\"measured\" x=\"78.431%\""))
      << "the largest of the ranks of the first stage, 0 and 3";
}

TEST(ReportPage, OfManyStagesTheFullestAreDrawn) {
  Plan plan = two_stages();
  plan.pipelines[0].stages.assign(100, {.layers = {0, 1}, .gpu = "A100-40"});
  simulator::Prediction prediction;
  for (int stage = 0; stage < 100; ++stage)
    prediction.stages.push_back({.stage = stage, .memory = {.weights = Bytes(1.0 + stage)}, .capacity = Bytes(200)});
  const std::string bars = memory_bars(plan, prediction, nullptr);
  EXPECT_FALSE(has(bars, "stage 59 on"));
  EXPECT_TRUE(has(bars, "stage 60 on"));
  EXPECT_TRUE(has(bars, "The 40 of 100 bars with the fullest devices are drawn."));
  // Alike stages share a bar.
  for (simulator::StagePrediction& row : prediction.stages) row.memory.weights = Bytes(1);
  EXPECT_TRUE(has(memory_bars(plan, prediction, nullptr), "stages 0 to 99 on A100-40 (200 ranks)"));
}

TEST(TraceReader, ReadsTheFirstRankOfEveryStage) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("sailor_trace_" + std::to_string(::getpid()) + ".json");
  const Plan plan = two_stages();  // ranks 0; 1, 2 | 3; 4, 5
  Timeline timeline{.events = {}, .length = Seconds(4)};
  for (int rank = 0; rank < 6; ++rank) {
    const int stage = rank % 3 == 0 ? 0 : 1;
    timeline.events.push_back({.stage = stage,
                               .activity = Activity::backward,
                               .micro_batch = rank,
                               .start = Seconds(rank),
                               .end = Seconds(rank + 1),
                               .rank = rank});
    timeline.events.push_back({.stage = stage,
                               .activity = Activity::reduce,
                               .overlapped = true,
                               .start = Seconds(rank),
                               .end = Seconds(rank + 2),
                               .rank = rank});
  }
  ASSERT_TRUE(save_trace(plan, timeline, path));
  const auto read = load_trace(path, plan);
  std::filesystem::remove(path);
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->events.size(), 4U);
  EXPECT_NEAR(read->length.value(), 7.0, 1e-9);
  EXPECT_EQ(read->events[0].activity, Activity::backward);
  EXPECT_EQ(read->events[0].micro_batch, 0);
  EXPECT_FALSE(read->events[0].overlapped);
  EXPECT_EQ(read->events[1].activity, Activity::reduce);
  EXPECT_TRUE(read->events[1].overlapped);
  EXPECT_EQ(read->events[2].stage, 1);
  EXPECT_EQ(read->events[2].micro_batch, 1) << "rank 1, not rank 2 of the same group";
  EXPECT_NEAR(read->events[2].start.value(), 1.0, 1e-9);
}

}  // namespace
}  // namespace sailor::reports::report_page_test
