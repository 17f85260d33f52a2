// sailor-profile on two ranks of this machine, and the choice of ranks that links are measured between.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/files.hpp"
#include "model/model.hpp"
#include "profile/profile.hpp"
#include "profiler/link_profiler.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;
using profiler::link_groups;
using profiler::LinkGroup;

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
                       " --micro-batches 1,2 --sequence-length 32 --samples 4 --warm-up 1 --store " + store()),
            0)
      << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_NE(out().find("added " + store()), std::string::npos) << out();
  EXPECT_NE(data->provenance.command.find("layers --model tiny-gpt"), std::string::npos);
  EXPECT_FALSE(data->provenance.host.empty());
  EXPECT_FALSE(data->provenance.device.empty());

  auto model = find_model("tiny-gpt", models);
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(data->layers.size(), 6U);  // 3 kinds, 2 sizes
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
      EXPECT_EQ(row->key.busy_ranks, 2);
      EXPECT_GT(row->forward.median, Seconds(0.0));
      EXPECT_GT(row->backward.median, Seconds(0.0));
      EXPECT_GT(row->update.median, Seconds(0.0));
      // Two ranks, four rounds.
      EXPECT_EQ(row->forward.samples, 8);
      EXPECT_EQ(row->backward.samples, 8);
      EXPECT_EQ(row->update.samples, 8);
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

TEST_F(ProfilerOnTwoRanks, LinksAreStoredForEverySize) {
  ASSERT_EQ(run(2, "links --max-message 65536 --samples 4 --warm-up 1 --store " + store()), 0) << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->links.size(), 8U);  // 2 operations; 1, 4, 16, 64 KiB
  for (const LinkMeasurement& row : data->links) {
    EXPECT_EQ(row.scope, LinkScope::intra_node);
    EXPECT_EQ(row.ranks, 2);
    EXPECT_EQ(row.time.samples, 4);
    EXPECT_GT(row.time.median, Seconds(0.0));
  }
  const Profile profile(*data);
  EXPECT_TRUE(profile.send_time("cpu", "cpu", LinkScope::intra_node, 10.0 * kib));
  EXPECT_TRUE(profile.all_reduce_time("cpu", LinkScope::intra_node, 4, 10.0 * kib));
}

TEST_F(ProfilerOnTwoRanks, ScopeOptionOverridesTheNodes) {
  ASSERT_EQ(run(2, "links --max-message 1024 --samples 3 --scope inter-node --gpu A100-40 --store " + store()), 0)
      << err();
  auto data = load_profile(store());
  ASSERT_TRUE(data) << data.error().message();
  for (const LinkMeasurement& row : data->links) {
    EXPECT_EQ(row.scope, LinkScope::inter_node);
    EXPECT_EQ(row.from_gpu, "A100-40");
  }
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

TEST(LinkGroups, OneNodeHasAPairAndAllRanks) {
  EXPECT_EQ(link_groups({"a", "a"}, {}), (std::vector<LinkGroup>{{LinkScope::intra_node, {0, 1}}}));
  EXPECT_EQ(link_groups({"a", "a", "a"}, {}),
            (std::vector<LinkGroup>{{LinkScope::intra_node, {0, 1}}, {LinkScope::intra_node, {0, 1, 2}}}));
}

TEST(LinkGroups, TwoNodesAreMeasuredInsideAndBetween) {
  EXPECT_EQ(link_groups({"a", "a", "b", "b"}, {}), (std::vector<LinkGroup>{{LinkScope::intra_node, {0, 1}},
                                                                           {LinkScope::inter_node, {0, 2}},
                                                                           {LinkScope::inter_node, {0, 1, 2, 3}}}));
  EXPECT_EQ(link_groups({"a", "b"}, {}), (std::vector<LinkGroup>{{LinkScope::inter_node, {0, 1}}}));
}

TEST(LinkGroups, CyclicPlacementFindsTheNeighbourOnTheNode) {
  EXPECT_EQ(link_groups({"a", "b", "c", "a"}, {}), (std::vector<LinkGroup>{{LinkScope::intra_node, {0, 3}},
                                                                           {LinkScope::inter_node, {0, 1}},
                                                                           {LinkScope::inter_node, {0, 1, 2}},
                                                                           {LinkScope::inter_node, {0, 1, 2, 3}}}));
}

TEST(LinkGroups, GivenScopeTakesRanksAsTheyCome) {
  EXPECT_EQ(link_groups({"a", "a", "b"}, LinkScope::inter_node),
            (std::vector<LinkGroup>{{LinkScope::inter_node, {0, 1}}, {LinkScope::inter_node, {0, 1, 2}}}));
  EXPECT_TRUE(link_groups({"a"}, LinkScope::inter_node).empty());
}

TEST(MessageSizes, RiseByFourUpToTheLargest) {
  EXPECT_EQ(profiler::message_sizes(20.0 * kib), (std::vector<std::size_t>{1024, 4096, 16384}));
  EXPECT_EQ(profiler::message_sizes(kib), (std::vector<std::size_t>{1024}));
}

}  // namespace
}  // namespace sailor
