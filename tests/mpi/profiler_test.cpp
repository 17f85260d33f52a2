// sailor-profile on two ranks of this machine.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "core/files.hpp"
#include "model/model.hpp"
#include "profile/profile.hpp"
#include "profile/store.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;

class ProfilerOnTwoRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string(SAILOR_MPIEXEC).empty()) GTEST_SKIP() << "there is no mpiexec";
    std::string pattern = (fs::temp_directory_path() / "sailor-profiler-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    // Containers run tests as root.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  /// Exit status of sailor-profile on `ranks` ranks; what it prints is in out() and err().
  int run(int ranks, const std::string& arguments) {
    // Open MPI counts cores; others do not know the option.
    const bool is_open_mpi = runtime::MpiSession::version().starts_with("Open MPI");
    const std::string oversubscribe = is_open_mpi ? " --oversubscribe" : "";
    const std::string line = std::string(SAILOR_MPIEXEC) + oversubscribe + " -n " + std::to_string(ranks) + " " +
                             SAILOR_BIN_DIR + "/sailor-profile " + arguments + " >" + (folder_ / "out").string() +
                             " 2>" + (folder_ / "err").string();
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  [[nodiscard]] std::string out() const { return *read_text_file(folder_ / "out"); }
  [[nodiscard]] std::string err() const { return *read_text_file(folder_ / "err"); }
  [[nodiscard]] std::string store() const { return (folder_ / "store").string(); }

  fs::path folder_;
};

TEST_F(ProfilerOnTwoRanks, LayersOfATinyModelAreStored) {
  const std::string models = std::string(SAILOR_SOURCE_DIR) + "/profiles/models";
  ASSERT_EQ(run(2, "layers --model tiny-gpt --models " + models +
                       " --micro-batches 1,2 --sequence-length 32 --samples 4 --warm-up 1 --time-budget 1 --store " +
                       store()),
            0)
      << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_NE(out().find("added " + store()), std::string::npos) << out();
  EXPECT_NE(data->sessions[0].provenance.command.find("layers --model tiny-gpt"), std::string::npos);
  EXPECT_FALSE(data->sessions[0].provenance.host.empty());
  EXPECT_FALSE(data->sessions[0].provenance.device.empty());

  auto model = find_model("tiny-gpt", models);
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(data->layer_times.size(), 6U);  // 3 kinds, 2 sizes
  for (const LayerTime& row : data->layer_times) {
    EXPECT_EQ(row.key.busy_ranks, 2);
    for (const TimeStatistics& time : {row.forward, row.backward, row.update, row.cold_forward, row.cold_backward}) {
      EXPECT_GT(time.median, Seconds(0.0));
      EXPECT_LE(time.p10, time.median);
      EXPECT_LE(time.median, time.p90);
      EXPECT_LE(time.low, time.median);
      EXPECT_LE(time.median, time.high);
      EXPECT_EQ(time.samples % 2, 0);  // as many of each rank
    }
    EXPECT_GE(row.forward.samples, 2 * 3 * 2);  // ranks, batches, rounds
    EXPECT_EQ(row.backward.samples, row.forward.samples);
    EXPECT_GE(row.cold_forward.samples, 2 * 3);  // one pass of a batch
  }
  EXPECT_GE(data->sessions[0].slowdown, 1.0);
  EXPECT_LE(data->sessions[0].lowest_clock_hz, data->sessions[0].highest_clock_hz);
  EXPECT_NE(out().find("±: a repetition has its median within that (95%)"), std::string::npos) << out();
  const Profile profile(*data);
  for (const int micro_batch : {1, 2})
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
      auto row = profile.layer({.model = "tiny-gpt",
                                .gpu = "cpu",
                                .micro_batch = micro_batch,
                                .sequence_length = 32,
                                .busy_ranks = 2,
                                .kind = kind});
      ASSERT_TRUE(row) << row.error().message();
      EXPECT_GT(row->forward.median, Seconds(0.0));
      EXPECT_GT(row->backward.median, Seconds(0.0));
      EXPECT_GT(row->update.median, Seconds(0.0));
      EXPECT_EQ(row->parameters, model->parameters(kind));
      // fp32: 4 bytes for each value of (tokens, hidden).
      EXPECT_EQ(row->output, Bytes(kind == LayerKind::head ? 0.0 : 4.0 * 32 * micro_batch * model->hidden));
      // At least its input; the embedding keeps nothing.
      const double kept = kind == LayerKind::embedding ? 0.0 : 4.0 * 32 * micro_batch * model->hidden;
      EXPECT_GE(row->activation, Bytes(kept));
    }
  ASSERT_EQ(data->processes.size(), 1U);
  EXPECT_EQ(data->processes[0].framework, "sailor");
  EXPECT_GT(data->processes[0].base_memory, mib);
  EXPECT_LT(data->processes[0].base_memory, gib);
}

const std::string models_option = std::string(" --models ") + SAILOR_SOURCE_DIR + "/profiles/models";

TEST_F(ProfilerOnTwoRanks, SizesThatDoNotFitAreRecordedAndTheOthersKept) {
  ASSERT_EQ(run(2,
                "layers --model tiny-gpt --micro-batches 1,4096,8192 --sequence-length 32 --time-budget 1 "
                "--memory-limit 64e6 --store " +
                    store() + models_option),
            0)
      << err();
  EXPECT_NE(err().find("warning: micro-batch 4096 does not fit on cpu with 2 ranks busy"), std::string::npos) << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->layer_times.size(), 3U);
  EXPECT_EQ(data->layer_memory.size(), 3U);
  for (const LayerTime& row : data->layer_times) EXPECT_EQ(row.key.micro_batch, 1);
  ASSERT_EQ(data->out_of_memory.size(), 1U);
  EXPECT_EQ(data->out_of_memory[0].key.micro_batch, 4096);
  EXPECT_EQ(data->out_of_memory[0].available, Bytes(64e6));
  EXPECT_GT(data->out_of_memory[0].needed, Bytes(64e6));
}

TEST_F(ProfilerOnTwoRanks, ModelThatDoesNotFitAtAllIsAnErrorOnce) {
  EXPECT_EQ(run(2, "layers --model tiny-gpt --time-budget 1 --memory-limit 1e6 --store " + store() + models_option), 1);
  const std::string text = err();
  const std::size_t first = text.find("sailor-profile: error: nothing of model tiny-gpt fits into memory");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("sailor-profile: error: ", first + 1), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(store()));
}

TEST_F(ProfilerOnTwoRanks, NumbersOfBusyRanksAreMeasuredOneAfterTheOther) {
  ASSERT_EQ(run(2,
                "layers --model tiny-gpt --micro-batches 1 --sequence-length 32 --layers block --blocks 1 --no-cold "
                "--time-budget 1 --busy-ranks 1,2 --store " +
                    store() + models_option),
            0)
      << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  ASSERT_EQ(data->layer_times.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const LayerTime& row = data->layer_times[i];
    EXPECT_EQ(row.key.kind, LayerKind::block);
    EXPECT_EQ(row.key.busy_ranks, static_cast<int>(i) + 1);
    EXPECT_EQ(row.cold_forward.samples, 0);
    EXPECT_GE(row.forward.samples, row.key.busy_ranks * 3 * 2);
  }
  EXPECT_EQ(data->layer_memory.size(), 1U);
  EXPECT_EQ(run(2, "layers --model tiny-gpt --busy-ranks 3 --store " + store() + models_option), 2);
  EXPECT_NE(err().find("--busy-ranks: 3 ranks cannot be busy on a host: the most there are 2; start 3 ranks per node"),
            std::string::npos)
      << err();
}

TEST_F(ProfilerOnTwoRanks, WhatTheRuntimeCannotDoIsNotMeasured) {
  EXPECT_EQ(run(2, "layers --model tiny-gpt --tensor-parallel 2 --store " + store() + models_option), 1);
  EXPECT_NE(err().find("--tensor-parallel: 2 cannot be measured"), std::string::npos) << err();
  EXPECT_EQ(run(2, "layers --model tiny-gpt --recompute full --store " + store() + models_option), 1);
  EXPECT_NE(err().find("--recompute: 'full' cannot be measured"), std::string::npos) << err();
  EXPECT_FALSE(fs::exists(store()));
}

/// Whether process `pid` has a handler for `signal` (Linux: bit signal-1 of SigCgt).
bool catches(pid_t pid, int signal) {
  auto status = read_text_file("/proc/" + std::to_string(pid) + "/status");
  const std::size_t at = status ? status->find("SigCgt:") : std::string::npos;
  if (at == std::string::npos) return false;
  return (std::stoull(status->substr(at + 7), nullptr, 16) >> (signal - 1) & 1U) != 0;
}

TEST_F(ProfilerOnTwoRanks, InterruptedMeasurementStoresNothing) {
  // Without mpiexec, which would not wait for the ranks. One signal (timeout(1) sends two, and the second ends the
  // program at once), sent when somebody listens: starting MPI takes its time on a busy machine.
  const std::string line = std::string("exec ") + SAILOR_BIN_DIR +
                           "/sailor-profile layers --model tiny-gpt --interval 0 --time-budget 600 --store " + store() +
                           models_option + " >" + (folder_ / "out").string() + " 2>" + (folder_ / "err").string();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::setpgid(0, 0);
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  pid_t ended = 0;
  bool sent = false;
  for (int tenths = 0; tenths < 1200 && ended == 0; ++tenths) {
    if (!sent && catches(child, SIGINT)) sent = ::kill(child, SIGINT) == 0;
    ::usleep(100'000);
    ended = ::waitpid(child, &status, WNOHANG);
  }
  if (ended == 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    FAIL() << "did not stop within two minutes: " << err();
  }
  ASSERT_TRUE(WIFEXITED(status)) << err();
  EXPECT_EQ(WEXITSTATUS(status), 130) << err();
  EXPECT_NE(err().find("sailor-profile: error: interrupted; nothing was stored"), std::string::npos) << err();
  EXPECT_FALSE(fs::exists(store()));
}

TEST_F(ProfilerOnTwoRanks, OneRankHasNoLinks) {
  EXPECT_EQ(run(1, "links --store " + store()), 2);
  EXPECT_NE(err().find("sailor-profile: error: links need at least 2 ranks but there is 1; start it with srun -n 2"),
            std::string::npos)
      << err();
  EXPECT_FALSE(fs::exists(store()));
}

TEST_F(ProfilerOnTwoRanks, StoreThatCannotBeWrittenIsRefusedBeforeMeasuring) {
  EXPECT_EQ(run(2, "links --store /dev/null/store"), 1);
  EXPECT_NE(err().find("sailor-profile: error: --store: cannot write to '/dev/null/store': '/dev/null' is no folder"),
            std::string::npos)
      << err();
}

TEST_F(ProfilerOnTwoRanks, MistakesArePrintedOnce) {
  for (const std::string arguments : {"layers --model no-such-model", "layers --modl tiny-gpt"}) {
    EXPECT_NE(run(2, arguments), 0);
    const std::string text = err();
    const std::size_t first = text.find("sailor-profile: error: ");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("sailor-profile: error: ", first + 1), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sailor
