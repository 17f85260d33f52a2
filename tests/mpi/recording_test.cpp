// What sailor-train records of a run on real ranks: metrics per iteration, and a trace of what every rank did, which
// must be what the schedule says.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "mpi_test.hpp"
#include "plan/plan.hpp"
#include "plan/schedule.hpp"
#include "profile/run_file.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Stage stage(LayerRange layers, int tensor_parallel = 1, std::vector<LayerRange> later = {}) {
  return {.layers = layers, .later_chunks = std::move(later), .gpu = "cpu", .tensor_parallel = tensor_parallel};
}

class RecordedRun : public MpiTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(MpiTest::SetUp());
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 600; ++i) text << i * i << " sailors went to sea, sea, sea; ";
    text.close();
    ASSERT_EQ(
        shell(fmt::format("{}/sailor-data bytes --output {} {}", SAILOR_BIN_DIR, path("corpus"), path("text.txt"))), 0);
  }
  [[nodiscard]] std::string errors() const { return *read_text_file(folder_ / "err"); }
  [[nodiscard]] int shell(const std::string& command) const {
    const int status = std::system(fmt::format("timeout 60 {} >{} 2>{}", command, path("out"), path("err")).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  [[nodiscard]] int train(const Plan& plan, const std::string& arguments) const {
    EXPECT_TRUE(save_plan(plan, folder_ / "plan.toml"));
    return shell(fmt::format("{} -n {} {}/sailor-train {} --data {} {}", SAILOR_MPIEXEC, plan.ranks(), SAILOR_BIN_DIR,
                             path("plan.toml"), path("corpus"), arguments));
  }
  [[nodiscard]] std::vector<json> lines(const std::string& name) const {
    std::vector<json> found;
    std::ifstream in(folder_ / name);
    for (std::string line; std::getline(in, line);) found.push_back(json::parse(line));
    return found;
  }
};

Plan plan_of(Schedule schedule, std::vector<Pipeline> pipelines) {
  Plan plan;
  plan.job = {.model = "tiny-gpt", .sequence_length = 32};
  plan.schedule = schedule;
  plan.pipelines = std::move(pipelines);
  for (const Pipeline& pipeline : plan.pipelines) plan.job.global_batch += pipeline.count * pipeline.micro_batches;
  return plan;
}

/// Two stages of different tensor parallelism beside one that holds all: 4 ranks.
Plan unequal() {
  return plan_of(Schedule::one_f_one_b, {{.micro_batches = 5, .stages = {stage({0, 3}, 2), stage({3, 6})}},
                                         {.micro_batches = 3, .stages = {stage({0, 6})}}});
}

/// Compares every rank's passes with the schedule, and its messages with its place in the pipeline.
void expect_schedule(const json& trace, const Plan& plan) {
  std::map<int, std::string> names;         // of tracks
  std::map<int, std::vector<json>> slices;  // by track
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      names[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X") slices[event.at("tid")].push_back(event);
  }
  for (auto& [track, events] : slices) {
    std::stable_sort(events.begin(), events.end(),
                     [](const json& a, const json& b) { return a.at("ts").get<double>() < b.at("ts").get<double>(); });
    double until = 0.0;
    for (const json& event : events) {
      EXPECT_GE(event.at("ts").get<double>(), until - 2e-3) << "crossing slices in " << names[track];
      until = event.at("ts").get<double>() + event.at("dur").get<double>();
    }
  }
  for (const RankRole& role : rank_roles(plan)) {
    const Stage& mine = stage_of(plan, role);
    std::string name = fmt::format("rank {}, stage {}, cpu", role.rank, role.stage);
    if (mine.tensor_parallel > 1)
      name += fmt::format(", tensor parallel {} of {}", role.tensor_parallel_index, mine.tensor_parallel);
    SCOPED_TRACE(name);
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const auto& entry) { return entry.second == name; });
    ASSERT_NE(found, names.end());
    const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(role.pipeline_entry)];
    const int stages = static_cast<int>(pipeline.stages.size());
    const auto steps = schedule_steps(plan.schedule, role.stage, stages, pipeline.chunks(), pipeline.micro_batches);
    std::vector<std::string> expected;
    for (const ScheduleStep& step : steps) {
      const bool forward = step.pass == Pass::forward;
      const int place = step.chunk * stages + role.stage;  // among the stages of all chunks
      if (forward ? place > 0 : place + 1 < pipeline.chunks() * stages)
        expected.push_back(fmt::format("receive {}", step.micro_batch));
      expected.push_back(fmt::format("{} {}", forward ? "forward" : "backward", step.micro_batch));
    }
    expected.emplace_back("update");
    std::vector<std::string> measured;
    for (const json& event : slices[found->first])
      if (event.at("name") != "idle") measured.push_back(event.at("name"));
    EXPECT_EQ(measured, expected);
  }
}

TEST_F(RecordedRun, TheTraceIsTheScheduleOfEveryRank) {
  const Plan interleaved =
      plan_of(Schedule::interleaved_1f1b,
              {{.micro_batches = 4, .stages = {stage({0, 2}, 1, {{3, 5}}), stage({2, 3}, 1, {{5, 6}})}}});
  for (const Plan& plan : {unequal(), interleaved}) {
    ASSERT_EQ(train(plan, fmt::format("--iterations 3 --trace {}", path("trace.json"))), 0) << errors();
    const json trace = json::parse(*read_text_file(folder_ / "trace.json"));
    expect_schedule(trace, plan);
    EXPECT_EQ(trace.at("otherData").at("model"), "tiny-gpt");
    EXPECT_GT(trace.at("otherData").at("iteration_time_s"), 0.0);
    // Each arrow has both ends, and as many as activations and gradients cross to a rank: 5 micro-batches over one
    // boundary, 4 over three (chunk to chunk).
    std::map<int, int> ends;
    for (const json& event : trace.at("traceEvents"))
      if (event.at("ph") == "s" || event.at("ph") == "f") ++ends[event.at("id")];
    EXPECT_EQ(ends.size(), plan.schedule == Schedule::interleaved_1f1b ? 24U : 10U);
    for (const auto& [id, count] : ends) EXPECT_EQ(count, 2) << id;
  }
}

TEST_F(RecordedRun, MetricsHaveALinePerIterationAndResumedRunsAppend) {
  const std::string arguments =
      fmt::format("--iterations 4 --metrics {} --run-file {}", path("metrics.jsonl"), path("run.h5"));
  ASSERT_EQ(train(unequal(), arguments), 0) << errors();
  const std::vector<json> metrics = lines("metrics.jsonl");
  const auto run = load_run(folder_ / "run.h5");
  ASSERT_TRUE(run) << run.error().message();
  ASSERT_EQ(metrics.size(), 4U);
  ASSERT_EQ(run->parts.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const json& line = metrics[i];
    SCOPED_TRACE(line.dump());
    EXPECT_EQ(line.at("iteration"), i);
    EXPECT_EQ(line.at("loss").get<double>(), run->iterations[i].loss);
    EXPECT_EQ(line.at("time_s").get<double>(), run->iterations[i].time.value());
    EXPECT_GT(line.at("gradient_norm").get<double>(), 0.0);
    EXPECT_NEAR(line.at("tokens_per_s").get<double>() * line.at("time_s").get<double>(), 8 * 32, 1e-6);
    EXPECT_GT(line.at("mfu").get<double>(), 0.0);
    EXPECT_LT(line.at("mfu").get<double>(), 1.0);
    EXPECT_GT(line.at("peak_resident_memory_bytes"), line.at("peak_tensor_memory_bytes"));
    EXPECT_EQ(line.at("timestamp").get<std::string>().size(), 24U);
    double mean = 0.0;
    for (const auto& [part, seconds] : line.at("parts").at("mean").items()) {
      mean += seconds.get<double>();
      EXPECT_LE(seconds.get<double>(), line.at("parts").at("slowest").at(part).get<double>() * (1 + 1e-9)) << part;
    }
    // The parts do not overlap each other. The time is that of rank 0; others may begin or end a little apart from it.
    EXPECT_LE(mean, 1.25 * line.at("time_s").get<double>());
    EXPECT_GT(line.at("parts").at("mean").at("wait_activation_s").get<double>(), 0.0);
    EXPECT_EQ(line.at("parts").at("slowest").at("backward_s").get<double>(), run->parts[i].backward.slowest.value());
  }
  ASSERT_EQ(train(unequal(), arguments), 0) << errors();
  EXPECT_EQ(lines("metrics.jsonl").size(), 8U);
}

TEST_F(RecordedRun, AnyIterationCanBeTraced) {
  const Plan plan = plan_of(Schedule::one_f_one_b, {{.count = 2, .micro_batches = 1, .stages = {stage({0, 6})}}});
  ASSERT_EQ(train(plan, fmt::format("--iterations 3 --trace {} --trace-iteration 1", path("trace.json"))), 0)
      << errors();
  expect_schedule(json::parse(*read_text_file(folder_ / "trace.json")), plan);
  fs::remove(path("trace.json"));
  ASSERT_EQ(train(plan, fmt::format("--iterations 3 --trace {} --trace-iteration 7", path("trace.json"))), 0);
  EXPECT_NE(errors().find("--trace: there is none, as iteration 7 was not run"), std::string::npos) << errors();
  EXPECT_FALSE(fs::exists(path("trace.json")));
}

TEST_F(RecordedRun, FilesThatCannotBeWrittenAreSaidBeforeTraining) {
  const Plan plan = plan_of(Schedule::one_f_one_b, {{.micro_batches = 1, .stages = {stage({0, 6})}}});
  EXPECT_EQ(train(plan, fmt::format("--metrics {}", path("corpus.bin"))), 2);
  EXPECT_NE(errors().find("is another file of this run"), std::string::npos) << errors();
  EXPECT_EQ(train(plan, fmt::format("--metrics {}", path("text.txt"))), 1);
  EXPECT_NE(errors().find("is there and has no metrics"), std::string::npos) << errors();
  EXPECT_EQ(train(plan, fmt::format("--trace {}/no/such.json", path(""))), 1);
  EXPECT_NE(errors().find("--trace: "), std::string::npos) << errors();
  EXPECT_EQ(train(plan, "--trace-iteration 3"), 2);
  EXPECT_NE(errors().find("--trace-iteration without --trace"), std::string::npos) << errors();
}

}  // namespace
}  // namespace sailor
