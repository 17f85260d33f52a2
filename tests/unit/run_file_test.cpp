// The run file, in which sailor-train keeps the measurements of a run.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "profile/provenance.hpp"
#include "profile/run_file.hpp"
#include "profile/table.hpp"
#include "tests/unit/profile_samples.hpp"

namespace sailor::run_file_test {
namespace {

using RunFile = ProfileStore;

RunRecord sample_run() {
  RunRecord run;
  run.provenance = sample().sessions[0].provenance;
  run.plan_toml = "schema_version = 1\n# ünïcode\n";
  run.warm_up_iterations = 2;
  for (int i = 0; i < 5; ++i) run.iterations.push_back({.iteration = i, .loss = 5.0 - i, .time = Seconds(1.0 + i)});
  for (int i = 0; i < 3; ++i)
    run.ranks.push_back({.rank = i,
                         .pipeline = 0,
                         .stage = i,
                         .tensor_parallel_index = 0,
                         .host = "nid00" + std::to_string(i),
                         .peak_tensor_memory = Bytes(1000.0 + i),
                         .peak_resident_memory = Bytes(9000.0 - i)});
  run.parts.push_back({.iteration = 3,
                       .wait_gradient = {.mean = Seconds(0.5), .slowest = Seconds(0.75)},
                       .update = {.mean = Seconds(0.125), .slowest = Seconds(0.25)}});
  return run;
}

TEST_F(RunFile, ReadsBack) {
  ASSERT_TRUE(save_run(sample_run(), file("run.h5")));
  auto run = load_run(file("run.h5"));
  ASSERT_TRUE(run) << run.error().message();
  EXPECT_EQ(run->plan_toml, sample_run().plan_toml);
  EXPECT_EQ(run->warm_up_iterations, 2);
  ASSERT_EQ(run->iterations.size(), 5U);
  EXPECT_EQ(run->iterations[4].iteration, 4);
  EXPECT_EQ(run->iterations[4].loss, 1.0);
  EXPECT_EQ(run->iterations[4].time, Seconds(5.0));
  ASSERT_EQ(run->ranks.size(), 3U);
  EXPECT_EQ(run->ranks[2].host, "nid002");
  EXPECT_EQ(run->ranks[2].stage, 2);
  EXPECT_EQ(run->ranks[2].peak_tensor_memory, Bytes(1002.0));
  EXPECT_EQ(run->provenance.host, "nid001,nid002");
  ASSERT_EQ(run->parts.size(), 1U);
  EXPECT_EQ(run->parts[0].iteration, 3);
  EXPECT_EQ(run->parts[0].wait_gradient.mean, Seconds(0.5));
  EXPECT_EQ(run->parts[0].update.slowest, Seconds(0.25));
  // Iterations 2, 3, 4 took 3, 4, 5 s.
  EXPECT_EQ(run->iteration_time().median, Seconds(4.0));
  EXPECT_EQ(run->iteration_time().samples, 3);
  EXPECT_EQ(run->peak_resident_memory(), Bytes(9000.0));
}

TEST_F(RunFile, RunThatDivergedIsKept) {
  RunRecord run = sample_run();
  run.iterations[4].loss = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(save_run(run, file("run.h5")));
  auto again = load_run(file("run.h5"));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(std::isinf(again->iterations[4].loss));
}

TEST_F(RunFile, OfAnElasticTrainingHasEpochsAndEvents) {
  RunRecord run = sample_run();
  run.iterations[3].time = Seconds(std::numeric_limits<double>::quiet_NaN());
  run.epochs = {{.epoch = 1, .first_iteration = 0, .plan_toml = "one\n"},
                {.epoch = 4, .first_iteration = 2, .plan_toml = "another\n"}};
  run.events = "{\"what\":\"begins\"}\n";
  ASSERT_TRUE(save_run(run, file("run.h5")));
  const auto again = load_run(file("run.h5"));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(std::isnan(again->iterations[3].time.value()));
  ASSERT_EQ(again->epochs.size(), 2U);
  EXPECT_EQ(again->epochs[1].epoch, 4);
  EXPECT_EQ(again->epochs[1].first_iteration, 2);
  EXPECT_EQ(again->epochs[1].plan_toml, "another\n");
  EXPECT_EQ(again->events, run.events);
}

TEST(RunRecord, TimesOfAnElasticTrainingAreThoseOfItsPlanAfterTheWarmUpOfEachEpoch) {
  RunRecord run;
  run.warm_up_iterations = 1;
  run.add(EpochRecord{.epoch = 1, .first_iteration = 0, .plan_toml = "a"});
  for (int i = 0; i < 4; ++i) run.add(IterationRecord{.iteration = i, .time = Seconds(1.0 + i)});
  run.add(EpochRecord{.epoch = 2, .first_iteration = 4, .plan_toml = "b"});
  for (int i = 4; i < 7; ++i) run.add(IterationRecord{.iteration = i, .time = Seconds(10.0 + i)});
  // Iterations 5 and 6 of plan "b".
  EXPECT_EQ(run.plan_toml, "b");
  EXPECT_EQ(run.iteration_time().samples, 2);
  EXPECT_EQ(run.iteration_time().median, Seconds(15.5));
  run.plan_toml = "a";
  EXPECT_EQ(run.iteration_time().median, Seconds(3.0));  // 2, 3, 4
  run.iterations[2].time = Seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(run.iteration_time().samples, 2);
}

TEST(RunRecord, IterationsAndEpochsThatAreRunAgainReplaceThoseOfTheFirstTime) {
  RunRecord run;
  run.add(EpochRecord{.epoch = 1, .first_iteration = 0, .plan_toml = "a"});
  for (int i = 0; i < 4; ++i) {
    run.add(IterationRecord{.iteration = i, .loss = 1.0});
    run.parts.push_back({.iteration = i});
  }
  run.add(EpochRecord{.epoch = 2, .first_iteration = 4, .plan_toml = "b"});
  run.add(EpochRecord{.epoch = 3, .first_iteration = 3, .plan_toml = "c"});  // from a checkpoint
  run.add(IterationRecord{.iteration = 3, .loss = 2.0});
  ASSERT_EQ(run.iterations.size(), 4U);
  EXPECT_EQ(run.iterations[3].loss, 2.0);
  EXPECT_EQ(run.parts.size(), 3U);
  ASSERT_EQ(run.epochs.size(), 2U);
  EXPECT_EQ(run.epochs[1].epoch, 3);
}

TEST_F(RunFile, FilesOfBeforeThePartsWereKeptAreRead) {
  const RunRecord run = sample_run();
  auto out = hdf5::FileWriter::create(file("run.h5"));
  ASSERT_TRUE(out);
  ASSERT_TRUE(hdf5::write_header(*out, hdf5::run_kind, run.provenance));
  ASSERT_TRUE(out->attribute("warm_up_iterations", std::int64_t{2}));
  ASSERT_TRUE(out->text("plan", run.plan_toml));
  const hdf5::Table<IterationRecord> iterations(
      "iterations", {hdf5::integer<IterationRecord>("iteration", SAILOR_MEMBER(iteration), {}),
                     hdf5::number<IterationRecord>("loss", "nat/token", SAILOR_MEMBER(loss)),
                     hdf5::amount<IterationRecord>("time_s", "s", SAILOR_MEMBER(time))});
  ASSERT_TRUE(iterations.write(*out, run.iterations));
  const hdf5::Table<RankRecord> ranks(
      "ranks", {hdf5::integer<RankRecord>("rank", SAILOR_MEMBER(rank), {}),
                hdf5::integer<RankRecord>("pipeline", SAILOR_MEMBER(pipeline), {}),
                hdf5::integer<RankRecord>("stage", SAILOR_MEMBER(stage), {}),
                hdf5::integer<RankRecord>("tensor_parallel_index", SAILOR_MEMBER(tensor_parallel_index), {}),
                hdf5::text<RankRecord>("host", SAILOR_MEMBER(host)),
                hdf5::amount<RankRecord>("peak_tensor_memory_bytes", "byte", SAILOR_MEMBER(peak_tensor_memory)),
                hdf5::amount<RankRecord>("peak_resident_memory_bytes", "byte", SAILOR_MEMBER(peak_resident_memory))});
  ASSERT_TRUE(ranks.write(*out, run.ranks));
  ASSERT_TRUE(out->close());
  const auto again = load_run(file("run.h5"));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(again->parts.empty());
  EXPECT_EQ(again->iterations.size(), 5U);
}

TEST_F(RunFile, DamagedRunsAreRefused) {
  ASSERT_TRUE(save_run(sample_run(), file("run.h5")));
  const std::string content = content_of(file("run.h5"));
  put(file("run.h5"), content.substr(0, content.size() / 2));
  EXPECT_FALSE(load_run(file("run.h5")));
  EXPECT_FALSE(load_run(file("none.h5")));
}

TEST(RunRecord, FewerIterationsThanWarmUpHaveNoTime) {
  RunRecord run = sample_run();
  run.warm_up_iterations = 9;
  EXPECT_EQ(run.iteration_time().samples, 0);
  EXPECT_EQ(run.iteration_time().median, Seconds(0.0));
}

TEST_F(RunFile, RunFileIsNoProfileAndTheOtherWayRound) {
  ASSERT_TRUE(save_run({}, file("run.h5")));
  EXPECT_EQ(error_of(file("run.h5")),
            "file '" + file("run.h5").string() + "': it holds a run of sailor-train, no profile");
  ASSERT_TRUE(save_profile({}, file("profile.h5")));
  auto run = load_run(file("profile.h5"));
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().message(),
            "file '" + file("profile.h5").string() + "': it holds a profile, no run of sailor-train");
}

}  // namespace
}  // namespace sailor::run_file_test
