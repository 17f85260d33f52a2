// The pages of sailor-report as a user meets them: which sections there are, that no name becomes markup, what is
// replaced and what is not, and what a browser makes of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "plan/trace.hpp"
#include "profile/run_file.hpp"
#include "tests/golden/golden.hpp"
#include "tests/golden/plans.hpp"
#include "tests/golden/programs.hpp"

namespace sailor::testing::report_test {
namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// A run of 30 iterations whose third loss is not finite.
RunRecord recorded_run() {
  RunRecord run{.provenance = {.tool = "sailor-train 0.1.0",
                               .command = "sailor-train plan.toml",
                               .host = "n1,n2",
                               .device = "a <fast> CPU",
                               .versions = "none",
                               .date = "2026-01-01T00:00:00Z"},
                .plan_toml = testing::two_stages,
                .warm_up_iterations = 2};
  for (int i = 0; i < 30; ++i) {
    run.iterations.push_back({.iteration = i, .loss = i == 3 ? std::nan("") : 5.0 - 0.1 * i, .time = Seconds(25.0)});
    const PartsRecord::Part part{Seconds(4.0), Seconds(6.0)};
    run.parts.push_back({i, part, part, part, part, part, part});
  }
  for (int rank = 0; rank < 4; ++rank)
    run.ranks.push_back({.rank = rank,
                         .pipeline = rank / 2,
                         .stage = rank % 2,
                         .host = fmt::format("n{}", rank + 1),
                         .peak_tensor_memory = Bytes(1e6),
                         .peak_resident_memory = Bytes(2e6)});
  return run;
}

constexpr const char* recorded_events =
    R"({"what":"joined","host":"n1","gpu":"cpu","unix_time_s":100.0}
{"what":"begins","epoch":1,"iteration":0,"ranks":4,"unix_time_s":110.0}
{"what":"lost","epoch":1,"rank":3,"host":"<i>n4</i>","how":"it has gone away","unix_time_s":150.0}
{"what":"goes_on","epoch":2,"seconds":15.0,"seconds_again":10.0,"unix_time_s":165.0}
{"what":"done","unix_time_s":210.0}
)";

class Report : public ProgramsTest {
 protected:
  void SetUp() override {
    ProgramsTest::SetUp();
    write("plan.toml", testing::two_stages);
    write("events.jsonl", recorded_events);
    ASSERT_TRUE(save_run(recorded_run(), folder_ / "run.h5"));
  }
  static ProcessOutcome report(std::vector<std::string> arguments) {
    return run("sailor-report", std::move(arguments));
  }
  /// The page that such a command makes.
  static std::string page_of(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--output", "page.html"});
    const auto outcome = report(arguments);
    EXPECT_EQ(outcome.exit_status, 0) << outcome.errors;
    return read_text_file("page.html").value_or("");
  }
  static std::vector<std::string> sections_of(const std::string& page) {
    constexpr std::string_view start = "<section id=\"";
    std::vector<std::string> ids;
    for (std::size_t at = page.find(start); at != std::string::npos; at = page.find(start, at + 1))
      ids.push_back(page.substr(at + start.size(), page.find('"', at + start.size()) - at - start.size()));
    return ids;
  }
};

using Ids = std::vector<std::string>;

TEST_F(Report, HelpIsAsExpected) { EXPECT_TRUE(matches_golden("report_help.txt", report({"--help"}).output)); }

TEST_F(Report, HasTheSectionsThatItsInputHas) {
  EXPECT_EQ(sections_of(page_of({"plan.toml"})), Ids({"plan"}));
  EXPECT_EQ(sections_of(page_of({"plan.toml", "--profile", "store.h5"})),
            Ids({"plan", "timeline", "time", "cost", "memory"}));
  EXPECT_EQ(sections_of(page_of({"plan.toml", "--profile", "store.h5", "--cluster", "cluster.toml", "--pareto"})),
            Ids({"plan", "timeline", "time", "cost", "memory", "pareto"}));
  EXPECT_EQ(sections_of(page_of({"run.h5"})), Ids({"measured", "plan", "iterations", "ranks"}));
  EXPECT_EQ(sections_of(page_of({"run.h5", "--profile", "store.h5", "--events", "events.jsonl"})),
            Ids({"measured", "plan", "timeline", "time", "cost", "memory", "iterations", "ranks", "events"}));
}

TEST_F(Report, SaysWhatSailorSimulateSays) {
  const std::string page = page_of({"plan.toml", "--profile", "store.h5", "--cluster", "cluster.toml"});
  const auto simulated = run("sailor-simulate", {"plan.toml", "--profile", "store.h5", "--cluster", "cluster.toml"});
  // "iteration time   70.5 s  (P5 to P95: ...)": the value behind the name.
  const auto value_of = [&](const std::string& name) {
    const std::size_t at = simulated.output.find(name) + name.size();
    const std::size_t begin = simulated.output.find_first_not_of(' ', at);
    return simulated.output.substr(
        begin, std::min(simulated.output.find('\n', begin), simulated.output.find("  ", begin)) - begin);
  };
  EXPECT_TRUE(contains(page, "<dt>iteration time</dt><dd>" + value_of("iteration time"))) << value_of("iteration time");
  EXPECT_TRUE(contains(page, "<td>" + value_of("bound by") + "</td>")) << value_of("bound by");
  EXPECT_TRUE(contains(page, "<td>" + value_of("straggler") + "</td>")) << value_of("straggler");
  EXPECT_TRUE(contains(page, "class=\"verdict good\">fits")) << page.substr(page.find("verdict"), 200);
  EXPECT_TRUE(contains(page, "nodes n1, n3")) << "of the first stage of both pipelines";
}

TEST_F(Report, ShowsWhatARunMeasured) {
  const std::string page = page_of({"run.h5", "--profile", "store.h5", "--events", "events.jsonl"});
  // The store's round numbers: 2 micro-batches of 5 (embedding, two blocks) or 5 s (two blocks, head) forward.
  EXPECT_TRUE(contains(page, "<td>forward</td><td class=\"n\">10.0 s</td><td class=\"n\">4.00 s</td>"));
  EXPECT_TRUE(contains(page, "<dt>iteration time, measured</dt><dd>25.0 s"));
  EXPECT_TRUE(contains(page, "One loss is not finite and not drawn."));
  EXPECT_TRUE(contains(page, "a &lt;fast&gt; CPU (n1,n2)"));
  EXPECT_EQ(count_of(page, "<rect class=\"measured\" x"), 2U) << "a mark on the bar of each stage";
  // From 110 to 210 s, 15 s without training and 10 s again: 75%.
  EXPECT_TRUE(contains(page,
                       "100 s from the end of the first iteration to the last event: 15.0 s without training, "
                       "10.0 s for iterations that were run again; goodput 75.0%."));
  EXPECT_TRUE(contains(page, "host &lt;i&gt;n4&lt;/i&gt;"));
}

TEST_F(Report, KnowsTheEpochsOfAnElasticTraining) {
  RunRecord run = recorded_run();
  run.epochs = {{.epoch = 1, .first_iteration = 0, .plan_toml = "another plan"},
                {.epoch = 2, .first_iteration = 10, .plan_toml = testing::two_stages}};
  run.events = recorded_events;
  for (int i = 0; i < 12; ++i) {  // of the other plan, and of the warm-up of this one
    run.iterations[static_cast<std::size_t>(i)].time = Seconds(90.0);
    run.parts[static_cast<std::size_t>(i)].forward = {Seconds(90.0), Seconds(90.0)};
  }
  ASSERT_TRUE(save_run(run, "elastic.h5"));
  const std::string page = page_of({"elastic.h5", "--profile", "store.h5"});
  EXPECT_TRUE(contains(page, "goodput 75.0%"));
  EXPECT_TRUE(contains(page, "median of 18 iterations"));
  EXPECT_TRUE(contains(page, "<td>forward</td><td class=\"n\">10.0 s</td><td class=\"n\">4.00 s</td>"));
  EXPECT_EQ(count_of(page, "an epoch begins"), 2U) << "on both charts";
}

TEST_F(Report, WritesATraceOfAnElasticTrainingUntilTheRunFileWasWritten) {
  RunRecord run = recorded_run();
  run.events = R"({"what":"written","iteration":30,"unix_time_s":190.0})"
               "\n";
  ASSERT_TRUE(save_run(run, "elastic.h5"));
  // The controller's events until the training went on at 165 s.
  const std::string events = recorded_events;
  write("so-far.jsonl", events.substr(0, events.find(R"({"what":"done")")));
  const std::string page =
      page_of({"elastic.h5", "--profile", "store.h5", "--events", "so-far.jsonl", "--elastic-trace", "elastic.json"});
  EXPECT_TRUE(contains(page, "80.0 s from the end of the first iteration to the last event"));
  const auto trace = nlohmann::json::parse(read_text_file("elastic.json").value_or("{}"));
  double end = 0.0;
  int epochs = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("cat") == "epoch") ++epochs;
    end = std::max(end, event.value("ts", 0.0) + event.value("dur", 0.0));
  }
  EXPECT_EQ(epochs, 2);
  EXPECT_DOUBLE_EQ(end, 90e6) << "microseconds from 100 s to 190 s";
}

TEST_F(Report, DrawsTheMeasuredTimelineBelowTheSimulatedOne) {
  const auto plan = parse_plan(testing::two_stages, "plan");
  ASSERT_TRUE(plan);
  Timeline timeline{.events = {}, .length = Seconds(8)};
  for (int rank = 0; rank < 4; ++rank)
    timeline.events.push_back(
        {.stage = rank % 2, .micro_batch = 1, .start = Seconds(1), .end = Seconds(3), .rank = rank});
  ASSERT_TRUE(save_trace(*plan, timeline, "trace.json"));
  const std::string page = page_of({"run.h5", "--profile", "store.h5", "--trace", "trace.json"});
  EXPECT_TRUE(contains(page, "<h3>Simulated</h3>"));
  EXPECT_TRUE(contains(page, "<h3>Measured</h3>"));
  expect_failure(report({"run.h5", "--trace", "events.jsonl"}), 1, "'events.jsonl' is no trace of a training");
  write("other.toml", std::string(testing::two_stages)
                          .replace(std::string(testing::two_stages).find("count = 2\nmicro_batches = 2"), 27,
                                   "count = 1\nmicro_batches = 4 "));
  const auto other = load_plan("other.toml");
  ASSERT_TRUE(other) << other.error().message();
  ASSERT_TRUE(save_trace(*other, {.events = {}, .length = Seconds(1)}, "other.json"));
  expect_failure(report({"run.h5", "--trace", "other.json"}), 1, "is the trace of another plan");
}

TEST_F(Report, NoNameBecomesMarkup) {
  const auto model = read_text_file(std::string(SAILOR_SOURCE_DIR) + "/profiles/models/tiny-gpt.toml");
  ASSERT_TRUE(model);
  const std::string name = "<script>alert(1)<\\u0022&'";
  fs::create_directory("models");
  const auto with_name = [&](std::string text) {
    text.replace(text.find("\"tiny-gpt\""), 10, '"' + name + '"');
    return text;
  };
  write("models/<script>alert(1)<\"&'.toml", with_name(*model));
  write("named.toml", with_name(testing::two_stages));
  const std::string page = page_of({"named.toml", "--models", "models"});
  EXPECT_FALSE(contains(page, "<script"));
  EXPECT_TRUE(contains(page, "<h1>&lt;script&gt;alert(1)&lt;&quot;&amp;&#39; in fp32</h1>"));
}

TEST_F(Report, ReplacesItsOwnPagesOnly) {
  EXPECT_EQ(report({"plan.toml"}).errors,
            "sailor-report: warning: Not simulated: the plan does not say its profile store (--profile names one).\n"
            "sailor-report: info: wrote plan.html\n");
  EXPECT_EQ(report({"plan.toml", "--profile", "store.h5"}).errors, "sailor-report: info: wrote plan.html\n");
  EXPECT_EQ(sections_of(*read_text_file("plan.html")).size(), 5U);
  write("plan.html", "<!DOCTYPE html><title>mine</title>");
  expect_failure(report({"plan.toml"}), 2,
                 "'plan.html' is there and no page of sailor-report: it is not replaced; name another file with "
                 "--output, or remove it");
  expect_failure(report({"plan.toml", "--output", "plan.toml"}), 2, "'plan.toml' is there and no page");
  EXPECT_EQ(*read_text_file("plan.html"), "<!DOCTYPE html><title>mine</title>");
  EXPECT_EQ(*read_text_file("plan.toml"), testing::two_stages);
}

TEST_F(Report, WithoutAProfileThePlansOwnFiguresCount) {
  ASSERT_EQ(plan({"--output", "made.toml"}).exit_status, 0);
  EXPECT_EQ(sections_of(page_of({"made.toml"})).size(), 5U) << "by the profile that it was made with";
  fs::remove("store.h5");
  const std::string page = page_of({"made.toml"});
  EXPECT_EQ(sections_of(page), Ids({"plan", "time"}));
  EXPECT_TRUE(contains(page, "Figures that the planner wrote into the plan"));
  EXPECT_TRUE(contains(page, "<dt>iteration time</dt><dd>"));
  EXPECT_TRUE(contains(page, "whether it fits was not computed"));
  EXPECT_TRUE(contains(page, "<li>Not simulated: ")) << page;
}

TEST_F(Report, ReadsThePlansOfTheOriginalWithWhatTheyMeasured) {
  write("plan.json", R"({"pipeline_list": [{"num_stages": 2, "layers_per_stage": [[0, 1, 2], [3, 4, 5]],
    "tmp_per_stage": [[[[["cpu", 1, "z"]], 1]], [[[["cpu", 1, "z"]], 1]]], "dp": [1, 1]}],
    "mbs": 1, "gbs": 2, "real": 50.0, "max_mem": 2097152.0})");
  const std::string page = page_of({"plan.json", "--model", "tiny-gpt", "--profile", "store.h5"});
  EXPECT_EQ(sections_of(page).size(), 5U);
  EXPECT_TRUE(contains(page, "plan.json says that the plan was measured: 50.0 s per iteration, 2.00 MiB."));
}

TEST_F(Report, MistakesAreNamed) {
  expect_failure(report({"plan.toml", "--profile", "nothere"}), 1, "nothere");
  expect_failure(report({"nothere"}), 1, "file 'nothere' does not exist");
  expect_failure(report({"plan.toml", "--output", "no/such/page.html"}), 1, "there is no folder 'no/such'");
  expect_failure(report({"plan.toml", "--events", "events.jsonl"}), 2,
                 "--events is for the report of a run, not of a plan; name the run file (run.h5) instead of the plan");
  expect_failure(report({"run.h5", "--events", "plan.toml"}), 1, "--events");
  expect_failure(report({"plan.toml", "--elastic-trace", "elastic.json"}), 2,
                 "--elastic-trace is for the report of a run, not of a plan");
  expect_failure(report({"run.h5", "--elastic-trace", "elastic.json"}), 2,
                 "--elastic-trace: 'run.h5' is not the run of an elastic training; name the run file");
  for (const char* taken : {"run.h5", "events.jsonl", "run.html"})
    expect_failure(report({"run.h5", "--events", "events.jsonl", "--elastic-trace", taken}), 2,
                   fmt::format("--elastic-trace '{}' would replace another file of this command", taken));
  expect_failure(report({"plan.toml", "--pareto"}), 2,
                 "--pareto searches plans for the nodes of a cluster, but none is given");
  expect_failure(report({"store.h5"}), 1, "store.h5");
  EXPECT_FALSE(fs::exists("plan.html"));
}

TEST_F(Report, PlanThatDoesNotFitGetsItsPageAndStatus3) {
  std::string small = four_cores;
  small.replace(small.find("1e9"), 3, "1e5");
  write("small.toml", small);
  const auto outcome = report({"plan.toml", "--profile", "store.h5", "--cluster", "small.toml"});
  expect_failure(outcome, 3, "the plan does not fit into memory: stage ");
  const auto page = read_text_file("plan.html");
  ASSERT_TRUE(page);
  EXPECT_TRUE(contains(*page, "class=\"verdict bad\">does not fit into memory: stage "));
  EXPECT_TRUE(contains(*page, "too much</span>"));
}

/// A page of every section in Chromium, in a window as wide as a phone and in a wide one.
class ReportInBrowser : public Report {
 protected:
  /// What `look`, a page beside page.html that may read it, writes; std::nullopt if there is no browser.
  std::optional<ProcessOutcome> show(const std::vector<std::string>& more) const {
    write("look.html", R"(<!DOCTYPE html><title>look</title>
<iframe id="narrow" src="page.html" width="360" height="700"></iframe>
<iframe id="wide" src="page.html" width="1240" height="900"></iframe>
<script>onload = () => { for (const name of ["narrow", "wide"]) {
  const frame = document.getElementById(name), page = frame.contentDocument;
  const requests = frame.contentWindow.performance.getEntriesByType("resource").length;
  const drawn = [...page.querySelectorAll("svg.wide, svg.chart")].filter(s => s.getBoundingClientRect().height > 60).length;
  document.body.append(`${name}: requests ${requests}, pictures ${drawn}, too wide ` +
    `${page.documentElement.scrollWidth > frame.width}, paper ${frame.contentWindow.getComputedStyle(page.body).backgroundColor};`);
} };</script>
)");
    std::vector<std::string> arguments{"chromium",
                                       "--headless=new",
                                       "--no-sandbox",
                                       "--disable-gpu",
                                       "--allow-file-access-from-files",
                                       "--user-data-dir=" + (folder_ / "browser").string(),
                                       "--virtual-time-budget=5000",
                                       "--enable-logging=stderr"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--dump-dom", "file://" + (folder_ / "look.html").string()});
    auto outcome = run_command({.arguments = arguments, .input = {}, .deadline = Seconds(240)});
    if (!outcome) return std::nullopt;
    return *outcome;
  }
};

TEST_F(ReportInBrowser, LoadsNothingAndHasNoErrors) {
  const std::string page =
      page_of({"run.h5", "--profile", "store.h5", "--cluster", "cluster.toml", "--events", "events.jsonl", "--pareto"});
  const auto light = show({});
  if (!light) GTEST_SKIP() << "chromium is not in PATH";
  ASSERT_TRUE(light->succeeded()) << light->how_it_ended() << light->errors;
  // Plan, timeline, loss, time, Pareto front.
  for (const char* name : {"narrow", "wide"})
    EXPECT_TRUE(contains(light->output,
                         fmt::format("{}: requests 0, pictures 5, too wide false, paper rgb(255, 255, 255);", name)))
        << light->output;
  EXPECT_FALSE(contains(light->errors, "CONSOLE")) << light->errors;
  const auto dark = show({"--blink-settings=preferredColorScheme=0"});
  EXPECT_TRUE(contains(dark->output, "paper rgb(20, 24, 29);")) << dark->output;
  // Not blind: a page that asks for something is found.
  std::string asking = page;
  asking.replace(asking.find("</main>"), 7, "<img src=\"http://localhost:9/x.png\"></main>");
  write("page.html", asking);
  const auto refused = show({});
  EXPECT_TRUE(contains(refused->errors, "CONSOLE")) << refused->errors;
}

}  // namespace
}  // namespace sailor::testing::report_test
