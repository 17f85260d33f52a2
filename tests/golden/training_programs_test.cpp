// The help of the programs that train, and what sailor-data puts around documents.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "core/process.hpp"
#include "tests/golden/golden.hpp"

namespace sailor::training_programs_test {
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

/// The tokens that sailor-data makes of a document "a" with the tokenizer of this name in tests/data; its message if it
/// fails.
std::string tokens_of_a(const std::string& tokenizer, const std::vector<std::string>& options) {
  const auto folder = std::filesystem::temp_directory_path() / ("sailor_data_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(write_file_atomically(folder / "a.txt", "a"));
  std::vector<std::string> arguments{SAILOR_BIN_DIR "/sailor-data",
                                     "bpe",
                                     "--tokenizer",
                                     SAILOR_SOURCE_DIR "/tests/data/" + tokenizer,
                                     "--output",
                                     (folder / "a").string(),
                                     (folder / "a.txt").string()};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const auto outcome = run_command({.arguments = arguments, .input = {}, .deadline = Seconds(60)});
  std::string shown;
  if (outcome && outcome->exit_status == 0) {
    const std::string bytes = read_text_file(folder / "a.bin").value_or("");
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2)
      shown += (i == 0 ? "" : " ") +
               std::to_string(static_cast<unsigned char>(bytes[i]) + 256 * static_cast<unsigned char>(bytes[i + 1]));
  } else if (outcome) {
    shown = outcome->errors;
  }
  std::filesystem::remove_all(folder);
  return shown;
}

TEST(SailorData, PutsTheTokensOfTheTokenizerAroundDocuments) {
  EXPECT_EQ(tokens_of_a("bpe_tokenizer.json", {}), "65 0");
  EXPECT_EQ(tokens_of_a("qwen2_tokenizer.json", {}), "64 700");
  EXPECT_EQ(tokens_of_a("llama3_tokenizer.json", {}), "701 64 702");
  EXPECT_EQ(tokens_of_a("llama3_tokenizer.json", {"--begin-of-document", "none", "--end-of-document", "none"}), "64");
  EXPECT_EQ(
      tokens_of_a("qwen2_tokenizer.json", {"--begin-of-document", "<|im_start|>", "--end-of-document", "<|im_end|>"}),
      "701 64 702");
  const std::string error = tokens_of_a("llama3_tokenizer.json", {"--begin-of-document", "<s>"});
  EXPECT_NE(error.find("the vocabulary has no token '<s>'; choose one with --begin-of-document (special tokens: "
                       "<|begin_of_text|>, <|end_of_text|>), or none"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace sailor::training_programs_test
