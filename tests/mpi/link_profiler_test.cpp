// sailor-profile links on ranks of this machine that say they are on several nodes, with several GPU types.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "core/files.hpp"
#include "profile/profile.hpp"
#include "profile/store.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;

class LinkProfiler : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sailor-links-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::string catalogue = "schema_version = 1\n";
    for (const char* name : {"cpu", "A", "B"})
      catalogue += fmt::format(
          "[[gpus]]\nname = \"{}\"\nkind = \"cpu\"\npeak_fp32_flop_per_s = 1e10\nprice_usd_per_hour = 0.0\n"
          "memory_bandwidth_bytes_per_s = 1e10\nsource = \"a test\"\n",
          name);
    ASSERT_TRUE(write_file_atomically(folder_ / "gpus.toml", catalogue));
    // Containers run tests as root.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  struct FakeRank {
    std::string node;
    std::string gpu;
    std::string zone;
  };

  /// Measures with a rank for each entry and reads the store.
  ProfileData measure(const std::vector<FakeRank>& ranks, const std::string& arguments) {
    const bool is_open_mpi = runtime::MpiSession::version().starts_with("Open MPI");
    std::string line = std::string(SAILOR_MPIEXEC) + (is_open_mpi ? " --oversubscribe" : "");
    for (std::size_t i = 0; i < ranks.size(); ++i)
      line += fmt::format(
          "{} -n 1 env SLURMD_NODENAME={} SAILOR_GPU={} {} {}/sailor-profile links --gpus {} --store {} {}",
          i == 0 ? "" : " :", ranks[i].node, ranks[i].gpu, ranks[i].zone.empty() ? "" : "SAILOR_ZONE=" + ranks[i].zone,
          SAILOR_BIN_DIR, (folder_ / "gpus.toml").string(), store(), arguments);
    line += fmt::format(" >{}/out 2>{}/err", folder_.string(), folder_.string());
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << err();
    auto data = load_profile(store());
    EXPECT_TRUE(data) << data.error().message();
    return data ? *data : ProfileData();
  }
  [[nodiscard]] std::string out() const { return read_text_file(folder_ / "out").value_or(""); }
  [[nodiscard]] std::string err() const { return read_text_file(folder_ / "err").value_or(""); }
  [[nodiscard]] std::string store() const { return (folder_ / "store").string(); }

  fs::path folder_;
};

TEST_F(LinkProfiler, EveryOperationIsStoredForEverySizeWithAFit) {
  const ProfileData data = measure({{"a", "cpu", ""}, {"a", "cpu", ""}}, "--max-message 65536 --samples 4 --warm-up 1");
  EXPECT_EQ(data.links.size(), 16U);  // 4 operations; 1, 4, 16, 64 KiB
  std::map<LinkOperation, std::set<double>> sizes;
  for (const LinkMeasurement& row : data.links) {
    EXPECT_EQ(row.key.scope, LinkScope::intra_node);
    EXPECT_EQ(row.key.ranks, 2);
    EXPECT_EQ(row.key.from, row.key.to);
    EXPECT_EQ(row.key.from.ranks, row.key.operation == LinkOperation::send_receive ? 1 : 2);
    EXPECT_GE(row.time.samples, 4);
    EXPECT_GT(row.time.median, Seconds(0.0));
    EXPECT_LE(row.time.low, row.time.median);
    EXPECT_GE(row.time.high, row.time.median);
    sizes[row.key.operation].insert(row.message.value());
  }
  for (const LinkOperation operation : {LinkOperation::send_receive, LinkOperation::all_reduce,
                                        LinkOperation::all_gather, LinkOperation::reduce_scatter})
    EXPECT_EQ(sizes[operation], (std::set<double>{1024, 4096, 16384, 65536})) << to_string(operation);
  ASSERT_EQ(data.fits.size(), 4U);
  for (const LinkFit& fit : data.fits) {
    EXPECT_EQ(fit.points, 4);
    EXPECT_LE(fit.median_error, fit.largest_error);
    EXPECT_GT(fit.curve.largest_bandwidth.value(), 0.0);
  }
  EXPECT_NE(err().find("4 curves x 4 sizes to 64.0 KiB"), std::string::npos) << err();
  EXPECT_NE(out().find("Link fits"), std::string::npos) << out();
  const Profile profile(data);
  EXPECT_TRUE(profile.send_time({.gpu = "cpu"}, {.gpu = "cpu"}, LinkScope::intra_node, 10.0 * kib));
  EXPECT_TRUE(profile.all_reduce_time({.gpu = "cpu"}, {.gpu = "cpu"}, LinkScope::intra_node, 4, 10.0 * kib));
}

TEST_F(LinkProfiler, TwoTypesInTwoZonesAreMeasuredBothWaysAndTogether) {
  const ProfileData data = measure({{"a", "A", "east"}, {"a", "A", "east"}, {"b", "B", "west"}, {"b", "B", "west"}},
                                   "--max-message 16384 --samples 3 --warm-up 0");
  std::set<std::string> keys;
  for (const LinkFit& fit : data.fits) {
    const LinkKey& key = fit.key;
    keys.insert(fmt::format("{} {} {}@{}*{} {}@{}*{} {}", to_string(key.scope), to_string(key.operation), key.from.gpu,
                            key.from.zone, key.from.ranks, key.to.gpu, key.to.zone, key.to.ranks, key.ranks));
  }
  for (const char* expected :
       {"intra_node send_receive A@east*1 A@east*1 2", "intra_node send_receive B@west*1 B@west*1 2",
        "intra_node all_reduce A@east*2 A@east*2 2", "intra_node all_gather B@west*2 B@west*2 2",
        "inter_node send_receive A@east*1 B@west*1 2", "inter_node send_receive B@west*1 A@east*1 2",
        "inter_node send_receive A@east*2 B@west*2 2", "inter_node send_receive B@west*2 A@east*2 2",
        "inter_node reduce_scatter A@east*1 B@west*1 2", "inter_node all_reduce A@east*2 B@west*2 4"})
    EXPECT_TRUE(keys.contains(expected)) << expected;
  // Inside: 2 types x 4. Between: 2 directions and 3 collectives, with 1 and with 2 ranks a node.
  EXPECT_EQ(keys.size(), 18U);
  EXPECT_EQ(data.links.size(), 18U * 3);
}

TEST_F(LinkProfiler, ScopeOptionOverridesTheNodes) {
  const ProfileData data =
      measure({{"a", "A", ""}, {"a", "A", ""}}, "--max-message 1024 --samples 3 --scope inter-node");
  EXPECT_EQ(data.links.size(), 4U);
  EXPECT_TRUE(data.fits.empty());  // one size is no curve
  for (const LinkMeasurement& row : data.links) {
    EXPECT_EQ(row.key.scope, LinkScope::inter_node);
    EXPECT_EQ(row.key.from.gpu, "A");
  }
}

TEST_F(LinkProfiler, SizesThatTakeTooLongAreLeftOutAndThatIsSaid) {
  // Nothing fits into no time but the three sizes that a curve needs.
  const ProfileData data =
      measure({{"a", "cpu", ""}, {"a", "cpu", ""}}, "--max-message 1048576 --time-budget 0 --samples 3 --warm-up 0");
  EXPECT_EQ(data.links.size(), 4U * 3);
  EXPECT_NE(err().find("4 of 4 curves end before the largest message"), std::string::npos) << err();
}

}  // namespace
}  // namespace sailor
