// --format of sailor-plan and sailor-simulate for other frameworks, as a user meets it.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/files.hpp"
#include "tests/golden/programs.hpp"

namespace sailor::handover_test {
namespace {

class HandoverPrograms : public testing::ProgramsTest {
 protected:
  /// Nodes with room for what megatron-core takes before its first tensor.
  void SetUp() override {
    ProgramsTest::SetUp();
    std::string cluster = testing::four_cores;
    cluster.replace(cluster.find("1e9"), 3, "8e9");
    write("cluster.toml", cluster);
  }
  static ProcessOutcome simulate(std::vector<std::string> more) {
    std::vector<std::string> arguments{"plan.toml", "--profile", "store.h5", "--cluster", "cluster.toml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run("sailor-simulate", std::move(arguments));
  }
  static std::string array_of(const std::string& text) { return text.substr(text.find("SAILOR_MEGATRON_ARGS=(")); }
};

TEST_F(HandoverPrograms, TheBestPlanAndItsFileGiveTheSameArguments) {
  const auto planned =
      plan({"--framework", "megatron-core", "--pin", "pipeline_parallel=2", "--format", "megatron", "-o", "plan.toml"});
  ASSERT_EQ(planned.exit_status, 0) << planned.errors;
  EXPECT_NE(planned.output.find("  --pipeline-model-parallel-size 2\n"), std::string::npos) << planned.output;
  EXPECT_NE(planned.output.find("Predicted for framework megatron-core: "), std::string::npos) << planned.output;
  EXPECT_EQ(planned.errors.find("were predicted for framework"), std::string::npos) << planned.errors;
  const auto simulated = simulate({"--format", "megatron"});
  ASSERT_EQ(simulated.exit_status, 0) << simulated.errors;
  EXPECT_EQ(array_of(simulated.output), array_of(planned.output));
  // The shell reads it, and every option has as many values as it takes.
  write("arguments.sh", planned.output + "printf '%s\\n' \"${SAILOR_MEGATRON_ARGS[@]}\"\n");
  const auto words = run_command({.arguments = {"bash", "-eu", "arguments.sh"}, .input = {}, .deadline = Seconds(20)});
  ASSERT_TRUE(words.has_value() && words->exit_status == 0) << (words ? words->errors : "");
  EXPECT_NE(words->output.find("--num-layers\n4\n--hidden-size\n128\n"), std::string::npos) << words->output;
}

TEST_F(HandoverPrograms, APredictionForAnotherFrameworkIsSaid) {
  const auto planned = plan({"--pin", "pipeline_parallel=1,recompute=none,optimizer_sharding=zero1", "--format",
                             "megatron", "-o", "plan.toml"});
  ASSERT_EQ(planned.exit_status, 0) << planned.errors;
  EXPECT_NE(
      planned.errors.find("predicted for framework sailor; --framework megatron-core predicts what megatron does"),
      std::string::npos)
      << planned.errors;
  const auto simulated = simulate({"--framework", "megatron-core", "--format", "megatron"});
  EXPECT_EQ(simulated.errors.find("predicted for framework"), std::string::npos) << simulated.errors;
}

TEST_F(HandoverPrograms, WhatTheFrameworkCannotRunIsRefused) {
  ASSERT_EQ(plan({"--pin", "pipeline_parallel=2,data_parallel=2,recompute=none", "-o", "plan.toml"}).exit_status, 0);
  std::string text = read_text_file("plan.toml").value();
  const std::size_t at = text.find("schedule = \"1f1b\"");
  ASSERT_NE(at, std::string::npos) << text;
  write("plan.toml", text.replace(at, 17, "schedule = \"gpipe\""));
  expect_failure(simulate({"--format", "megatron"}), 2,
                 "--format megatron: Megatron-Core cannot run this: the schedule gpipe; plan with --pin schedule=1f1b");
  expect_failure(simulate({"--format", "torchtitan", "--against", "run.h5"}), 2,
                 "--format torchtitan writes the plan alone, without what --against says");
  expect_failure(plan({"--format", "deepspeed", "--explain"}), 2, "without what --explain says");
}

}  // namespace
}  // namespace sailor::handover_test
