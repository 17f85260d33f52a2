// The programs as a user meets them: exit status and message for what can be wrong, and the reports they print.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files.hpp"
#include "core/process.hpp"
#include "profile/store.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;

constexpr const char* four_cores = R"(schema_version = 1
name = "four cores"
[[partitions]]
name = "normal"
[[nodes]]
nodes = ["n1", "n2", "n3", "n4"]
gpu = "cpu"
gpus_per_node = 1
memory_per_node_bytes = 1e9
partitions = ["normal"]
)";

class Programs : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sailor_programs_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::current_path(folder_);
    write("cluster.toml", four_cores);
    ASSERT_TRUE(save_profile(sailor::testing::round_numbers_profile(), folder_ / "store.h5").has_value());
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(folder_);
  }

  void write(const std::string& name, std::string_view text) const {
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }

  /// Runs a program of build/bin with these arguments.
  static ProcessOutcome run(const std::string& program, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), std::string(SAILOR_BIN_DIR "/") + program);
    auto outcome = run_command({.arguments = std::move(arguments), .input = {}, .deadline = Seconds(60)});
    EXPECT_TRUE(outcome.has_value());
    return outcome.value_or(ProcessOutcome{});
  }
  static ProcessOutcome plan(std::vector<std::string> more) {
    std::vector<std::string> arguments{"--model", "tiny-gpt",  "--global-batch", "8",         "--sequence-length",
                                       "64",      "--profile", "store.h5",       "--cluster", "cluster.toml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run("sailor-plan", std::move(arguments));
  }
  static void expect_failure(const ProcessOutcome& outcome, int status, const std::string& message) {
    EXPECT_EQ(outcome.exit_status, status) << outcome.errors;
    EXPECT_NE(outcome.errors.find(message), std::string::npos) << outcome.errors;
  }

  fs::path folder_;
};

TEST_F(Programs, PlanPrintsATableAndWritesThePlan) {
  const auto outcome = plan({"--top", "3", "-o", "plan.toml"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  // The best: four replicas, each two micro-batches of 1 or one of 2, 2·29 s; an all-reduce of four, scaled from the
  // measured one of two by the ring formula, 3 s · (3/4)/(1/2); the update, 1.625 s. Money: 4 · 0.04 USD/h.
  EXPECT_EQ(
      outcome.output,
      "tiny-gpt: the best of 16 plans for 8 sequences of 64 tokens (0 did not fit into memory)\n"
      "\n"
      "#  gpu  ranks  data  pipeline  tensor  micro-batch    time  iterations/s  peak memory  headroom  USD/iteration\n"
      "--------------------------------------------------------------------------------------------------------------\n"
      "1  cpu      4     4         1       1            1  64.1 s        0.0156     4.31 MiB      100%        $0.0029\n"
      "2  cpu      4     4         1       1            2  64.1 s        0.0156     4.31 MiB      100%        $0.0029\n"
      "3  cpu      3     3         1       1            1  92.6 s        0.0108     4.31 MiB      100%        "
      "$0.0031\n");
  EXPECT_TRUE(fs::exists("plan.toml"));
  const auto simulated =
      run("sailor-simulate", {"plan.toml", "--profile", "store.h5", "--cluster", "cluster.toml", "--format", "json"});
  ASSERT_EQ(simulated.exit_status, 0) << simulated.errors;
  const auto json = nlohmann::json::parse(simulated.output);
  EXPECT_NEAR(json.at("iteration_time_s").get<double>(), 64.125, 1e-9);
  EXPECT_TRUE(json.at("fits").get<bool>());
  EXPECT_GT(json.at("peak_memory_bytes").get<double>(), 1e6);
  EXPECT_GT(json.at("cost_usd_per_iteration").get<double>(), 0.0);
}

TEST_F(Programs, PlanJsonHasTheContractsKeys) {
  const auto outcome = plan({"--format", "json"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const auto json = nlohmann::json::parse(outcome.output);
  double last = 0.0;
  ASSERT_EQ(json.at("plans").size(), 10U);
  for (const auto& row : json.at("plans")) {
    EXPECT_GE(row.at("iteration_time_s").get<double>(), last);
    last = row.at("iteration_time_s").get<double>();
    EXPECT_NEAR(row.at("throughput_iterations_per_s").get<double>(), 1.0 / last, 1e-12);
    for (const char* key : {"peak_memory_bytes", "cost_usd_per_iteration", "fits", "plan"})
      EXPECT_TRUE(row.contains(key)) << key;
  }
}

TEST_F(Programs, PlanTomlOnStdoutIsThePlan) {
  const auto outcome = plan({"--format", "toml"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  write("again.toml", outcome.output);
  EXPECT_TRUE(load_plan("again.toml").has_value());
}

TEST_F(Programs, BadInputsAreNamedAndNothingIsWritten) {
  expect_failure(run("sailor-plan", {"--global-batch", "8"}), 2, "sailor-plan: error: option --model is missing");
  expect_failure(run("sailor-plan", {"--modle", "x"}), 2, "--model");
  expect_failure(plan({"--model", "gpt-5"}), 2, "--model");  // given twice
  expect_failure(run("sailor-plan",
                     {"--model", "gpt-5", "--global-batch", "8", "--profile", "store.h5", "--cluster", "cluster.toml"}),
                 1, "sailor-plan: error: model 'gpt-5' is not known; use one of ");
  expect_failure(plan({"--partition", "gpu", "-o", "plan.toml"}), 1,
                 "sailor-plan: error: partition 'gpu' not found (known: normal); use --partition NAME");
  EXPECT_FALSE(fs::exists("plan.toml"));
  write("bad.toml", "schema_version = 1\nname = \"bad\"\n[[nodes]]\ngpu = \"cpu\"\n");
  expect_failure(run("sailor-plan",
                     {"--model", "tiny-gpt", "--global-batch", "8", "--profile", "store.h5", "--cluster", "bad.toml"}),
                 1, "sailor-plan: error: bad.toml:3:1: key 'nodes[0].gpus_per_node' is missing");
  expect_failure(run("sailor-plan", {"--model", "tiny-gpt", "--global-batch", "8", "--profile", "cluster.toml",
                                     "--cluster", "cluster.toml"}),
                 1, "cluster.toml");
  expect_failure(run("sailor-plan",
                     {"--model", "tiny-gpt", "--global-batch", "8", "--profile", "none", "--cluster", "cluster.toml"}),
                 1, "'none'");
  expect_failure(plan({"-o", "no/such/plan.toml"}), 1, "there is no folder 'no/such'");
  expect_failure(run("sailor-simulate", {"none.toml", "--profile", "store.h5"}), 1,
                 "sailor-simulate: error: file 'none.toml' does not exist");
  write("plan.toml", "schema_version = 1\n");
  expect_failure(run("sailor-simulate", {"plan.toml", "--profile", "store.h5"}), 1,
                 "sailor-simulate: error: plan.toml:1:1: key 'job' is missing");
  expect_failure(run("sailor-simulate", {}), 2, "PLAN");
}

TEST_F(Programs, BadModelFileIsNamedWithLineAndReason) {
  write("model.toml", "schema_version = 1\nname = \"x\"\nsource = \"x\"\nblocks = 0\n");
  expect_failure(run("sailor-plan", {"--model", "model.toml", "--global-batch", "8", "--profile", "store.h5",
                                     "--cluster", "cluster.toml"}),
                 1, "sailor-plan: error: model.toml:4:10: 'blocks' is 0 but must be at least 1");
}

TEST_F(Programs, BadProfileFileIsNamedWithTheReason) {
  expect_failure(run("sailor-plan", {"--model", "tiny-gpt", "--global-batch", "8", "--profile", "cluster.toml",
                                     "--cluster", "cluster.toml"}),
                 1, "sailor-plan: error: file 'cluster.toml': it is not an HDF5 file");
}

TEST_F(Programs, NoClusterIsAUsageError) {
  expect_failure(run("sailor-plan", {"--model", "tiny-gpt", "--global-batch", "8", "--profile", "store.h5"}), 2,
                 "no cluster is named; use --partition NAME (live, from Slurm) or --cluster FILE");
}

TEST_F(Programs, NothingFitsExitsWith3) {
  ASSERT_EQ(plan({"-o", "plan.toml"}).exit_status, 0);
  std::string small = four_cores;
  small.replace(small.find("= 1e9"), 5, "= 1e6");
  write("small.toml", small);
  expect_failure(run("sailor-plan", {"--model", "tiny-gpt", "--global-batch", "8", "--sequence-length", "64",
                                     "--profile", "store.h5", "--cluster", "small.toml"}),
                 3, "sailor-plan: error: none of 16 plans fits into memory; the nearest is ");
  const auto outcome = run("sailor-simulate", {"plan.toml", "--profile", "store.h5", "--cluster", "small.toml"});
  expect_failure(outcome, 3,
                 "sailor-simulate: error: the plan does not fit into memory: stage 0 of pipeline 0 needs 4.31 MiB but "
                 "a cpu has 977 KiB");
  EXPECT_NE(outcome.output.find("does not fit"), std::string::npos) << outcome.output;
}

TEST_F(Programs, ClosedStdoutIsNoCrash) {
  auto outcome =
      run_command({.arguments = {"bash", "-c", SAILOR_BIN_DIR "/sailor-plan --help | head -1; echo ${PIPESTATUS[0]}"},
                   .input = {},
                   .deadline = Seconds(60)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->output.find("sailor-plan"), 0U);
  EXPECT_EQ(outcome->errors, "");
}

}  // namespace
}  // namespace sailor
