// Experiment files, output of sailor-plan, and the tables of a sweep.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "apps/sweep/experiment.hpp"
#include "apps/sweep/outcome.hpp"
#include "core/files.hpp"
#include "profile/run_file.hpp"
#include "profile/sweep_file.hpp"

namespace sailor::apps::sweep::sweep_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* small = R"(schema_version = 1
name = "small"
title = "Two planners on two clusters"
repetitions = 2
[[planners]]
planner = "dtfm"
name = "DTFM"
faults = "kept"
judge = "artifact"
seed = 5
[[planners]]
planner = "sailor"
judge = "artifact"
options = ["--memory-margin", "0.1"]
[[models]]
model = "opt-350m-sailor"
global_batch = 1024
sequence_length = 2048
precision = "tf32"
[[clusters]]
name = "8 A100"
gpus = [{ gpu = "A100-40", count = 8, zone = "us-central1-a" }]
[[clusters]]
name = "mixed"
gpus = [
  { gpu = "V100-16", count = 16, gpus_per_node = 8, zone = "us-west1-b" },
  { gpu = "A100-40", count = 4, zone = "us-central1-a" },
]
[[constraints]]
name = "cheap"
objective = "cost"
min_throughput_iterations_per_s = 0.2
)";

GpuCatalogue gpus() { return GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value(); }

Result<Experiment> parse(const std::string& text) {
  return parse_experiment(text, "small.toml", "/", gpus(), SAILOR_SOURCE_DIR "/profiles/models");
}

/// `text` with the first `from` replaced.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_refused(const std::string& text, const std::string& message) {
  const auto experiment = parse(text);
  ASSERT_FALSE(experiment.has_value()) << message;
  EXPECT_NE(experiment.error().message().find(message), std::string::npos) << experiment.error().message();
}

bool has_option(const Point& point, const std::string& name, const std::string& value) {
  for (std::size_t i = 0; i + 1 < point.options.size(); ++i)
    if (point.options[i] == name && point.options[i + 1] == value) return true;
  return false;
}

TEST(SweepExperiment, IsEveryCombinationOfItsLists) {
  const auto experiment = parse(small);
  ASSERT_TRUE(experiment.has_value()) << experiment.error().message();
  const auto points = points_of(*experiment);
  ASSERT_EQ(points.size(), 8U);  // 2 planners x 2 clusters x 2 repetitions
  EXPECT_TRUE(has_option(points[0], "--planner", "dtfm"));
  EXPECT_TRUE(has_option(points[0], "--planner-faults", "kept"));
  EXPECT_TRUE(has_option(points[0], "--judge", "artifact"));
  EXPECT_TRUE(has_option(points[0], "--objective", "cost"));
  EXPECT_TRUE(has_option(points[0], "--min-throughput", "0.2"));
  EXPECT_TRUE(has_option(points[0], "--precision", "tf32"));
  // Our own planner has other names for the same.
  EXPECT_TRUE(has_option(points[2], "--cost-model", "artifact"));
  EXPECT_TRUE(has_option(points[2], "--memory-margin", "0.1"));
  EXPECT_FALSE(has_option(points[2], "--planner", "sailor"));
}

TEST(SweepExperiment, GivesEachRepetitionASeedOfItsOwn) {
  const auto points = points_of(parse(small).value());
  EXPECT_TRUE(has_option(points[0], "--planner-seed", "5"));
  EXPECT_TRUE(has_option(points[1], "--planner-seed", "6"));
  EXPECT_NE(points[0].id, points[1].id);
}

TEST(SweepExperiment, KeepsTheOrderOfGpusWhichSomePlannersDependOn) {
  const std::string toml = parse(small)->clusters[1].toml;
  EXPECT_LT(toml.find("V100-16"), toml.find("A100-40"));
  EXPECT_NE(toml.find("region = \"us-west1\""), std::string::npos) << toml;
  EXPECT_NE(toml.find("count = 2\ngpu = \"V100-16\"\ngpus_per_node = 8"), std::string::npos) << toml;
}

TEST(SweepExperiment, GivesPointsThatAskForSomethingElseAnotherFile) {
  const auto before = points_of(parse(small).value());
  const auto after = points_of(parse(with(small, "global_batch = 1024", "global_batch = 2048")).value());
  EXPECT_NE(before[0].id, after[0].id);
  const auto renamed = points_of(parse(with(small, "Two planners", "2 planners")).value());
  EXPECT_EQ(before[0].id, renamed[0].id);
}

TEST(SweepExperiment, LeavesOutWhatIsExcluded) {
  const auto points =
      points_of(parse(std::string(small) + "[[exclude]]\nplanner = \"DTFM\"\ncluster = \"mixed\"\n").value());
  ASSERT_EQ(points.size(), 6U);
  for (const Point& point : points) EXPECT_FALSE(point.planner == "DTFM" && point.cluster == "mixed");
}

TEST(SweepExperiment, RefusesWhatItDoesNotKnowWithLineAndColumn) {
  expect_refused(with(small, "repetitions = 2", "repetition = 2"), "small.toml:4:1");
  expect_refused(with(small, "judge = \"artifact\"", "judge = \"nobody\""), "small.toml:9");
  expect_refused(with(small, "planner = \"dtfm\"", "planner = \"dtfn\""), "small.toml:6");
  expect_refused(with(small, "model = \"opt-350m-sailor\"", "model = \"lama\""), "small.toml:16");
  expect_refused(with(small, "\"tf32\"", "\"tf33\""), "small.toml:19");
  expect_refused(with(small, "A100-40", "A100-41"), "A100-41");
  expect_refused(with(small, "count = 8,", "count = 6,"), "6 GPUs are no whole number of nodes of 4");
  expect_refused(with(small, "name = \"mixed\"", "name = \"8 A100\""), "'8 A100' is there twice");
  expect_refused(with(small, "name = \"small\"", "name = \"../small\""), "names files");
  expect_refused(std::string(small) + "[[exclude]]\nplanner = \"AMP\"\n", "there is no 'AMP' to leave out");
  expect_refused(std::string(small) + "[[exclude]]\n", "leave out every point");
  expect_refused(with(small, "planner = \"sailor\"", "planner = \"sailor\"\nseed = 1"), "draws nothing at random");
}

TEST(SweepExperiment, OfEveryShippedFileCanBeRead) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(SAILOR_SOURCE_DIR "/experiments")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".toml" || (!name.starts_with("fig") && name != "scale")) continue;
    const auto experiment = load_experiment(entry.path(), gpus(), SAILOR_SOURCE_DIR "/profiles/models");
    ASSERT_TRUE(experiment.has_value()) << experiment.error().message();
    EXPECT_EQ(experiment->name, name);
    EXPECT_FALSE(points_of(*experiment).empty());
    ++files;
  }
  EXPECT_EQ(files, 11U);
}

// --- answers

Outcome outcome(int exit_status, std::string output, std::string errors = {}) {
  ProcessOutcome ended;
  ended.exit_status = exit_status;
  ended.output = std::move(output);
  ended.errors = std::move(errors);
  ended.processor_time = Seconds(0.5);
  ended.peak_resident_memory = Bytes(1e8);
  return outcome_of(ended, Seconds(1.0), "hash");
}

SweepRow row(const Outcome& answer) {
  const auto experiment = parse(small).value();
  return row_of(experiment, points_of(experiment).front(), answer).value();
}

constexpr const char* baseline_answer = R"({"planner":"dtfm","faults":"kept","judge":"artifact","search_time_s":0.25,
  "proposed":7,"did_not_fit":2,"rejected_by_limits":1,"out_of_time":true,"notes":["64 of 80 GPUs","another"],"plans":[
  {"iteration_time_s":4,"throughput_iterations_per_s":0.25,"cost_usd_per_iteration":0.5,"peak_memory_bytes":1e10,
   "fits":true,"plan":null,"list":[],"description":"P2 D4","gpus":{"A100-40":6,"V100-16":2},
   "expected":{"throughput_iterations_per_s":0.3,"cost_usd_per_iteration":null},
   "artifact":{"iteration_time_s":4,"throughput_iterations_per_s":0.25,"cost_usd_per_iteration":0.5,
     "egress_cost_usd_per_iteration":0.125,"fits":true,"peak_memory_bytes":1e10},
   "simulator":{"iteration_time_s":5,"throughput_iterations_per_s":0.2,"cost_usd_per_iteration":0.6,"fits":false,
     "peak_memory_bytes":2e10,"is_bound":true}},
  {"iteration_time_s":9}]})";

TEST(SweepOutcome, OfAPublishedPlannerHasBothJudgesAndWhatItExpects) {
  const SweepRow read = row(outcome(0, baseline_answer));
  EXPECT_EQ(read.status, SweepStatus::plan);
  EXPECT_EQ(read.judged.throughput, 0.25);
  EXPECT_EQ(read.artifact.egress_cost, Usd(0.125));
  EXPECT_EQ(read.simulator.throughput, 0.2);
  EXPECT_EQ(read.simulator.fits, false);
  EXPECT_EQ(read.simulator_is_bound, true);
  EXPECT_EQ(read.expected_throughput, 0.3);
  EXPECT_FALSE(read.expected_cost.has_value());
  EXPECT_EQ(read.did_not_fit, 2);
  EXPECT_EQ(read.out_of_time, true);
  EXPECT_EQ(read.gpus, 8);
  EXPECT_EQ(read.gpu_types, "6 A100-40 + 2 V100-16");
  EXPECT_EQ(read.notes, "64 of 80 GPUs; another");
  EXPECT_EQ(read.search_time, Seconds(0.25));
  EXPECT_EQ(read.processor_time, Seconds(0.5));
}

TEST(SweepOutcome, OfOurOwnPlannerCountsTheDevicesOfItsPlan) {
  const SweepRow read = row(outcome(0, R"({"cost_model":"artifact","did_not_fit":100,"plans":[{"iteration_time_s":2,
    "cost_usd_per_iteration":0.5,"plan":{"pipelines":[{"count":3,"stages":[{"gpu":"A100-40","tensor_parallel":4},
    {"gpu":"V100-16","tensor_parallel":2}]}]}}]})"));
  EXPECT_EQ(read.gpu_types, "12 A100-40 + 6 V100-16");
  EXPECT_EQ(read.judged.throughput, 0.5);
  EXPECT_EQ(read.artifact.throughput, 0.5);
  EXPECT_FALSE(read.simulator.throughput.has_value());
  // Plans that were looked at and left out are no proposals.
  EXPECT_FALSE(read.did_not_fit.has_value());
}

TEST(SweepOutcome, SaysWhyThereIsNoPlan) {
  const SweepRow none = row(outcome(3, R"({"planner":"dtfm","did_not_fit":3,"plans":[]})",
                                    "sailor-plan: warning: something\nsailor-plan: error: no plan fits\n"));
  EXPECT_EQ(none.status, SweepStatus::no_plan);
  EXPECT_EQ(none.why, "no plan fits");
  EXPECT_EQ(none.did_not_fit, 3);
  EXPECT_FALSE(none.judged.throughput.has_value());
  EXPECT_EQ(row(outcome(3, "", "sailor-plan: error: nothing\n")).status, SweepStatus::no_plan);
}

TEST(SweepOutcome, IsAFailureWhateverElseHappens) {
  EXPECT_EQ(row(outcome(1, "", "sailor-plan: error: no such model\n")).why, "no such model (exit status 1)");
  EXPECT_EQ(row(outcome(2, "", "sailor-plan: info: x\nsailor-plan: error: no 'y'; there are\n  a\n  b\n")).why,
            "no 'y'; there are a b (exit status 2)");
  EXPECT_EQ(row(outcome(134, "", "one\nterminate called\n")).why, "terminate called (exit status 134)");
  EXPECT_EQ(row(outcome(0, "hello")).why, "sailor-plan wrote no JSON");
  EXPECT_EQ(row(outcome(0, R"({"plans":[]})")).status, SweepStatus::failed);
  EXPECT_EQ(row(outcome(1, baseline_answer)).status, SweepStatus::failed);
  ProcessOutcome killed;
  killed.signal = 11;
  EXPECT_EQ(row(outcome_of(killed, Seconds(1), "")).why, "signal 11 (Segmentation fault)");
  ProcessOutcome late;
  late.timed_out = true;
  late.deadline = Seconds(2);
  late.errors = "planning ...\n";
  EXPECT_EQ(row(outcome_of(late, Seconds(2), "")).why, "no answer within 2 s");
}

TEST(SweepOutcome, OfAnotherFormIsAnErrorAndNoZero) {
  const auto experiment = parse(small).value();
  const auto wrong =
      row_of(experiment, points_of(experiment).front(), outcome(0, R"({"plans":[{"iteration_time_s":"fast"}]})"));
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().what.find("is not understood"), std::string::npos) << wrong.error().what;
}

TEST(SweepOutcome, IsReadBackFromItsFile) {
  const auto point = points_of(parse(small).value()).front();
  const Outcome before = outcome(0, baseline_answer);
  const auto after = parse_outcome(outcome_to_json(point, before), "x.json");
  ASSERT_TRUE(after.has_value()) << after.error().message();
  EXPECT_EQ(after->status, before.status);
  EXPECT_EQ(after->answer, before.answer);
  EXPECT_EQ(after->inputs, "hash");
  EXPECT_EQ(after->peak_resident_memory, Bytes(1e8));
  for (const char* damaged : {"", "{}", "[1]", R"({"kind":"sailor-sweep-point","schema_version":1})"})
    EXPECT_FALSE(parse_outcome(damaged, "x.json").has_value()) << damaged;
}

// --- files

TEST(SweepFile, KeepsWhatIsKnownAndWhatIsNot) {
  const fs::path path = fs::temp_directory_path() / ("sailor_sweep_" + std::to_string(::getpid()) + ".h5");
  SweepRecord sweep{.experiment_toml = small, .rows = {row(outcome(0, baseline_answer)), row(outcome(1, "", "bad\n"))}};
  ASSERT_TRUE(save_sweep(sweep, path).has_value());
  const auto read = load_sweep(path);
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->experiment_toml, small);
  EXPECT_FALSE(read->provenance.date.empty());
  ASSERT_EQ(read->rows.size(), 2U);
  EXPECT_EQ(sweep_csv(read->rows), sweep_csv(sweep.rows));
  EXPECT_EQ(read->rows[0].simulator_is_bound, true);
  EXPECT_FALSE(read->rows[1].judged.cost.has_value());
  EXPECT_FALSE(read->rows[1].gpus.has_value());
  // Other readers say what it is.
  const auto as_run = load_run(path);
  ASSERT_FALSE(as_run.has_value());
  EXPECT_NE(as_run.error().what.find("it holds a sweep"), std::string::npos) << as_run.error().what;
  fs::remove(path);
}

TEST(SweepFile, AsCsvQuotesTextsAndMarksWhatWasMeasured) {
  SweepRow tricky = row(outcome(1, "", "sailor-plan: error: \"quoted\", and more\n"));
  const std::string csv = sweep_csv({tricky});
  EXPECT_NE(csv.find(R"x(failed,"""quoted"", and more (exit status 1)")x"), std::string::npos) << csv;
  const std::string head = csv.substr(0, csv.find('\n'));
  EXPECT_EQ(head.find("measured_search_time_s"), head.find("measured_"));
  EXPECT_TRUE(head.ends_with("measured_peak_resident_memory_bytes")) << head;
}

}  // namespace
}  // namespace sailor::apps::sweep::sweep_test
