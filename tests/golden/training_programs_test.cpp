// The help of the programs that train.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/process.hpp"
#include "tests/golden/golden.hpp"

namespace sailor {
namespace {

std::string help_of(std::vector<std::string> arguments) {
  arguments.front() = std::string(SAILOR_BIN_DIR) + "/" + arguments.front();
  arguments.emplace_back("--help");
  const auto outcome = run_command({.arguments = arguments, .input = {}, .deadline = Seconds(60)});
  EXPECT_TRUE(outcome) << outcome.error().message();
  if (!outcome) return "";
  EXPECT_EQ(outcome->exit_status, 0) << outcome->errors;
  return outcome->output;
}

TEST(TrainingHelp, OfSailorController) {
  EXPECT_TRUE(testing::matches_golden("controller_help.txt", help_of({"sailor-controller"})));
}

TEST(TrainingHelp, OfSailorTrain) { EXPECT_TRUE(testing::matches_golden("train_help.txt", help_of({"sailor-train"}))); }

TEST(TrainingHelp, OfSailorCheck) { EXPECT_TRUE(testing::matches_golden("check_help.txt", help_of({"sailor-check"}))); }

TEST(TrainingHelp, OfSailorData) {
  EXPECT_TRUE(testing::matches_golden("data_help.txt", help_of({"sailor-data"})));
  EXPECT_TRUE(testing::matches_golden("data_help_bytes.txt", help_of({"sailor-data", "bytes"})));
  EXPECT_TRUE(testing::matches_golden("data_help_bpe.txt", help_of({"sailor-data", "bpe"})));
}

TEST(TrainingHelp, SailorTrainSaysWhatItCanRun) {
  const auto outcome = run_command({.arguments = {SAILOR_BIN_DIR "/sailor-train", "--version", "--format", "json"},
                                    .input = {},
                                    .deadline = Seconds(60)});
  ASSERT_TRUE(outcome) << outcome.error().message();
  const auto json = nlohmann::json::parse(outcome->output);
  EXPECT_EQ(json.at("program"), "sailor-train");
  for (const char* key : {"version", "architecture", "mpi"}) EXPECT_FALSE(json.at(key).get<std::string>().empty());
  EXPECT_EQ(json.at("devices").at(0).at("kind"), "cpu");
  const auto precisions = json.at("devices").at(0).at("precisions").get<std::vector<std::string>>();
  EXPECT_NE(std::find(precisions.begin(), precisions.end(), "bf16"), precisions.end());
  EXPECT_EQ(std::find(precisions.begin(), precisions.end(), "tf32"), precisions.end()) << "it refuses such plans";
  EXPECT_EQ(json.at("schedules").size(), 3U);
  EXPECT_EQ(json.at("optimizer_sharding").size(), 2U);
  EXPECT_EQ(json.at("recompute").size(), 3U);
  const auto options = json.at("options").get<std::vector<std::string>>();
  EXPECT_NE(std::find(options.begin(), options.end(), "--clip-norm"), options.end());
}

}  // namespace
}  // namespace sailor
