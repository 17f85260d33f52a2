// sailor-sweep as a user meets it, with a planner that only pretends (tests/fakes/sailor_plan.py).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/text.hpp"
#include "slurm/command_array.hpp"
#include "tests/golden/golden.hpp"
#include "tests/golden/programs.hpp"

namespace sailor::testing::sweep_test {
namespace {

constexpr const char* head = R"(schema_version = 1
name = "little"
title = "A little sweep"
time_limit_s = 20
[[models]]
model = "opt-350m-sailor"
global_batch = 1024
)";

class SweepProgram : public ProgramsTest {
 protected:
  void SetUp() override {
    ProgramsTest::SetUp();
    ::setenv("FAKE_COUNT_FILE", (folder_ / "counted.txt").c_str(), 1);
    ::setenv("FAKE_SLOW_S", "30", 1);
  }

  /// An experiment with these planners on so many clusters.
  void write_experiment(const std::vector<std::string>& planners, int clusters) const {
    std::string text = head;
    for (const std::string& planner : planners) text += "[[planners]]\nplanner = \"" + planner + "\"\n";
    for (int i = 1; i <= clusters; ++i)
      text += "[[clusters]]\nname = \"" + std::to_string(i) +
              "\"\ngpus = [{ gpu = \"A100-40\", count = " + std::to_string(4 * i) + ", zone = \"us-central1-a\" }]\n";
    write("little.toml", text);
  }

  static ProcessOutcome sweep(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"little.toml", "-o", "out", "--sailor-plan",
                                       SAILOR_SOURCE_DIR "/tests/fakes/sailor_plan.py"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run("sailor-sweep", arguments);
  }

  std::size_t counted() const {
    const auto text = read_text_file(folder_ / "counted.txt");
    return text ? split(*text, '\n').size() : 0;
  }

  std::string csv() const { return read_text_file(folder_ / "out/little.csv").value_or(""); }
};

TEST_F(SweepProgram, HelpIsAsExpected) {
  const auto outcome = run("sailor-sweep", {"--help"});
  EXPECT_TRUE(outcome.succeeded());
  EXPECT_TRUE(matches_golden("sweep_help.txt", outcome.output));
}

TEST_F(SweepProgram, ListsItsPointsWithoutRunningThem) {
  write_experiment({"counted"}, 3);
  const auto outcome = sweep({"--dry-run"});
  EXPECT_TRUE(outcome.succeeded()) << outcome.errors;
  EXPECT_NE(outcome.output.find("3 points: 3 to do"), std::string::npos) << outcome.output;
  EXPECT_EQ(counted(), 0U);
  EXPECT_FALSE(fs::exists("out"));
}

TEST_F(SweepProgram, DividesCoresAmongItsOwnPlannersOnly) {
  write_experiment({"sailor", "counted"}, 1);
  const auto json = nlohmann::json::parse(sweep({"--dry-run", "--format", "json"}).output);
  const auto has_threads = [&](std::size_t point) {
    const auto& words = json["points"][point]["command"];
    return std::find(words.begin(), words.end(), "--threads") != words.end();
  };
  EXPECT_TRUE(has_threads(0));
  EXPECT_FALSE(has_threads(1)) << "sailor-plan refuses --threads with --planner";
}

TEST_F(SweepProgram, DoesFinishedPointsOnceOnly) {
  write_experiment({"counted"}, 3);
  EXPECT_TRUE(sweep().succeeded());
  EXPECT_EQ(counted(), 3U);
  const std::string first = csv();
  EXPECT_TRUE(sweep().succeeded());
  EXPECT_EQ(counted(), 3U);
  EXPECT_EQ(csv(), first);
  write_experiment({"counted"}, 4);  // a point more
  EXPECT_TRUE(sweep().succeeded());
  EXPECT_EQ(counted(), 4U);
  EXPECT_TRUE(sweep({"--again"}).succeeded());
  EXPECT_EQ(counted(), 8U);
}

TEST_F(SweepProgram, TellsWhichPointsFailedAndGoesOn) {
  write_experiment({"crash", "garbage", "none", "nonsense", "counted"}, 1);
  const auto outcome = sweep({"--format", "json"});
  EXPECT_EQ(outcome.exit_status, 1);
  const auto json = nlohmann::json::parse(outcome.output);
  ASSERT_EQ(json["points"].size(), 5U);
  const auto said = [&](std::size_t i) {
    return json["points"][i]["status"].get<std::string>() + ": " + json["points"][i]["why"].get<std::string>();
  };
  EXPECT_EQ(said(0), "failed: signal 11 (Segmentation fault)");
  EXPECT_EQ(said(1), "failed: sailor-plan wrote no JSON");
  EXPECT_EQ(said(2), "no plan: no plan fits into memory");
  EXPECT_EQ(said(3), "failed: there is no planner 'nonsense'; one of: amp (exit status 1)");
  EXPECT_EQ(said(4), "plan: ");
  EXPECT_EQ(json["points"][4]["throughput_iterations_per_s"], 0.5);
  // What failed is tried again, what has an answer is not.
  const auto again = sweep({"--dry-run"});
  EXPECT_NE(again.output.find("5 points: 3 to do"), std::string::npos) << again.output;
}

TEST_F(SweepProgram, EndsWithStatusThreeWhereNoPointHasAPlan) {
  write_experiment({"none"}, 2);
  EXPECT_EQ(sweep().exit_status, 3);
}

TEST_F(SweepProgram, CutsAPointThatTakesTooLong) {
  write_experiment({"slow"}, 1);
  auto text = read_text_file("little.toml").value();
  text.replace(text.find("time_limit_s = 20"), 17, "time_limit_s = 1 ");
  write("little.toml", text);
  const auto outcome = sweep();
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.output.find("no answer within 1 s"), std::string::npos) << outcome.output;
}

TEST_F(SweepProgram, LosesOnlyThePointsUnderWayWhenItIsKilled) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    fs::remove_all("out");
    fs::remove("counted.txt");
    write_experiment({"counted", "slow"}, 2);
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGINT, SIG_DFL);  // a shell in the background has it ignored
      ::execl(SAILOR_BIN_DIR "/sailor-sweep", "sailor-sweep", "little.toml", "-o", "out", "--jobs", "2",
              "--sailor-plan", SAILOR_SOURCE_DIR "/tests/fakes/sailor_plan.py", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    // The first planner's points are done, the slow ones are under way.
    for (int i = 0; i < 300 && counted() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(child, signal);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (signal == SIGKILL)
      EXPECT_TRUE(WIFSIGNALED(status));
    else
      EXPECT_EQ(WEXITSTATUS(status), 1);
    EXPECT_FALSE(fs::exists("out/little.csv"));
    const std::size_t before = counted();
    EXPECT_EQ(before, 2U);
    ::setenv("FAKE_SLOW_S", "0", 1);
    EXPECT_TRUE(sweep().succeeded());
    ::setenv("FAKE_SLOW_S", "30", 1);
    EXPECT_EQ(counted(), before) << "finished points were done again after signal " << signal;
    EXPECT_EQ(split(csv(), '\n').size(), 5U);
  }
}

TEST_F(SweepProgram, DividesPointsInPartsThatAreTheWhole) {
  write_experiment({"counted"}, 5);
  EXPECT_TRUE(sweep({"--part", "0/2"}).succeeded());
  EXPECT_EQ(counted(), 3U);
  EXPECT_TRUE(csv().empty());
  EXPECT_TRUE(sweep({"--part", "1/2"}).succeeded());
  EXPECT_EQ(counted(), 5U);
  EXPECT_TRUE(sweep().succeeded());
  EXPECT_EQ(counted(), 5U);
  EXPECT_EQ(split(csv(), '\n').size(), 6U);
}

TEST_F(SweepProgram, RefusesACommandLineThatMakesNoSense) {
  write_experiment({"counted"}, 1);
  expect_failure(sweep({"--part", "2/2"}), 2, "--part '2/2' is no part of the points");
  expect_failure(sweep({"--part", "1"}), 2, "--part '1' is no part of the points");
  expect_failure(sweep({"--wait"}), 2, "--wait is about a job array; add --slurm");
  expect_failure(sweep({"--slurm", "--jobs", "2"}), 2, "--jobs is about points that run here");
  expect_failure(run("sailor-sweep", {"nothing.toml"}), 1, "nothing.toml");
  auto text = read_text_file("little.toml").value();
  write("little.toml", text.insert(text.find("time_limit_s"), "surprise = 1\n"));
  expect_failure(sweep(), 1, "little.toml:4:12: unknown key 'surprise'");
}

TEST_F(SweepProgram, WritesAJobScriptForItsPoints) {
  write_experiment({"counted"}, 5);
  const auto outcome = sweep({"--slurm", "--dry-run", "-p", "normal", "-A", "g123", "-t", "30", "--array-tasks", "2"});
  EXPECT_TRUE(outcome.succeeded()) << outcome.errors;
  for (const char* line : {"#SBATCH --array=0-1\n", "#SBATCH --partition=normal\n", "#SBATCH --account=g123\n",
                           "#SBATCH --time=00:30:00\n", "\"--part=$SLURM_ARRAY_TASK_ID/2\"\n"})
    EXPECT_NE(outcome.output.find(line), std::string::npos) << line << outcome.output;
}

TEST(CommandArrayScript, IsAsExpectedAndSoundForBash) {
  const slurm::CommandArray request{.job_name = "sweep-fig7",
                                    .comment = "Figure 7: $(date) 27 points",
                                    .partition = "normal",
                                    .time_limit = Seconds(1800),
                                    .tasks = 9,
                                    .array_limit = 4,
                                    .cpus_per_task = 2,
                                    .memory_per_task = 4.0 * gib,
                                    .working_directory = "/scratch/anna/it's here",
                                    .log_path = "/scratch/anna/it's here/slurm-%A_%a.out",
                                    .command = {"/opt/sailor/bin/sailor-sweep", "fig 7.toml", "a;b"},
                                    .task_argument = "--part=$SLURM_ARRAY_TASK_ID/9"};
  const auto script = slurm::command_array_script(request);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("sweep_array.sbatch", *script));
  const auto syntax = run_command({.arguments = {"bash", "-n"}, .input = *script, .deadline = Seconds(30)});
  ASSERT_TRUE(syntax.has_value());
  EXPECT_TRUE(syntax->succeeded()) << syntax->errors;
  if (const auto lint = run_command({.arguments = {"shellcheck", "-"}, .input = *script, .deadline = Seconds(60)})) {
    EXPECT_TRUE(lint->succeeded()) << lint->output;
  }
  slurm::CommandArray bad = request;
  bad.partition = "normal\n#SBATCH --exclusive";
  EXPECT_FALSE(slurm::command_array_script(bad).has_value());
}

}  // namespace
}  // namespace sailor::testing::sweep_test
