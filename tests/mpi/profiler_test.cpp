// sailor-profile on two ranks of this machine.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "model/model.hpp"
#include "mpi_test.hpp"
#include "profile/profile.hpp"
#include "profile/store.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;

class ProfilerOnTwoRanks : public MpiTest {
 protected:
  void SetUp() override {
    if (std::string(SAILOR_MPIEXEC).empty()) GTEST_SKIP() << "there is no mpiexec";
    ASSERT_NO_FATAL_FAILURE(MpiTest::SetUp());
  }

  /// Exit status of sailor-profile on `ranks` ranks; what it prints is in out() and err().
  int run(int ranks, const std::string& arguments) {
    const std::string line = std::string(SAILOR_MPIEXEC) + " -n " + std::to_string(ranks) + " " + SAILOR_BIN_DIR +
                             "/sailor-profile " + arguments + " >" + (folder_ / "out").string() + " 2>" +
                             (folder_ / "err").string();
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  [[nodiscard]] std::string out() const { return *read_text_file(folder_ / "out"); }
  [[nodiscard]] std::string err() const { return *read_text_file(folder_ / "err"); }
  [[nodiscard]] std::string store() const { return (folder_ / "store").string(); }
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

const std::string quick_layers =
    "layers --model tiny-gpt --micro-batches 2 --sequence-length 32 --blocks 1 --no-cold --time-budget 1 ";

TEST_F(ProfilerOnTwoRanks, LayersOfAGroupAndThoseThatComputeAgainAreStoredUnderTheirOwnKeys) {
  // Two calls whose files the store merges.
  ASSERT_EQ(run(2, quick_layers + "--recompute none,selective,full --store " + store() + models_option), 0) << err();
  ASSERT_EQ(
      run(2, quick_layers + "--tensor-parallel 2 --recompute none,selective,full --store " + store() + models_option),
      0)
      << err();
  EXPECT_NE(out().find("busy ranks 2, tensor parallel 2"), std::string::npos) << out();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->layer_times.size(), 18U);  // 3 kinds, 2 degrees, 3 ways
  EXPECT_EQ(data->layer_memory.size(), 18U);
  const Profile profile(*data);
  const auto cost = [&](int degree, Recompute recompute, LayerKind kind) {
    auto row = profile.layer({.model = "tiny-gpt",
                              .gpu = "cpu",
                              .recompute = recompute,
                              .tensor_parallel = degree,
                              .micro_batch = 2,
                              .sequence_length = 32,
                              .busy_ranks = 2,
                              .kind = kind});
    EXPECT_TRUE(row) << row.error().message();
    return row ? *row : LayerCost{};
  };
  auto model = find_model("tiny-gpt", std::string(SAILOR_SOURCE_DIR) + "/profiles/models");
  ASSERT_TRUE(model);
  const LayerCost plain = cost(1, Recompute::none, LayerKind::block);
  for (const int degree : {1, 2}) {
    // Whole on both ranks: two norms of 2 x 128, and the biases (128) that follow the two sums. The rest is halved.
    const std::int64_t whole = 2 * 2 * 128 + 2 * 128;
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      const LayerCost block = cost(degree, recompute, LayerKind::block);
      EXPECT_EQ(block.parameters, whole + (model->parameters(LayerKind::block) - whole) / degree);
      // 128 positions are whole, 256 rows of the vocabulary are divided.
      EXPECT_EQ(cost(degree, recompute, LayerKind::embedding).parameters, 128 * 128 + 256 * 128 / degree);
      EXPECT_GT(block.forward.median, Seconds(0.0));
      EXPECT_GT(block.backward.median, Seconds(0.0));
      EXPECT_EQ(block.output, Bytes(4.0 * 64 * 128));
    }
    const Bytes none = cost(degree, Recompute::none, LayerKind::block).activation;
    // Of 64 tokens: queries, keys and values (3 x 128), attention's output (128) and its 4 logarithms, and the
    // feed-forward's inner values (512) are divided.
    EXPECT_EQ(none, plain.activation - Bytes(4.0 * 64 * (384 + 128 + 4 + 512)) * (1.0 - 1.0 / degree));
    // Attention's output and logarithms are not kept.
    EXPECT_EQ(cost(degree, Recompute::selective, LayerKind::block).activation,
              none - Bytes(4.0 * 64 * (128 + 4)) / degree);
    // The input alone, and all of the rest while it runs again.
    const LayerCost full = cost(degree, Recompute::full, LayerKind::block);
    EXPECT_EQ(full.activation, Bytes(4.0 * 64 * 128));
    EXPECT_GE(full.workspace, none - full.activation);
  }
  // Nothing but blocks computes again.
  EXPECT_EQ(cost(2, Recompute::full, LayerKind::head).activation, cost(2, Recompute::none, LayerKind::head).activation);
  // Its 64 x 256 logits' gradients are divided.
  EXPECT_EQ(cost(1, Recompute::none, LayerKind::head).activation - cost(2, Recompute::none, LayerKind::head).activation,
            Bytes(4.0 * 64 * 256 / 2));
  EXPECT_EQ(run(1, "show --all " + store()), 0) << err();
  EXPECT_NE(run(1, "check " + store()), 2) << err();
  EXPECT_EQ(out().find("no times of"), std::string::npos) << out();
  EXPECT_EQ(out().find("no memory of"), std::string::npos) << out();
}

TEST_F(ProfilerOnTwoRanks, BusyRanksThatADegreeDoesNotDivideAreLeftOutAndNamed) {
  ASSERT_EQ(
      run(2, quick_layers + "--layers block --busy-ranks 1,2 --tensor-parallel 1,2 --store " + store() + models_option),
      0)
      << err();
  EXPECT_NE(err().find("warning: tensor parallel 2 is not measured with 1 rank busy: no multiple of 2"),
            std::string::npos)
      << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  std::vector<std::pair<int, int>> measured;
  for (const LayerTime& row : data->layer_times) measured.emplace_back(row.key.busy_ranks, row.key.tensor_parallel);
  std::sort(measured.begin(), measured.end());
  EXPECT_EQ(measured, (std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}}));
}

TEST_F(ProfilerOnTwoRanks, GroupThatIsTooLargeForMemoryIsRecorded) {
  ASSERT_EQ(run(2,
                "layers --model tiny-gpt --micro-batches 1,4096 --sequence-length 32 --time-budget 1 --tensor-parallel "
                "2 --recompute full --memory-limit 64e6 --store " +
                    store() + models_option),
            0)
      << err();
  EXPECT_NE(err().find("micro-batch 4096 does not fit on cpu with 2 ranks busy, tensor parallel 2"), std::string::npos)
      << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  ASSERT_EQ(data->out_of_memory.size(), 1U);
  EXPECT_EQ(data->out_of_memory[0].key.tensor_parallel, 2);
  EXPECT_EQ(data->out_of_memory[0].key.recompute, Recompute::full);
}

TEST_F(ProfilerOnTwoRanks, GroupsThatCannotBeAreRefused) {
  const auto refuse = [&](int ranks, const std::string& arguments, const std::string& message) {
    EXPECT_EQ(run(ranks, "layers --model tiny-gpt " + arguments + " --store " + store() + models_option), 2);
    EXPECT_NE(err().find(message), std::string::npos) << err();
  };
  refuse(2, "--tensor-parallel 1,3",
         "--tensor-parallel: model 'tiny-gpt': attention_heads = 4 cannot be divided by tensor_parallel = 3; use a "
         "tensor_parallel that divides 4, 4 and 512 (attention_heads, key_value_heads, feed_forward)");
  refuse(2, "--tensor-parallel 4",
         "--tensor-parallel: 4 ranks cannot share a layer: a host has 2; start 4 ranks per node");
  refuse(2, "--tensor-parallel 2 --busy-ranks 1",
         "--tensor-parallel: groups of 2 ranks cannot be made of 1 busy rank of a host; use --busy-ranks 2, or another "
         "multiple of 2");
  refuse(
      3, "--tensor-parallel 2",
      "--tensor-parallel: groups of 2 ranks cannot be made of 3 busy ranks of a host; use --busy-ranks 2, or another "
      "multiple of 2");
  EXPECT_FALSE(fs::exists(store()));
}

/// Whether process `pid` has a handler for `signal` (Linux: bit signal-1 of SigCgt).
bool catches(pid_t pid, int signal) {
  auto status = read_kernel_file("/proc/" + std::to_string(pid) + "/status", 1 << 16);
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

TEST_F(ProfilerOnTwoRanks, StoresTimesOfNoOtherDeviceThanItWasTold) {
  for (const std::string program : {"layers --model tiny-gpt", "links"}) {
    const auto expect_error = [&](const std::string& gpu, int status, const std::string& message) {
      EXPECT_EQ(run(2, program + " --gpu " + gpu + " --store " + store()), status);
      EXPECT_NE(err().find("sailor-profile: error: " + message), std::string::npos) << err();
    };
    ::setenv("SAILOR_GPU_MODULE", "/none", 1);
    expect_error("gh200", 1, "no usable GPU: /none: cannot open shared object file");
    expect_error("MI300X", 2, "--gpu MI300X: Sailor computes on CPUs and NVIDIA's GPUs only");
    if (!use_emulated_gpus(2)) GTEST_SKIP() << "built without Boost.Context, which GPUs are emulated with";
    ::setenv("SAILOR_EMULATED_NAME", "NVIDIA H200", 1);
    expect_error("gh200", 2, "--gpu GH200-96: the GPU of rank 0 on ");
    EXPECT_NE(err().find(" is NVIDIA H200, in the catalogue H200-141; measure it as --gpu H200-141"), std::string::npos)
        << err();
    EXPECT_EQ(run(2, program + " --gpu abacus --store " + store()), 1);
    EXPECT_NE(err().find("sailor-profile: error: --gpu 'abacus' is not in the catalogue "), std::string::npos) << err();
    EXPECT_FALSE(fs::exists(store()));
  }
}

TEST_F(ProfilerOnTwoRanks, MeasuresGpus) {
  if (!use_emulated_gpus(2)) GTEST_SKIP() << "built without Boost.Context, which GPUs are emulated with";
  // NVIDIA's management library, which knows the clock.
  std::string gpus;
  for (int i = 0; i < 2; ++i)
    gpus += "NVIDIA H200|GPU-" + std::to_string(i) + "|00000000:0" + std::to_string(i) + ":00.0|143771|0|27|1755\n";
  ASSERT_TRUE(write_file_atomically(folder_ / "gpus", gpus));
  ::setenv("FAKE_NVML", path("gpus").c_str(), 1);
  ::setenv("LD_LIBRARY_PATH", SAILOR_TESTS_DIR "/nvml", 1);
  const std::string common = " --gpu h200 --samples 3 --warm-up 0 --time-budget 1 --store " + store();
  ASSERT_EQ(run(2,
                "layers --model tiny-gpt --precision bf16 --sequence-length 4 --blocks 1 --micro-batches 1 "
                "--tensor-parallel 1,2" +
                    common),
            0)
      << err();
  ::unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(run(1,
                "layers --model tiny-gpt --sequence-length 4 --blocks 1 --micro-batches 1 --gpu h200 --samples 3 "
                "--warm-up 0 --time-budget 1 --store " +
                    path("of-one-gpu")),
            0)
      << err();
  ASSERT_EQ(run(2, "links --max-message 16384" + common), 0) << err();
  const auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  std::set<int> degrees;
  for (const LayerTime& row : data->layer_times) {
    EXPECT_EQ(row.key.gpu, "H200-141");
    EXPECT_EQ(row.key.precision, Precision::bf16);
    EXPECT_GT(row.forward.median.value(), 0.0);
    degrees.insert(row.key.tensor_parallel);
  }
  EXPECT_EQ(degrees, (std::set<int>{1, 2}));
  ASSERT_EQ(data->processes.size(), 1u);
  EXPECT_EQ(data->processes.front().base_memory, Bytes(1 << 20));  // that an emulated GPU says is in use
  std::set<LinkOperation> operations;
  for (const LinkMeasurement& row : data->links) operations.insert(row.key.operation);
  EXPECT_EQ(operations.size(), 4u);
  EXPECT_EQ(data->sessions.back().provenance.device, "emulated GPU");
  EXPECT_EQ(data->sessions.front().lowest_clock_hz, 1.755e9);
}

TEST_F(ProfilerOnTwoRanks, AnotherNameOfTheDeviceIsStoredAsTheCatalogues) {
  ASSERT_EQ(run(2, "links --gpu cpu-core --max-message 1024 --samples 3 --warm-up 0 --store " + store()), 0) << err();
  const auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->links.front().key.from.gpu, "cpu");
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
