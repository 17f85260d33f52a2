// The help of the programs that train.
#include <gtest/gtest.h>

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

TEST(TrainingHelp, OfSailorTrain) { EXPECT_TRUE(testing::matches_golden("train_help.txt", help_of({"sailor-train"}))); }

TEST(TrainingHelp, OfSailorCheck) { EXPECT_TRUE(testing::matches_golden("check_help.txt", help_of({"sailor-check"}))); }

TEST(TrainingHelp, OfSailorData) {
  EXPECT_TRUE(testing::matches_golden("data_help.txt", help_of({"sailor-data"})));
  EXPECT_TRUE(testing::matches_golden("data_help_bytes.txt", help_of({"sailor-data", "bytes"})));
  EXPECT_TRUE(testing::matches_golden("data_help_bpe.txt", help_of({"sailor-data", "bpe"})));
}

}  // namespace
}  // namespace sailor
