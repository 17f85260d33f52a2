// What sailor-simulate says: reports and pictures of predictions made by hand against files, and the program as a user
// meets it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files.hpp"
#include "core/process.hpp"
#include "profile/store.hpp"
#include "reports/accuracy.hpp"
#include "reports/prediction.hpp"
#include "reports/timeline_plot.hpp"
#include "tests/fakes/round_numbers.hpp"
#include "tests/golden/golden.hpp"
#include "tests/golden/plans.hpp"

namespace sailor::simulate_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Entry 0: two copies of `stages` stages; entry 1: one stage of another type that holds all layers.
Plan unequal_pipelines(int stages) {
  Plan plan;
  plan.job = {.model = "opt-350m", .global_batch = 36, .sequence_length = 2048};
  plan.micro_batch = 2;
  Pipeline chain{.count = 2, .micro_batches = 8, .stages = {}};
  for (int i = 0; i < stages; ++i)
    chain.stages.push_back(
        {.layers = {i * 2, i * 2 + 2}, .gpu = "GH200-96", .tensor_parallel = 4, .zone = "us-central1-a"});
  plan.pipelines.push_back(chain);
  const Stage whole{.layers = {0, stages * 2}, .gpu = "A100-40", .zone = "us-west1-a", .recompute = Recompute::full};
  plan.pipelines.push_back({.count = 1, .micro_batches = 2, .stages = {whole}});
  return plan;
}

simulator::StagePrediction stage_prediction(int entry, int stage, double scale) {
  simulator::StagePrediction row{.pipeline_entry = entry,
                                 .stage = stage,
                                 .forward = Seconds(0.010 * scale),
                                 .backward = Seconds(0.020 * scale),
                                 .link = Seconds(0.001),
                                 .synchronization = Seconds(0.005),
                                 .update = Seconds(0.0005),
                                 .busy = 0.75};
  row.memory = {.weights = 100.0 * mib * scale,
                .gradients = 100.0 * mib * scale,
                .optimizer = 200.0 * mib * scale,
                .copies = Bytes(0),
                .activations = 1024.0 * mib * scale,
                .logits = Bytes(0),
                .workspace = 32.0 * mib,
                .communication = 8.0 * mib,
                .base = 1.5 * gib};
  row.capacity = 40.0 * gib;
  return row;
}

simulator::Prediction prediction_for(const Plan& plan) {
  simulator::Prediction prediction{.iteration_time = Seconds(0.5),
                                   .iteration_time_p5 = Seconds(0.45),
                                   .iteration_time_p95 = Seconds(0.575),
                                   .closed_form_time = Seconds(0.49),
                                   .pipeline_time = Seconds(0.48),
                                   .synchronization_time = Seconds(0.015),
                                   .update_time = Seconds(0.005),
                                   .bubble_fraction = 0.25,
                                   .utilization = 0.125,
                                   .bound = simulator::Bound::compute,
                                   .straggler_entry = 1,
                                   .straggler_stage = 0,
                                   .cost_per_iteration = Usd(0.03),
                                   .gpu_cost_per_iteration = Usd(0.025),
                                   .egress_cost_per_iteration = Usd(0.005)};
  prediction.device_costs = {{"GH200-96", "us-central1-a", 16, UsdPerHour(11.0), true, Usd(0.024)},
                             {"A100-40", "us-west1-a", 1, UsdPerHour(3.5), true, Usd(0.001)}};
  prediction.egress_costs = {{"us-west1-a", "us-central1-a", 512.0 * mib, Usd(0.005)}};
  for (std::size_t entry = 0; entry < plan.pipelines.size(); ++entry)
    for (std::size_t stage = 0; stage < plan.pipelines[entry].stages.size(); ++stage)
      prediction.stages.push_back(stage_prediction(static_cast<int>(entry), static_cast<int>(stage),
                                                   entry == 1   ? 2.0
                                                   : stage == 0 ? 1.5
                                                                : 1.0));
  prediction.peak_memory = prediction.stages.back().memory.total();
  return prediction;
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  return widest;
}

TEST(SimulateReport, SaysTimeMoneyAndMemory) {
  const Plan plan = unequal_pipelines(4);
  const std::string text = reports::prediction_report(plan, prediction_for(plan));
  EXPECT_LE(widest_line(text), 120U);
  EXPECT_TRUE(testing::matches_golden("simulate_report.txt", text));
}

TEST(SimulateReport, ManyStagesStayReadable) {
  Plan plan = unequal_pipelines(64);
  plan.pipelines.pop_back();
  auto prediction = prediction_for(plan);
  prediction.straggler_entry = 0;
  // Fewer micro-batches are in flight towards the end, so no two rows of memory are alike.
  for (simulator::StagePrediction& row : prediction.stages) row.memory.activations = (64.0 - row.stage) * mib;
  const std::string text = reports::prediction_report(plan, prediction);
  EXPECT_LE(widest_line(text), 120U);
  EXPECT_TRUE(testing::matches_golden("simulate_report_64_stages.txt", text));
}

TEST(SimulateReport, JsonSaysAllOfIt) {
  const Plan plan = unequal_pipelines(4);
  EXPECT_TRUE(
      testing::matches_golden("simulate_report.json", reports::prediction_to_json(prediction_for(plan)).dump(2)));
}

TEST(SimulateReport, AccuracyOfCases) {
  // Errors +10%, -20%, 0% and, an artefact, +100%.
  std::vector<reports::CaseOutcome> cases;
  int number = 0;
  for (const double predicted : {1.1, 0.8, 1.0, 2.0}) {
    reports::CaseOutcome outcome{
        .name = fmt::format("case {}", ++number), .measured_time = Seconds(1), .predicted_time = Seconds(predicted)};
    if (number < 3) outcome.measured_memory = 2.0 * gib;
    outcome.predicted_memory = predicted * 2.0 * gib;
    outcome.artefact = predicted == 2.0;
    if (outcome.artefact) outcome.note = "the first iteration";
    cases.push_back(outcome);
  }
  const std::string text = reports::accuracy_report("by hand", cases);
  EXPECT_TRUE(testing::matches_golden("simulate_accuracy.txt", text));
  const json all = reports::accuracy_to_json("by hand", cases);
  EXPECT_NEAR(all.at("iteration_time").at("mean_absolute_error_percent").get<double>(), (10 + 20 + 0 + 100) / 4.0,
              1e-9);
  const json without = all.at("iteration_time_without_artefacts");
  EXPECT_NEAR(without.at("mean_absolute_error_percent").get<double>(), 10, 1e-9);
  EXPECT_NEAR(without.at("median_absolute_error_percent").get<double>(), 10, 1e-9);
  EXPECT_NEAR(without.at("p95_absolute_error_percent").get<double>(), 19, 1e-9);  // a tenth before 20, from 10
  EXPECT_NEAR(without.at("largest_absolute_error_percent").get<double>(), 20, 1e-9);
  EXPECT_NEAR(without.at("bias_percent").get<double>(), -10 / 3.0, 1e-9);
  EXPECT_EQ(all.at("peak_memory").at("cases"), 2);
  EXPECT_TRUE(all.at("cases").at(3).at("measured_peak_memory_bytes").is_null());
}

TEST(TimelinePlot, DrawsARowPerStage) {
  const Plan plan = unequal_pipelines(2);
  Timeline timeline;
  timeline.length = Seconds(0.5);
  const auto add = [&](int entry, int stage, Activity activity, int micro_batch, double start, double end,
                       bool overlapped = false) {
    timeline.events.push_back({.pipeline_entry = entry,
                               .stage = stage,
                               .activity = activity,
                               .overlapped = overlapped,
                               .micro_batch = micro_batch,
                               .start = Seconds(start),
                               .end = Seconds(end)});
  };
  add(0, 0, Activity::forward, 0, 0.0, 0.1);
  add(0, 0, Activity::send, 0, 0.1, 0.11);
  add(0, 0, Activity::backward, 0, 0.3, 0.4);
  add(0, 0, Activity::update, -1, 0.4, 0.5);
  add(0, 1, Activity::forward, 0, 0.11, 0.2);
  add(0, 1, Activity::backward, 0, 0.2, 0.3);
  add(0, 1, Activity::reduce, -1, 0.25, 0.35, true);
  // Narrower than a pixel each (0.5 s in 1070): one bar without numbers.
  for (int i = 0; i < 100; ++i) add(1, 0, Activity::forward, i, i * 1e-4, (i + 1) * 1e-4);
  const reports::Plot plot = reports::timeline_plot(plan, prediction_for(plan), timeline);
  EXPECT_TRUE(testing::matches_golden("simulate_timeline.gp", reports::gnuplot_script(plot, "svg")));
}

TEST(TimelinePlot, OfVeryManyStagesDrawsTheFirst) {
  const Plan plan = unequal_pipelines(200);
  Timeline timeline{.events = {{.stage = 0, .end = Seconds(1)}, {.stage = 199, .end = Seconds(1)}},
                    .length = Seconds(1)};
  const reports::Plot plot = reports::timeline_plot(plan, prediction_for(plan), timeline);
  EXPECT_NE(plot.note.find("; the first 160 of 201 stages"), std::string::npos) << plot.note;
  EXPECT_EQ(plot.series.front().points.size(), 160U);
  EXPECT_EQ(plot.series[1].points.size(), 1U);
  EXPECT_LE(plot.height, 2000);
}

constexpr const char* two_nodes = R"(schema_version = 1
name = "two nodes"
[[partitions]]
name = "normal"
[[nodes]]
nodes = ["n1", "n2"]
gpu = "cpu"
gpus_per_node = 1
memory_per_node_bytes = 1e9
partitions = ["normal"]
)";

/// In a folder with plan.toml (two pipelines of two stages), store.h5 and cluster.toml (two nodes of one core).
class Simulate : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sailor_simulate_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::current_path(folder_);
    write("plan.toml", testing::two_stages);
    write("cluster.toml", two_nodes);
    ASSERT_TRUE(save_profile(sailor::testing::round_numbers_profile(), folder_ / "store.h5").has_value());
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(folder_);
  }
  void write(const std::string& name, std::string_view text) const {
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }
  static ProcessOutcome simulate(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {SAILOR_BIN_DIR "/sailor-simulate", "--profile", "store.h5"});
    auto outcome = run_command({.arguments = std::move(arguments), .input = {}, .deadline = Seconds(60)});
    EXPECT_TRUE(outcome.has_value());
    return outcome.value_or(ProcessOutcome{});
  }
  static void expect_failure(const ProcessOutcome& outcome, int status, const std::string& message) {
    EXPECT_EQ(outcome.exit_status, status) << outcome.errors;
    EXPECT_EQ(outcome.errors, "sailor-simulate: error: " + message + "\n");
    EXPECT_EQ(outcome.output, "");
  }

  fs::path folder_;
};

TEST_F(Simulate, HelpIsAsExpected) {
  EXPECT_TRUE(testing::matches_golden("simulate_help.txt", simulate({"--help"}).output));
}

TEST_F(Simulate, ReportsAFixedPlan) {
  const auto outcome = simulate({"plan.toml"});
  EXPECT_EQ(outcome.errors, "");
  EXPECT_TRUE(testing::matches_golden("simulate_two_stages.txt", outcome.output));
}

TEST_F(Simulate, TracesEveryRank) {
  const auto outcome = simulate({"plan.toml", "--trace", "trace.json", "--format", "json"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const double length = json::parse(outcome.output).at("iteration_time_s").get<double>() * 1e6;
  std::map<std::pair<int, int>, double> busy;
  std::map<std::pair<int, int>, std::set<std::string>> kinds;
  const json trace = json::parse(*read_text_file("trace.json"));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    busy[{event.at("pid"), event.at("tid")}] += event.at("dur").get<double>();
    kinds[{event.at("pid"), event.at("tid")}].insert(event.at("cat"));
  }
  ASSERT_EQ(busy.size(), 4U);
  for (const auto& [track, sum] : busy) {
    EXPECT_NEAR(sum, length, 1e-3 * length / 1e6);
    EXPECT_EQ(kinds.at(track),
              (std::set<std::string>{"forward", "backward", "send", "receive", "reduce", "update", "idle"}));
  }
}

TEST_F(Simulate, CopiesOfAnElasticTrainingCostWhatTheirBytesTake) {
  // Where replicas on other nodes hold the state, nothing is copied.
  const auto replicated = simulate({"plan.toml", "--copies", "--format", "json"});
  ASSERT_EQ(replicated.exit_status, 0) << replicated.errors;
  EXPECT_EQ(json::parse(replicated.output).at("copies").at("ranks_with_copies"), 0);
  std::string one_pipeline = testing::two_stages;
  one_pipeline.replace(one_pipeline.find("count = 2"), 9, "count = 1");
  one_pipeline.replace(one_pipeline.find("micro_batches = 2"), 17, "micro_batches = 4");
  write("plan.toml", one_pipeline);
  const auto outcome = simulate({"plan.toml", "--copies", "--format", "json"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const json copies = json::parse(outcome.output).at("copies");
  EXPECT_EQ(copies.at("ranks_with_copies"), 2);
  // Values and both moments in fp32 of what stage 0 alone has (positions and two blocks of width h; both stages have
  // the tied token embedding), and a mark of 8 bytes.
  constexpr int h = 128;
  EXPECT_EQ(copies.at("sent_by_rank_bytes"), 3 * 4 * (128 * h + 2 * (12 * h * h + 13 * h)) + 8);
  EXPECT_EQ(copies.at("transfer_s"), 0.5);
  EXPECT_EQ(copies.at("iteration_longer_s"), 0.0);
}

TEST_F(Simulate, DrawsTheTimeline) {
  const auto outcome = simulate({"plan.toml", "--plot", "timeline.svg"});
  if (outcome.errors.find("gnuplot, which is not in PATH") != std::string::npos) GTEST_SKIP() << outcome.errors;
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const auto picture = read_text_file("timeline.svg");
  ASSERT_TRUE(picture);
  for (const char* text : {"stage 1", "backward", "gradient reduction", "time (s)"})
    EXPECT_NE(picture->find(text), std::string::npos) << text;
}

TEST_F(Simulate, WarnsOfWhatTheClusterDoesNotHave) {
  const auto outcome = simulate({"plan.toml", "--cluster", "cluster.toml", "-p", "normal"});
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_EQ(outcome.errors,
            "sailor-simulate: warning: the plan needs 4 cpu, there are 2 (2 nodes with 1) in partition 'normal'\n");
}

TEST_F(Simulate, ComparesCases) {
  write("cases.toml", fmt::format(R"(schema_version = 1
title = "by hand"
source = "nobody"
framework = "sailor"
[[cases]]
name = "as it is"
iteration_time_s = 100.0
peak_memory_bytes = 1e7
plan = "plan.toml"
[[cases]]
name = "a \"start\"\nup"
artefact = true
note = "the first iteration"
iteration_time_s = 1000.0
plan = "plan.toml"
)"));
  const auto outcome = simulate({"--against", "cases.toml", "--format", "json", "--plot", "errors.svg"});
  if (outcome.errors.find("gnuplot, which is not in PATH") != std::string::npos) GTEST_SKIP() << outcome.errors;
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const json all = json::parse(outcome.output);
  const double predicted = json::parse(simulate({"plan.toml", "--format", "json"}).output).at("iteration_time_s");
  EXPECT_NEAR(all.at("cases").at(0).at("iteration_time_error_percent").get<double>(), predicted - 100.0, 1e-9);
  EXPECT_EQ(all.at("iteration_time").at("cases"), 2);
  EXPECT_EQ(all.at("iteration_time_without_artefacts").at("cases"), 1);
  EXPECT_TRUE(fs::exists("errors.svg"));
  EXPECT_EQ(simulate({"--against", "cases.toml"}).exit_status, 0);
}

TEST_F(Simulate, ReadsThePlansOfTheOriginal) {
  // Two pipelines of two stages, as in plan.toml, and what was measured.
  const std::string original = R"({"pipeline_list": [{"num_stages": 2, "layers_per_stage": [[0, 1, 2], [3, 4, 5]],
    "tmp_per_stage": [[[[["cpu", 1, "z"]], 1], [[["cpu", 1, "z"]], 1]], [[[["cpu", 1, "z"]], 1], [[["cpu", 1, "z"]], 1]]],
    "dp": [2, 2]}], "mbs": 1, "gbs": 4, "real": 50.0, "max_mem": 4e6})";
  write("plan.json", original);
  write("plan", original);  // recognised by its content
  for (const char* name : {"plan.json", "plan"}) {
    const auto outcome = simulate({name, "--model", "tiny-gpt", "--format", "json"});
    ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
    const json all = json::parse(outcome.output);
    const double predicted = all.at("iteration_time_s");
    EXPECT_EQ(all.at("against").at("measured_iteration_time_s"), 50.0);
    EXPECT_NEAR(all.at("against").at("iteration_time_error_percent").get<double>(), (predicted / 50 - 1) * 100, 1e-9);
    EXPECT_EQ(all.at("against").at("measured_peak_memory_bytes"), 4e6);
  }
}

TEST_F(Simulate, MistakesAreNamedAndNothingIsWritten) {
  expect_failure(simulate({}), 2,
                 "PLAN is missing: plan file (plan.toml); or compare with measured cases: --against CASES.toml");
  expect_failure(simulate({"plan.toml", "--trace", "no/such/t.json"}), 1,
                 "cannot write 'no/such/t.json': there is no folder 'no/such'; create the folder first");
  expect_failure(simulate({"plan.toml", "--trace", "t.json", "--plot", "t.gif"}), 2,
                 "'t.gif' is no kind of picture that can be drawn; end the name in .svg, .png or .pdf");
  expect_failure(simulate({"plan.toml", "--trace", "plan.toml"}), 2,
                 "--trace 'plan.toml' would replace another file of this command; name another file");
  expect_failure(simulate({"plan.toml", "--trace", "a.svg", "--plot", "a.svg"}), 2,
                 "--plot 'a.svg' would replace another file of this command; name another file");
  EXPECT_EQ(simulate({"plan.toml", "--model", "tiny-gpt", "--precision", "fp32"}).exit_status, 0);
  expect_failure(
      simulate({"plan.toml", "--model", "opt-350m"}), 2,
      "'plan.toml' is a plan for tiny-gpt, but --model says opt-350m; leave out --model, or make a plan for it");
  expect_failure(simulate({"plan.toml", "--precision", "tf32"}), 2,
                 "'plan.toml' is a plan in fp32, but --precision says tf32; leave out --precision, or edit the plan");
  write("plan.json", "{}");
  expect_failure(
      simulate({"plan.json"}), 1,
      "'plan.json' is no plan of the original Sailor: it has no \"mbs\"; sailor-plan --output plan.toml writes "
      "plans");
  write("plan.json", R"({"plans": [], "bound": {}})");
  expect_failure(simulate({"plan.json"}), 1,
                 "'plan.json' is what sailor-plan --format json prints, not a plan; let sailor-plan --output plan.toml "
                 "write the plan");
  write("plan.json", R"({"mbs": 1})");
  expect_failure(simulate({"plan.json"}), 2,
                 "'plan.json' is a plan of the original Sailor, which does not say its model; name it with --model");
  write("cases.toml", "");
  expect_failure(simulate({"plan.toml", "--against", "cases.toml"}), 2,
                 "'cases.toml' is a cases file, whose cases have plans of their own; leave out PLAN");
  expect_failure(simulate({"plan.toml", "--against", "plan.toml"}), 2,
                 "--against 'plan.toml' is a plan, not what a run measured; name the run.h5 of sailor-train, or a file "
                 "of measured cases");
  expect_failure(simulate({"--against", "cases.toml", "--trace", "t.json"}), 2,
                 "--trace is for one plan, not for the cases of a file; name a PLAN, or leave it out");
  expect_failure(simulate({"--against", "run.h5"}), 2,
                 "PLAN is missing: the plan that the run 'run.h5' is compared with");
  EXPECT_FALSE(fs::exists("t.json"));
}

}  // namespace
}  // namespace sailor::simulate_test
