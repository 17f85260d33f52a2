// The programs on a terminal, which `script` makes: what fits its width, what is suggested next, and what Ctrl-C
// leaves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/output_fit.hpp"
#include "core/text.hpp"
#include "tests/golden/programs.hpp"

namespace sailor::testing::terminal_test {
namespace {

class OnTerminal : public ProgramsTest {
 protected:
  static ProcessOutcome in_shell(const std::string& command) {
    const std::string with_path = fmt::format("PATH={}:$PATH; {}", SAILOR_BIN_DIR, command);
    auto outcome = run_command({.arguments = {"bash", "-c", with_path}, .input = {}, .deadline = Seconds(120)});
    EXPECT_TRUE(outcome.has_value());
    return outcome.value_or(ProcessOutcome{});
  }

  /// What a shell command writes to a terminal of so many columns, as it stands there in the end: without progress that
  /// was erased.
  static std::string on_terminal(const std::string& command, int columns = 120) {
    const std::string written = bytes_on_terminal(command, columns);
    std::string text;
    for (std::size_t at = 0; at < written.size(); ++at) {
      constexpr std::string_view erase = "\r\033[K";
      if (std::string_view(written).substr(at).starts_with(erase)) {
        text.erase(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
        at += erase.size() - 1;
      } else if (written[at] != '\r') {
        text += written[at];
      }
    }
    return text;
  }
  static std::string bytes_on_terminal(const std::string& command, int columns) {
    const std::string in_width = fmt::format("stty cols {}; PATH={}:$PATH; {}", columns, SAILOR_BIN_DIR, command);
    auto outcome =
        run_command({.arguments = {"script", "-qec", in_width, "/dev/null"}, .input = {}, .deadline = Seconds(120)});
    EXPECT_TRUE(outcome.has_value());
    return outcome.value_or(ProcessOutcome{}).output;
  }

  /// The commands behind "next: ", without comments.
  static std::vector<std::string> next_of(const std::string& text) {
    std::vector<std::string> commands;
    for (const std::string& line : split(text, '\n'))
      if (line.starts_with("next: ")) commands.push_back(line.substr(6, line.find("  #") - 6));
    return commands;
  }

  /// Runs a suggested command as it stands.
  static void expect_works(const std::string& command) {
    const auto outcome = in_shell(command);
    EXPECT_TRUE(outcome.succeeded()) << command << "\n" << outcome.errors;
  }

  void write_sweep() const {
    write("little.toml", R"(schema_version = 1
name = "little"
title = "A little sweep"
profile = "published"
[[models]]
model = "opt-350m-sailor"
global_batch = 64
[[planners]]
planner = "sailor"
[[clusters]]
name = "four nodes"
gpus = [{ gpu = "A100-40", count = 16, zone = "us-central1-a" }]
[[clusters]]
name = "two nodes"
gpus = [{ gpu = "A100-40", count = 8, zone = "us-central1-a" }]
)");
  }

  static constexpr const char* planning =
      "sailor-plan --model opt-350m-sailor --global-batch 64 --gpus 2x4:A100-40,2x8:V100-16 --time-limit 1";
};

TEST_F(OnTerminal, OutputFitsItsWidth) {
  write_sweep();
  ASSERT_TRUE(in_shell(std::string(planning) + " -o plan.toml").succeeded());
  for (const std::string& command :
       {std::string(planning), std::string("sailor-simulate plan.toml"), std::string("sailor-profile show published"),
        std::string("sailor-profile show store.h5"), std::string("sailor-profile check published"),
        std::string("sailor-profile estimate --model tiny-gpt --gpu A100-40 --profile published"),
        std::string("sailor-sweep little.toml"), std::string("sailor models"), std::string("sailor gpus")})
    for (const int columns : {60, 80, 120}) {
      const std::string text = on_terminal(command + " 2>/dev/null", columns);
      EXPECT_GT(split(text, '\n').size(), 3U) << command;
      for (const std::string& line : split(text, '\n'))
        EXPECT_LE(text_width(line), static_cast<std::size_t>(columns)) << command << "\n" << line;
    }
}

TEST_F(OnTerminal, HelpFitsItsWidthBesidesCommandsToCopy) {
  for (const char* command : {"sailor-plan --help", "sailor-simulate --help", "sailor-profile show --help"}) {
    bool examples = false;
    for (const std::string& line : split(on_terminal(command, 70), '\n')) {
      examples = line == "Examples:" || (examples && line.starts_with("  "));
      if (examples) continue;
      EXPECT_LE(text_width(line), 70U) << line;
    }
  }
}

TEST_F(OnTerminal, ColumnsThatAreLeftOutAreNamedAndFilesHaveThem) {
  const std::string narrow = on_terminal("sailor-profile show store.h5 2>/dev/null", 60);
  EXPECT_NE(narrow.find("left out in 60 columns: "), std::string::npos) << narrow;
  EXPECT_NE(narrow.find("--format json"), std::string::npos) << narrow;
  for (const std::string& whole :
       {on_terminal("sailor-profile show store.h5 > file; cat file", 60),
        on_terminal("COLUMNS=400 sailor-profile show store.h5", 60), in_shell("sailor-profile show store.h5").output,
        in_shell("COLUMNS=60 sailor-profile show store.h5").output})
    EXPECT_EQ(whole.find("left out"), std::string::npos) << whole;
  // A terminal that does not say how wide it is, as those of mpirun.
  EXPECT_EQ(on_terminal("COLUMNS=60 sailor-profile show store.h5", 0).find("left out"), std::string::npos);
  EXPECT_EQ(on_terminal("sailor-profile show store.h5 --format json", 60).find("left out"), std::string::npos);
}

TEST_F(OnTerminal, ProgressIsOneLineThatIsErased) {
  const std::string bytes = bytes_on_terminal(
      "sailor-plan --model opt-350m --global-batch 512 --gpus 8x4:A100-40,8x4:V100-16 --profile published --time-limit "
      "2",
      40);
  std::size_t lines = 0;
  for (std::size_t at = bytes.find("\r\033[Kplanning"); at != std::string::npos; ++lines) {
    const std::size_t begin = at + 4;
    const std::size_t end = bytes.find('\r', begin);
    ASSERT_NE(end, std::string::npos) << "the last progress is not erased";
    EXPECT_LT(text_width(bytes.substr(begin, end - begin)), 40U) << bytes.substr(begin, end - begin);
    EXPECT_EQ(bytes.substr(end, 4), "\r\033[K");
    at = bytes.find("\r\033[Kplanning", begin);
  }
  EXPECT_GT(lines, 0U) << bytes;
  EXPECT_NE(bytes.find("s left, "), std::string::npos) << bytes;
  EXPECT_EQ(in_shell(std::string(planning)).errors.find('\033'), std::string::npos);
}

TEST_F(OnTerminal, SuggestedCommandsWorkAsTheyStand) {
  const std::string importing = "sailor-profile import published.toml --output 'my store.h5'";
  const std::string estimating = "sailor-profile estimate --model tiny-gpt --gpu A100-40 --profile store.h5";
  ASSERT_TRUE(in_shell("sailor-profile export published --output published.toml").succeeded());
  for (const std::string& command : {importing, estimating}) {
    const auto next = next_of(on_terminal(command));
    ASSERT_FALSE(next.empty()) << command;
    fs::remove("plan.toml");
    for (const std::string& suggested : next) expect_works(suggested);
    EXPECT_TRUE(fs::exists("plan.toml")) << command;
    EXPECT_TRUE(next_of(in_shell(command).errors).empty()) << "not on a terminal";
    EXPECT_TRUE(next_of(on_terminal(command + " >file")).empty()) << "stdout is no terminal";
  }
  EXPECT_TRUE(next_of(on_terminal(estimating + " --format json")).empty());
}

TEST_F(OnTerminal, SweepSuggestsThePlanOfItsFastestPoint) {
  write_sweep();
  const auto next = next_of(on_terminal("sailor-sweep little.toml -o 'an out'"));
  ASSERT_EQ(next.size(), 1U);
  expect_works(next.front());
  expect_works("sailor-simulate plan.toml");
  EXPECT_TRUE(next_of(on_terminal("sailor-sweep little.toml -o 'an out' --format csv")).empty());
}

TEST_F(OnTerminal, PlansAndTokensLeadToASubmission) {
  ASSERT_TRUE(plan({"-o", "my plan.toml"}).succeeded());
  const auto simulated =
      next_of(on_terminal("sailor-simulate 'my plan.toml' --profile store.h5 --cluster cluster.toml"));
  EXPECT_EQ(simulated, std::vector<std::string>{"sailor-submit 'my plan.toml' --data PREFIX --iterations N"});
  EXPECT_TRUE(next_of(on_terminal("sailor-simulate 'my plan.toml' --profile store.h5 --format json")).empty());
  write("text.txt", "some text to learn");
  const auto tokens = next_of(on_terminal("sailor-data bytes --output corpus text.txt"));
  ASSERT_EQ(tokens.size(), 2U);
  expect_works(tokens[0]);
  EXPECT_EQ(tokens[1], "sailor-submit plan.toml --data corpus --iterations 100");
}

TEST_F(OnTerminal, ATrainingLeadsToItsPredictionAndItsCheckpoints) {
  if (!fs::exists(SAILOR_BIN_DIR "/sailor-train")) GTEST_SKIP() << "sailor-train is not built: no MPI";
  write("text.txt", std::string(2000, 'x'));
  ASSERT_TRUE(plan({"--max-nodes", "1", "-o", "plan.toml"}).succeeded());
  ASSERT_TRUE(in_shell("sailor-data bytes --output corpus text.txt").succeeded());
  const std::string training =
      "sailor-train plan.toml --data corpus --run-file run.h5 --checkpoints 'kept here' --iterations ";
  const auto next = next_of(on_terminal(training + "3"));
  ASSERT_EQ(next, (std::vector<std::string>{"sailor-simulate plan.toml --against run.h5",
                                            "sailor-checkpoint list 'kept here'"}));
  for (const std::string& suggested : next) expect_works(suggested);
  EXPECT_TRUE(next_of(in_shell(training + "4").errors).empty()) << "not on a terminal";
  const auto listed = next_of(on_terminal(next[1]));
  ASSERT_EQ(listed.size(), 1U);
  expect_works(listed[0]);
  ASSERT_TRUE(in_shell("sailor-checkpoint export 'kept here' --to exported").succeeded());
  const auto imported =
      next_of(on_terminal("sailor-checkpoint import exported --model tiny-gpt --output start/iteration-00000000"));
  ASSERT_EQ(imported.size(), 2U);
  expect_works(imported[0]);
  EXPECT_EQ(
      imported[1],
      "sailor-submit plan.toml --data PREFIX --iterations N --train-option=--start-from=start/iteration-00000000");
}

TEST_F(OnTerminal, ACheckedPlanLeadsToASubmissionOnly) {
  if (!fs::exists(SAILOR_BIN_DIR "/sailor-check")) GTEST_SKIP() << "sailor-check is not built: no MPI";
  ASSERT_TRUE(plan({"--max-nodes", "1", "-o", "plan.toml"}).succeeded());
  const std::string checking = "env -u SLURM_JOB_ID sailor-check --time-budget 0.5 --plan plan.toml ";
  // Outside a job step the job fails, and no node is to blame.
  EXPECT_TRUE(next_of(on_terminal(checking)).empty());
  EXPECT_EQ(next_of(on_terminal(checking + "--skip plan")),
            std::vector<std::string>{"sailor-submit plan.toml --data PREFIX --iterations N"});
}

TEST_F(OnTerminal, AControllerNamesTheCommandOfTheRanks) {
  ASSERT_TRUE(plan({"-o", "plan.toml"}).succeeded());
  const auto next = next_of(on_terminal(
      "timeout --foreground -s INT 3 env -u SLURM_JOB_ID --default-signal=INT sailor-controller run --plan plan.toml"));
  EXPECT_EQ(next, std::vector<std::string>{"sailor-train plan.toml --elastic run --data PREFIX"});
}

TEST_F(OnTerminal, CtrlCSaysHowToGoOnWatching) {
  const std::string watching = on_terminal(
      "timeout --foreground -s INT 4 env --default-signal=INT sailor-plan --model tiny-gpt --global-batch 8 "
      "--sequence-length 64 --profile store.h5 "
      "--cluster cluster.toml --watch --interval 60");
  EXPECT_NE(watching.find("no longer watching; the same command watches on"), std::string::npos) << watching;
}

}  // namespace
}  // namespace sailor::testing::terminal_test
