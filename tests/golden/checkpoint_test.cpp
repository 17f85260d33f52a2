// sailor-checkpoint as a user meets it: help, tables, exit status and messages.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/process.hpp"
#include "runtime/checkpoint/hugging_face.hpp"
#include "tests/golden/golden.hpp"

namespace sailor::checkpoint_test {
namespace {

namespace fs = std::filesystem;

class CheckpointProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("sailor_checkpoint_program_{}", ::getpid());
    fs::create_directories(folder_);
    fs::current_path(folder_);
    const auto model = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models");
    ASSERT_TRUE(model.has_value());
    for (const char* name : {"iteration-00000000", "iteration-00000000.2"})
      ASSERT_TRUE(runtime::write_imported_checkpoint(
          fs::path("checkpoints") / name, *model, "this test", runtime::whole_tensors(*model),
          [](const runtime::WholeTensor& tensor) -> Result<std::vector<float>> {
            return std::vector<float>(static_cast<std::size_t>(runtime::element_count(tensor.shape)), 0.5f);
          }));
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(folder_);
  }

  static ProcessOutcome run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SAILOR_BIN_DIR "/sailor-checkpoint");
    auto outcome = run_command({.arguments = std::move(arguments), .input = {}, .deadline = Seconds(60)});
    EXPECT_TRUE(outcome.has_value());
    return outcome.value_or(ProcessOutcome{});
  }
  static void expect_failure(const ProcessOutcome& outcome, int status, const std::string& message) {
    EXPECT_EQ(outcome.exit_status, status) << outcome.errors;
    EXPECT_NE(outcome.errors.find(message), std::string::npos) << outcome.errors;
  }
  /// The newest checkpoint, with one byte changed.
  static void damage() {
    std::fstream file("checkpoints/iteration-00000000.2/rank-00000.bin",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1234);
    file.put('x');
    ASSERT_TRUE(file.good());
  }

  fs::path folder_;
};

TEST_F(CheckpointProgram, Help) {
  EXPECT_TRUE(testing::matches_golden("checkpoint_help.txt", run({"--help"}).output));
  for (const char* command : {"list", "verify", "export", "import"})
    EXPECT_TRUE(
        testing::matches_golden(fmt::format("checkpoint_help_{}.txt", command), run({command, "--help"}).output));
}

TEST_F(CheckpointProgram, ListsTheNewestFirstAndWhatIsNone) {
  fs::create_directories("checkpoints/iteration-00000007");
  const auto outcome = run({"list", "checkpoints"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  // 842,496 parameters of 4 bytes.
  EXPECT_EQ(
      outcome.output,
      "checkpoint            iteration      size  model     source\n" + std::string(138, '-') +
          "\n"
          "iteration-00000000.2          0  3.21 MiB  tiny-gpt  this test\n"
          "iteration-00000000            0  3.21 MiB  tiny-gpt  this test\n"
          "iteration-00000007            -         -  -         not valid: 'checkpoints/iteration-00000007' is no "
          "checkpoint: it has no manifest.json\n");
  const auto json = nlohmann::json::parse(run({"list", "checkpoints", "--format", "json"}).output);
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json[0]["path"], "checkpoints/iteration-00000000.2");
  EXPECT_EQ(json[0]["valid"], true);
  EXPECT_EQ(json[2]["valid"], false);
}

TEST_F(CheckpointProgram, VerifyNoticesAChangedByteAndNamesTheOneBefore) {
  const auto good = run({"verify", "checkpoints"});
  EXPECT_EQ(good.exit_status, 0) << good.errors;
  EXPECT_EQ(good.output,
            "checkpoints/iteration-00000000.2: good; iteration 0, model tiny-gpt, 3.21 MiB in 52 tensors and 1 file\n");
  damage();
  const auto bad = run({"verify", "checkpoints"});
  expect_failure(bad, 1,
                 "sailor-checkpoint: error: 'checkpoints/iteration-00000000.2/rank-00000.bin' is damaged: bytes");
  expect_failure(bad, 1, "checkpoints/iteration-00000000', the newest one before it");
  expect_failure(run({"export", "checkpoints", "--to", "out"}), 1, "is damaged");
  EXPECT_FALSE(fs::exists("out/model.safetensors"));
  EXPECT_EQ(run({"verify", "checkpoints/iteration-00000000"}).exit_status, 0);
}

TEST_F(CheckpointProgram, ExportsAndImports) {
  const auto exported = run({"export", "checkpoints", "--to", "out"});
  ASSERT_EQ(exported.exit_status, 0) << exported.errors;
  const auto imported = run({"import", "out", "--model", "tiny-gpt", "--output", "start/iteration-00000000"});
  ASSERT_EQ(imported.exit_status, 0) << imported.errors;
  EXPECT_EQ(run({"verify", "start"}).exit_status, 0);
  expect_failure(run({"import", "out", "--model", "tiny-gpt", "--output", "start/iteration-00000000"}), 1,
                 "File exists; name a folder that is not there yet");
  expect_failure(run({"import", "out", "--model", "opt-mini", "--output", "other"}), 1,
                 "'out/config.json' does not describe model 'opt-mini': model_type is \"gpt2\" instead of \"opt\"");
  EXPECT_FALSE(fs::exists("other"));
}

TEST_F(CheckpointProgram, MistakesHaveTheirStatusAndAWayOut) {
  expect_failure(run({}), 2, "which command?");
  expect_failure(run({"export", "checkpoints"}), 2, "--to is missing");
  expect_failure(run({"import", "out", "--model", "tiny-gpt"}), 2, "--output is missing");
  expect_failure(run({"list"}), 2, "FOLDER");
  expect_failure(run({"list", "nowhere"}), 1, "there is no folder 'nowhere'");
  expect_failure(run({"verify", "nowhere"}), 1, "there is no checkpoint 'nowhere'");
  fs::create_directories("empty");
  expect_failure(run({"verify", "empty"}), 1, "'empty' has no valid checkpoint");
  expect_failure(run({"export", "checkpoints", "--to", "out", "--model", "opt-mini"}), 1,
                 "is of model 'tiny-gpt', which is not 'opt-mini'");
}

}  // namespace
}  // namespace sailor::checkpoint_test
