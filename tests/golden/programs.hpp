// Runs the built programs in a folder of the test's own, with a cluster of four cores and a profile in round numbers.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/process.hpp"
#include "profile/store.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor::testing {

namespace fs = std::filesystem;

inline constexpr const char* four_cores = R"(schema_version = 1
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

class ProgramsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sailor_programs_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::current_path(folder_);
    write("cluster.toml", four_cores);
    ASSERT_TRUE(save_profile(round_numbers_profile(), folder_ / "store.h5").has_value());
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

}  // namespace sailor::testing
