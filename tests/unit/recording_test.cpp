// What sailor-train records: lines of metrics, and the measured timeline of its ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "apps/train/checkpoints.hpp"
#include "apps/train/launcher.hpp"
#include "apps/train/metrics.hpp"
#include "core/files.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/timeline.hpp"
#include "tests/fakes/thread_transport.hpp"

namespace sailor::recording_test {
namespace {

namespace fs = std::filesystem;
using apps::IterationMetrics;
using apps::MetricsFile;
using nlohmann::json;
using runtime::Part;
using runtime::TimelineRecorder;

IterationMetrics sample(std::int64_t iteration) {
  IterationMetrics metrics{.iteration = iteration,
                           .result = {.loss = 2.5, .gradient_norm = 0.5, .time = Seconds(4.0)},
                           .summary = runtime::IterationSummary{},
                           .tokens = 1024.0,
                           .utilization = 0.25};
  metrics.result.learning_rate = 0.125f;
  metrics.summary->mean[static_cast<std::size_t>(Part::backward)] = Seconds(1.5);
  metrics.summary->slowest[static_cast<std::size_t>(Part::backward)] = Seconds(2.0);
  metrics.summary->peak_tensor_memory = Bytes(4096);
  return metrics;
}

TEST(Metrics, ALineHasEverythingInSiUnits) {
  const json line = json::parse(apps::metrics_line(sample(7), "2026-01-02T03:04:05.678Z"));
  EXPECT_EQ(line.at("iteration"), 7);
  EXPECT_EQ(line.at("loss"), 2.5);
  EXPECT_EQ(line.at("gradient_norm"), 0.5);
  EXPECT_EQ(line.at("learning_rate"), 0.125);
  EXPECT_EQ(line.at("time_s"), 4.0);
  EXPECT_EQ(line.at("tokens_per_s"), 256.0);  // 1024 in 4 s
  EXPECT_EQ(line.at("mfu"), 0.25);
  EXPECT_EQ(line.at("peak_tensor_memory_bytes"), 4096);
  EXPECT_EQ(line.at("timestamp"), "2026-01-02T03:04:05.678Z");
  const json parts = line.at("parts");
  EXPECT_EQ(parts.at("mean").at("backward_s"), 1.5);
  EXPECT_EQ(parts.at("slowest").at("backward_s"), 2.0);
  for (const char* part : {"forward_s", "wait_activation_s", "wait_gradient_s", "reduction_s", "update_s"})
    EXPECT_EQ(parts.at("slowest").at(part), 0.0) << part;
}

TEST(Metrics, LinesOfModelsWithExpertsHaveTheirLoads) {
  IterationMetrics metrics = sample(3);
  EXPECT_FALSE(nlohmann::json::parse(metrics_line(metrics, "now")).contains("expert_load"));
  metrics.summary->expert_load = 1.5;
  metrics.summary->expert_imbalance = 1.25;
  const json line = nlohmann::json::parse(metrics_line(metrics, "now"));
  EXPECT_EQ(line.at("expert_load"), 1.5);
  EXPECT_EQ(line.at("expert_imbalance"), 1.25);
}

TEST(Metrics, LinesOfElasticTrainingsNameTheEpoch) {
  IterationMetrics metrics = sample(3);
  EXPECT_FALSE(nlohmann::json::parse(metrics_line(metrics, "now")).contains("epoch"));
  metrics.epoch = 2;
  EXPECT_EQ(nlohmann::json::parse(metrics_line(metrics, "now")).at("epoch"), 2);
}

TEST(Metrics, WhatIsNotKnownIsNull) {
  IterationMetrics metrics = sample(0);
  metrics.utilization.reset();
  metrics.summary.reset();
  metrics.result.loss = std::numeric_limits<double>::quiet_NaN();
  const json line = json::parse(apps::metrics_line(metrics, ""));
  EXPECT_TRUE(line.at("mfu").is_null());
  EXPECT_TRUE(line.at("loss").is_null());
  EXPECT_TRUE(line.at("peak_tensor_memory_bytes").is_null());
  EXPECT_TRUE(line.at("parts").is_null());
}

class MetricsFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("sailor-metrics-{}", getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] fs::path path() const { return folder_ / "metrics.jsonl"; }
  void add(std::int64_t iteration) const {
    auto file = MetricsFile::open(path());
    ASSERT_TRUE(file) << file.error().message();
    ASSERT_TRUE(file->add(sample(iteration)));
  }
  [[nodiscard]] std::vector<int> iterations() const {
    std::vector<int> found;
    std::ifstream in(path());
    for (std::string line; std::getline(in, line);) found.push_back(json::parse(line).at("iteration"));
    return found;
  }
  fs::path folder_;
};

TEST_F(MetricsFiles, ARunThatIsResumedAppends) {
  add(0);
  add(1);
  EXPECT_EQ(iterations(), (std::vector<int>{0, 1}));
}

TEST_F(MetricsFiles, KnowTheLastIterationThatTheyTellOf) {
  EXPECT_EQ(MetricsFile::open(path())->last_iteration(), -1);
  add(7);
  EXPECT_EQ(MetricsFile::open(path())->last_iteration(), 7);
  add(8);
  EXPECT_EQ(MetricsFile::open(path())->last_iteration(), 8);
  fs::resize_file(path(), fs::file_size(path()) - 1);
  EXPECT_EQ(MetricsFile::open(path())->last_iteration(), 7);
}

TEST_F(MetricsFiles, ALineThatWasNotFinishedGoes) {
  add(0);
  add(1);
  const std::string whole = *read_text_file(path());
  fs::resize_file(path(), whole.size() - 5);
  add(2);
  EXPECT_EQ(iterations(), (std::vector<int>{0, 2}));
  // Also a first one, longer than one look.
  std::ofstream(path(), std::ios::binary) << "{" << std::string(10000, ' ');
  add(3);
  EXPECT_EQ(iterations(), (std::vector<int>{3}));
}

TEST_F(MetricsFiles, OtherFilesAreNotTouched) {
  std::ofstream(path()) << "precious";
  const auto file = MetricsFile::open(path());
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message().find("metrics.jsonl' is there and has no metrics"), std::string::npos)
      << file.error().message();
  EXPECT_EQ(*read_text_file(path()), "precious");
  EXPECT_FALSE(MetricsFile::open(folder_));
  EXPECT_FALSE(MetricsFile::open(folder_ / "no" / "such"));
}

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

/// An iteration of a rank: waits for its only step, runs it, sends, sums beside it, updates.
void iterate(TimelineRecorder& recorder, runtime::Device& device) {
  const ScheduleStep step{Pass::forward, 3, 0};
  const auto beside = device.make_stream();
  recorder.begin();
  {
    const auto span = recorder.wait(step, 0);
    pause();
  }
  const std::size_t sending = recorder.begin_overlapped(*beside, Activity::send, step, 1);
  const std::size_t summing = recorder.begin_overlapped(*beside, Activity::reduce);
  {
    const auto span = recorder.pass(step);
    pause();
  }
  recorder.end_overlapped(sending, *beside);
  recorder.end_overlapped(summing, *beside);
  {
    const auto span = recorder.reduction(false);
    pause();
  }
  {
    const auto span = recorder.update();
    pause();
  }
  recorder.end();
}

TEST(TimelineRecorder, CountsPartsAndKeepsEventsWhenAsked) {
  const auto device = runtime::make_cpu_device();
  TimelineRecorder recorder(*device, {.rank = 5, .pipeline = 1, .stage = 2, .pipeline_entry = 1});
  iterate(recorder, *device);
  EXPECT_TRUE(recorder.events().empty());
  for (const Part part : {Part::wait_activation, Part::forward, Part::reduction, Part::update})
    EXPECT_GE(recorder.parts()[static_cast<std::size_t>(part)], Seconds(2e-3)) << to_string(part);
  EXPECT_EQ(recorder.parts()[static_cast<std::size_t>(Part::backward)], Seconds(0));

  recorder.keep_events(true);
  iterate(recorder, *device);
  const std::vector<TimelineEvent> events = recorder.events();
  ASSERT_EQ(events.size(), 5U);  // the reduction of `reduction(false)` is not shown
  EXPECT_EQ(events[0].activity, Activity::receive);
  EXPECT_EQ(events[0].peer, 0);
  EXPECT_EQ(events[0].micro_batch, 3);
  EXPECT_EQ(events[4].activity, Activity::update);
  EXPECT_EQ(events[4].micro_batch, -1);
  int overlapped = 0;
  for (const TimelineEvent& event : events) {
    EXPECT_EQ(event.rank, 5);
    EXPECT_EQ(event.stage, 2);
    EXPECT_EQ(event.pipeline_entry, 1);
    EXPECT_LE(event.start, event.end);
    overlapped += event.overlapped ? 1 : 0;
  }
  EXPECT_EQ(overlapped, 2);
}

TEST(TimelineRecorder, WhatOverlapsTheNextIterationIsItsEvent) {
  const auto device = runtime::make_cpu_device();
  TimelineRecorder recorder(*device, {});
  recorder.keep_events(true);
  recorder.begin();
  const std::size_t next = recorder.begin_overlapping_next(device->main(), Activity::reduce);
  recorder.end();
  EXPECT_TRUE(recorder.events().empty());
  recorder.begin();
  pause();
  recorder.end_overlapped(next, device->main());
  recorder.end();
  ASSERT_EQ(recorder.events().size(), 1U);
  EXPECT_EQ(recorder.events()[0].activity, Activity::reduce);
  EXPECT_LT(recorder.events()[0].start, Seconds(0));  // before the iteration began
  EXPECT_GT(recorder.events()[0].end, Seconds(0));
  recorder.begin();
  recorder.end();
  EXPECT_TRUE(recorder.events().empty());
}

TEST(TimelineRecorder, RanksAreGatheredWithOneOrigin) {
  runtime::test::run_ranks(3, [](const runtime::World& world) {
    const auto device = runtime::make_cpu_device();
    TimelineRecorder recorder(*device, {.rank = world.rank(), .stage = world.rank()});
    recorder.keep_events(true);
    recorder.in_step();
    if (world.rank() != 1) pause();  // the first to begin is rank 1
    iterate(recorder, *device);
    const Timeline timeline = gather_timeline(recorder, world.control);
    const runtime::IterationSummary summary = gather_summary(recorder, *device, runtime::RoutingLoads{}, world.control);
    if (world.rank() != 0) {
      EXPECT_TRUE(timeline.events.empty());
      return;
    }
    ASSERT_EQ(timeline.events.size(), 15U);
    Seconds first = timeline.length;
    for (const TimelineEvent& event : timeline.events) first = std::min(first, event.start);
    EXPECT_EQ(first, Seconds(0));
    EXPECT_EQ(timeline.events[5].rank, 1);
    EXPECT_EQ(timeline.events[5].stage, 1);
    const auto forward = static_cast<std::size_t>(Part::forward);
    EXPECT_GE(summary.mean[forward], Seconds(2e-3));
    EXPECT_GE(summary.slowest[forward], summary.mean[forward]);
    EXPECT_GT(summary.peak_resident_memory, Bytes(0));
  });
}

TEST(Launcher, OpenMpiSaysInSeveralPlacesWhenItKills) {
  using apps::time_before_kill;
  const fs::path file = fs::temp_directory_path() / fmt::format("sailor-mca-params-{}.conf", ::getpid());
  std::ofstream(file) << "# odls_base_sigkill_timeout = 3\nbtl = self\n  odls_base_sigkill_timeout = 40 # long\n";
  const std::vector<std::string> files{"/nowhere", file.string()};
  EXPECT_EQ(time_before_kill({}, files), std::nullopt);  // srun, or another MPI
  EXPECT_EQ(time_before_kill({{"OMPI_COMM_WORLD_SIZE", "2"}}, {}), Seconds(1));
  EXPECT_EQ(time_before_kill({{"OMPI_COMM_WORLD_SIZE", "2"}}, files), Seconds(40));
  const apps::Environment environment{{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_MCA_odls_base_sigkill_timeout", "5"}};
  EXPECT_EQ(time_before_kill(environment, files), Seconds(5));
  fs::remove(file);
  EXPECT_EQ(apps::warning_of_kill(std::nullopt), "");
  EXPECT_EQ(apps::warning_of_kill(Seconds(30)), "");
  EXPECT_NE(apps::warning_of_kill(Seconds(5)).find("kills its ranks 5 s after"), std::string::npos);
}

TEST(CheckpointData, OneFileIsOneHoweverItIsNamed) {
  const fs::path here = fs::current_path();
  const fs::path folder = fs::temp_directory_path() / fmt::format("sailor-data-names-{}", ::getpid());
  fs::create_directories(folder / "sub");
  fs::create_directory_symlink(folder, folder / "sub/link");
  fs::current_path(folder);
  const std::string whole = (fs::canonical(folder) / "corpus").string();
  for (const std::string same : {"corpus", "./corpus", "sub/../corpus", "sub/link/corpus", whole.c_str()})
    EXPECT_TRUE(apps::is_same_data(same, whole)) << same;
  EXPECT_TRUE(apps::is_same_data("data/corpus", "/scratch/anna/data/corpus"));  // relative to another folder
  for (const std::string other : {"corpus2", "sub/corpus", "../corpus", "pus", "/corpus", ""})
    EXPECT_FALSE(apps::is_same_data(other, whole)) << other;
  fs::current_path(here);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace sailor::recording_test
