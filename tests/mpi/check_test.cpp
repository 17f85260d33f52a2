// sailor-check on ranks of this machine that say they are on several nodes.
#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "core/files.hpp"
#include "runtime/mpi/mpi_session.hpp"
#include "tests/mpi/mpi_test.hpp"

namespace sailor {
namespace {

class NodeCheckOnRanks : public MpiTest {
 protected:
  /// The result as JSON of a rank on each of these nodes.
  nlohmann::json check(const std::vector<std::string>& nodes, const std::string& options = "") {
    std::string line = SAILOR_MPIEXEC;
    if (runtime::MpiSession::version().starts_with("Open MPI")) line += " --oversubscribe";
    for (std::size_t rank = 0; rank < nodes.size(); ++rank)
      line += fmt::format(
          "{} -n 1 env SLURMD_NODENAME={} {}/sailor-check --format json --skip load,memory,space --message 65536 "
          "--time-budget 0.5 --slower-than-median 1 {}",
          rank == 0 ? "" : " :", nodes[rank], SAILOR_BIN_DIR, options);
    line += fmt::format(" >{} 2>{}", path("out"), path("err"));
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << read_text_file(path("err")).value_or("") << read_text_file(path("out")).value_or("").substr(0, 2000);
    const auto json = nlohmann::json::parse(read_text_file(path("out")).value_or(""), nullptr, false);
    EXPECT_FALSE(json.is_discarded());
    return json.is_discarded() ? nlohmann::json::object() : json;
  }
};

TEST_F(NodeCheckOnRanks, MeasuresTheRingOfNodesAndTheirSums) {
  // An odd ring: its last link meets the first again. The ranks of n1 do not follow one another.
  const nlohmann::json json = check({"n1", "n2", "n3", "n1", "n4", "n5"});
  std::set<std::tuple<std::string, int, int, int>> links;
  for (const auto& link : json.value("links", nlohmann::json::array())) {
    links.emplace(link.at("kind").get<std::string>(), link.at("from_rank").get<int>(), link.at("to_rank").get<int>(),
                  link.at("ranks").get<int>());
    EXPECT_GT(link.at("bandwidth_bytes_per_s").get<double>(), 0.0);
  }
  EXPECT_EQ(links, (std::set<std::tuple<std::string, int, int, int>>{{"send", 0, 1, 2},
                                                                     {"send", 1, 2, 2},
                                                                     {"send", 2, 4, 2},
                                                                     {"send", 4, 5, 2},
                                                                     {"send", 5, 0, 2},
                                                                     {"all_reduce_within_node", 0, 3, 2},
                                                                     {"all_reduce_between_nodes", 0, 5, 5},
                                                                     {"all_reduce_all", 0, 5, 6}}));
  ASSERT_EQ(json.value("nodes", nlohmann::json::array()).size(), 5U);
  EXPECT_EQ(json.at("nodes")[0].at("ranks"), nlohmann::json({0, 3}));
}

TEST_F(NodeCheckOnRanks, MeasuresGpusWhereEveryRankHasOne) {
  if (!use_emulated_gpus(2)) GTEST_SKIP() << "built without Boost.Context, which GPUs are emulated with";
  const auto measured = [&](const std::vector<std::string>& nodes, const std::string& options = {}) {
    const nlohmann::json json = check(nodes, options);
    std::vector<bool> on_gpus;
    for (const auto& rank : json.value("ranks", nlohmann::json::array())) {
      EXPECT_GT(rank.at("speed").at("flop_per_s").get<double>(), 0.0);
      on_gpus.push_back(rank.at("speed").at("flop_per_cpu_s").get<double>() == 0.0);
    }
    for (const auto& link : json.value("links", nlohmann::json::array()))
      EXPECT_GT(link.at("bandwidth_bytes_per_s").get<double>(), 0.0);
    return on_gpus;
  };
  EXPECT_EQ(measured({"n1", "n2"}), (std::vector<bool>{true, true}));
  EXPECT_EQ(measured({"n1", "n2"}, "--device cpu"), (std::vector<bool>{false, false}));
  EXPECT_EQ(measured({"n1", "n2", "n3"}), (std::vector<bool>{false, false, false}));  // fewer GPUs than ranks
  EXPECT_NE(read_text_file(path("out")).value_or("").find("has 2 GPUs for more than 2 ranks"), std::string::npos);
}

TEST_F(NodeCheckOnRanks, OneNodeIsCheckedWithoutMpiInOneLine) {
  // The driver's library and CUDA's GPUs are both fakes, which agree on where the GPUs are.
  const auto check_node = [&](const std::string& errors_of_second, const std::string& options) {
    std::string gpus;
    for (int i = 0; i < 2; ++i)
      gpus += fmt::format("NVIDIA H200|GPU-{0}|00000000:0{0}:00.0|143771|0|27|1980|1980|1|{1}|0|0|0|700000|700000\n", i,
                          i == 0 ? "0" : errors_of_second);
    EXPECT_TRUE(write_file_atomically(path("gpus"), gpus));
    const int status =
        std::system(fmt::format("SLURMD_NODENAME=n1 LD_LIBRARY_PATH={}/nvml FAKE_NVML={} "
                                "{}/sailor-check --nhc --skip load,memory,space,network-cards,fabric "
                                "--time-budget 0.2 --slower-than-median 1 {} >{} 2>{}",
                                SAILOR_TESTS_DIR, path("gpus"), SAILOR_BIN_DIR, options, path("out"), path("err"))
                        .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const auto out = [&] { return read_text_file(path("out")).value_or(""); };
  const bool emulated = use_emulated_gpus(2);
  EXPECT_EQ(check_node("0", ""), 0) << read_text_file(path("err")).value_or("");
  EXPECT_EQ(out(), "ok: n1\n");
  EXPECT_EQ(check_node("3", ""), 5);
  const std::string line = out();
  EXPECT_TRUE(line.starts_with("fail: n1: ecc: rank 1 (GPU-1): 3 memory errors that could not be corrected")) << line;
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(check_node("0", "--plan plan.toml"), 2);
  EXPECT_EQ(check_node("0", "--gpus-per-node 2"), 0);
  EXPECT_EQ(check_node("0", "--gpus-per-node 3"), 5);
  EXPECT_EQ(out(), "fail: n1: gpu-count: NVIDIA's driver finds 2 of 3 GPUs\n");
  if (!emulated) GTEST_SKIP() << "built without Boost.Context, which GPUs are emulated with";
  EXPECT_EQ(check_node("0", "--format json"), 0);
  const auto json = nlohmann::json::parse(out(), nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << out();
  ASSERT_EQ(json.at("ranks").size(), 2U);
  for (const auto& rank : json.at("ranks")) EXPECT_GT(rank.at("speed").at("flop_per_s").get<double>(), 0.0);
}

TEST_F(NodeCheckOnRanks, OneRankOfEachNodeWritesAndNothingStays) {
  const std::filesystem::path folder = path("scratch");
  std::filesystem::create_directory(folder);
  const nlohmann::json json =
      check({"n1", "n1", "n2"}, fmt::format("--write-size 100000 --write-to {}", folder.string()));
  const auto ranks = json.value("ranks", nlohmann::json::array());
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_TRUE(ranks[1].at("writing").is_null());
  for (const std::size_t rank : {0U, 2U}) {
    const nlohmann::json& writing = ranks[rank].at("writing");
    EXPECT_EQ(writing.at("folder"), folder.string());
    EXPECT_EQ(writing.at("amount_bytes"), 100000.0);
    EXPECT_GT(writing.at("bytes_per_s").get<double>(), 0.0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace sailor
