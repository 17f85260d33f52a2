// What sailor-profile show, check and diff print, against files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/process.hpp"
#include "profile/store.hpp"
#include "tests/fakes/round_numbers.hpp"
#include "tests/golden/golden.hpp"

namespace sailor::profile_reports_test {
namespace {

namespace fs = std::filesystem;

TimeStatistics spread(double median) {
  return {.median = Seconds(median),
          .p10 = Seconds(median * 0.96),
          .p90 = Seconds(median * 1.05),
          .low = Seconds(median * 0.98),
          .high = Seconds(median * 1.03),
          .samples = 24};
}

/// Two sessions (that never grow old), two GPU types, all tables; some of it suspicious. `scale` slows the blocks down.
ProfileData sample(double scale) {
  ProfileData data;
  data.sessions = {
      {.id = "layers",
       .provenance = {.tool = "sailor-profile 0.1.0", .host = "nid001", .date = "2099-01-02T03:04:05Z"},
       .lowest_clock_hz = 1.2e9,
       .highest_clock_hz = 1.98e9,
       .slowdown = 1.25},
      {.id = "links", .provenance = {.tool = "sailor-profile 0.1.0", .host = "nid001,nid002", .date = "2099-01-03"}}};
  for (const auto& [gpu, speed] : {std::pair("A100-40", 1.0), std::pair("V100-16", 2.0)})
    for (const int tensor_parallel : {1, 2, 4})
      for (const int micro_batch : {1, 2, 8})
        for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
          const LayerKey key{.model = "tiny-gpt",
                             .gpu = gpu,
                             .tensor_parallel = tensor_parallel,
                             .micro_batch = micro_batch,
                             .sequence_length = 64,
                             .kind = kind};
          if (speed == 2.0 && tensor_parallel == 1 && micro_batch == 8) {
            if (kind == LayerKind::block)
              data.out_of_memory.push_back({.key = key, .needed = Bytes(20e9), .available = Bytes(16e9)});
            continue;
          }
          const double forward = 1e-3 * speed * micro_batch / (tensor_parallel == 4 ? 1.5 : tensor_parallel) *
                                 (kind == LayerKind::block ? scale : 1.0);
          data.layer_times.push_back({.key = key,
                                      .forward = spread(forward),
                                      .backward = spread(2.0 * forward),
                                      .update = TimeStatistics::single(Seconds(1e-3)),
                                      .cold_forward = spread(1.2 * forward),
                                      .cold_backward = spread(2.1 * forward)});
          if (micro_batch == 1)
            data.layer_memory.push_back({.key = key,
                                         .parameters = 1000 / tensor_parallel,
                                         .activation = mib * 3,
                                         .output = mib,
                                         .input = mib,
                                         .workspace = kib});
        }
  const LinkKey link{.from = {.gpu = "A100-40"}, .to = {.gpu = "V100-16"}, .scope = LinkScope::inter_node};
  for (double bytes = 1024; bytes <= 64.0 * 1024 * 1024; bytes *= 4)
    data.links.push_back({.key = link, .message = Bytes(bytes), .time = spread(5e-6 + bytes / 1e9), .session = 1});
  data.fits.push_back({.key = link,
                       .curve = {.constant = 1.0,
                                 .largest_bandwidth = BytesPerSecond(1e9),
                                 .smallest_message = kib * 64,
                                 .largest_message = mib * 64,
                                 .latency = Seconds(5e-6)},
                       .median_error = 0.02,
                       .largest_error = 0.21,
                       .points = 9,
                       .session = 1});
  data.processes.push_back({.gpu = "A100-40", .framework = "sailor", .base_memory = mib * 300, .session = 1});
  return data;
}

class ProfileReports : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sailor_reports_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::current_path(folder_);
    ASSERT_TRUE(save_profile(sample(1.0), "a.h5").has_value());
    ASSERT_TRUE(save_profile(sample(1.1), "b.h5").has_value());
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(folder_);
  }
  static ProcessOutcome run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SAILOR_BIN_DIR "/sailor-profile");
    auto outcome = run_command({.arguments = std::move(arguments), .input = {}, .deadline = Seconds(60)});
    EXPECT_TRUE(outcome.has_value());
    return outcome.value_or(ProcessOutcome{});
  }
  static void expect_golden(const std::string& name, std::vector<std::string> arguments, int status = 0) {
    const auto outcome = run(std::move(arguments));
    EXPECT_EQ(outcome.exit_status, status) << outcome.errors;
    EXPECT_TRUE(testing::matches_golden(name, outcome.output));
  }
  fs::path folder_;
};

TEST_F(ProfileReports, ShowSummarisesLongTables) { expect_golden("profile_show.txt", {"show", "a.h5"}); }

TEST_F(ProfileReports, ShowListsEveryRow) {
  expect_golden("profile_show_all.txt", {"show", "a.h5", "--all", "--gpu", "V100-16"});
}

TEST_F(ProfileReports, JsonHasTheFieldsOfTheSchema) {
  expect_golden("profile_show.json", {"show", "a.h5", "--format", "json", "--table", "link_fits,processes"});
}

TEST_F(ProfileReports, CheckNamesWhatIsSuspicious) { expect_golden("profile_check.txt", {"check", "a.h5"}); }

TEST_F(ProfileReports, StrictCheckFails) {
  const auto outcome = run({"check", "a.h5", "--strict"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.errors.find("a.h5 has 0 failures and "), std::string::npos) << outcome.errors;
}

TEST_F(ProfileReports, DiffComparesStores) {
  expect_golden("profile_diff.txt", {"diff", "a.h5", "b.h5", "--threshold", "5%"});
  expect_golden("profile_diff_same.txt", {"diff", "a.h5", "a.h5"});
}

TEST_F(ProfileReports, FiltersThatSelectNothingSayWhatIsThere) {
  const auto outcome = run({"show", "a.h5", "--gpu", "V100-32"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.errors.find("the store has nothing of GPU 'V100-32' (there: A100-40, V100-16); did you mean "
                                "'V100-16'?"),
            std::string::npos)
      << outcome.errors;
}

TEST_F(ProfileReports, BadThresholdsAreUsageErrors) {
  for (const char* text : {"-1%", "x", "5%%", "", "nan"})
    EXPECT_EQ(run({"diff", "a.h5", "b.h5", "--threshold", text}).exit_status, 2) << text;
}

TEST_F(ProfileReports, HelpOfTheCommands) {
  for (const char* command : {"show", "check", "diff"})
    expect_golden(std::string("profile_help_") + command + ".txt", {command, "--help"});
}

}  // namespace
}  // namespace sailor::profile_reports_test
