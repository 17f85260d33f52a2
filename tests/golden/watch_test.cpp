// sailor-plan --watch on a cluster file that changes while it is watched; with Slurm: tests/slurm/watch_test.sh.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/process.hpp"
#include "tests/golden/programs.hpp"

namespace sailor::watch_test {
namespace {

namespace fs = std::filesystem;
using testing::four_cores;

/// four_cores with other names of nodes: [\"n1\", \"n2\"].
std::string cores(const std::string& nodes) {
  std::string text = four_cores;
  const std::string all = R"(["n1", "n2", "n3", "n4"])";
  return text.replace(text.find(all), all.size(), nodes);
}

class Watch : public testing::ProgramsTest {
 protected:
  /// Watches cluster.toml, replaces it by each of the texts in turn once the one before is answered with so many lines,
  /// and ends it by SIGTERM; the lines of JSON.
  std::vector<nlohmann::json> watch(const std::string& options,
                                    const std::vector<std::pair<std::string, std::size_t>>& texts) {
    fs::remove("said");
    const std::string command =
        "echo $$ >pid; exec " SAILOR_BIN_DIR
        "/sailor-plan --model tiny-gpt --global-batch 8 --sequence-length 64 --profile store.h5 --cluster "
        "cluster.toml --watch --interval 1 --format json " +
        options + " >said";
    auto outcome = std::async(std::launch::async, [&] {
      return *run_command({.arguments = {"sh", "-c", command}, .input = {}, .deadline = Seconds(60)});
    });
    const auto is_over = [&] { return outcome.wait_for(std::chrono::milliseconds(20)) == std::future_status::ready; };
    std::size_t wanted = 1;
    for (const auto& [text, lines] : texts) {
      while (said().size() < wanted && !is_over()) continue;
      write("cluster.toml", text);
      wanted += lines;
    }
    while (said().size() < wanted && !is_over()) continue;
    if (outcome.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      ::kill(std::stoi(*read_text_file("pid")), SIGTERM);
    const ProcessOutcome ended = outcome.get();
    EXPECT_EQ(ended.exit_status, 0) << ended.errors;
    return said();
  }

 private:
  static std::vector<nlohmann::json> said() {
    std::vector<nlohmann::json> lines;
    std::istringstream text(read_text_file("said").value_or(""));
    for (std::string line; std::getline(text, line) && !text.eof();) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
};

TEST_F(Watch, SaysWhichNodesWentAndThatTheRunningPlanCannotGoOn) {
  const auto lines = watch("", {{cores(R"(["n1", "n2"])"), 1}, {four_cores, 1}});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].at("event"), "start");
  EXPECT_EQ(lines[0].at("decision"), "start");
  EXPECT_EQ(lines[0].at("best").at("devices"), 4);
  EXPECT_EQ(lines[1].at("event"), "change");
  ASSERT_EQ(lines[1].at("went").size(), 2U);
  EXPECT_EQ(lines[1].at("went")[1].at("node"), "n4");
  EXPECT_EQ(lines[1].at("went")[1].at("reason"), "not in the cluster any more");
  EXPECT_EQ(lines[1].at("decision"), "forced");
  EXPECT_EQ(lines[1].at("running_problem"), "the plan needs 4 cpu, there are 2 (2 nodes with 1) in the cluster");
  EXPECT_EQ(lines[1].at("best").at("devices"), 2);
  EXPECT_GT(lines[1].at("best").at("iteration_time_s"), lines[0].at("best").at("iteration_time_s"));
  // Nobody has switched: the plan found first is taken to be the running one.
  EXPECT_EQ(lines[2].at("came").size(), 2U);
  EXPECT_EQ(lines[2].at("decision"), "keep");
}

TEST_F(Watch, WeighsAgainstTheRunningPlanWhatASwitchCostsInTheTimeThatRemains) {
  write("cluster.toml", cores(R"(["n1"])"));
  ASSERT_EQ(plan({"-o", "running.toml"}).exit_status, 0);
  const auto hour = watch("--against running.toml --switch-cost 60 --horizon 1:00:00", {{four_cores, 1}});
  ASSERT_EQ(hour.size(), 2U);
  EXPECT_EQ(hour[0].at("decision"), "keep");
  EXPECT_EQ(hour[1].at("decision"), "change");
  const double running = hour[1].at("running").at("iteration_time_s");
  const double best = hour[1].at("best").at("iteration_time_s");
  const double left = hour[1].at("horizon_s");
  EXPECT_GT(left, 1800.0);
  EXPECT_LT(left, 3600.0);
  EXPECT_NEAR(hour[1].at("gain_after_switch"), (left - 60.0) / best / (left / running) - 1.0, 1e-9);
  write("cluster.toml", cores(R"(["n1"])"));
  const auto minutes = watch("--against running.toml --switch-cost 60 --horizon 1:00", {{four_cores, 1}});
  ASSERT_EQ(minutes.size(), 2U);
  EXPECT_EQ(minutes[1].at("decision"), "keep");
  EXPECT_LT(minutes[1].at("gain_after_switch"), 0.0);
}

TEST_F(Watch, AsksTheControllerOfAnElasticTrainingForWhatPays) {
  write("cluster.toml", cores(R"(["n1"])"));
  ASSERT_EQ(plan({"-o", "running.toml"}).exit_status, 0);
  expect_failure(plan({"--watch", "--elastic", "job"}), 1,
                 "no elastic training runs in 'job': it has no controller.json");
  fs::create_directories("job");
  write("job/controller.json", "{}");
  // Its controller uses one of the two nodes.
  write("cluster.toml", cores(R"(["n1", "n2"])"));
  const nlohmann::json epoch{
      {"what", "epoch"}, {"plan", *read_text_file("running.toml")}, {"members", {{{"host", "n1"}}, {{"host", "n2"}}}}};
  write("job/journal.jsonl", epoch.dump() + "\n");
  const auto lines = watch("--elastic job", {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("decision"), "change");
  const std::string request = lines[0].at("requested");
  EXPECT_TRUE(request.starts_with("job/requests/watch-")) << request;
  const auto simulated = run("sailor-simulate", {request, "--profile", "store.h5", "--cluster", "cluster.toml"});
  EXPECT_EQ(simulated.exit_status, 0) << simulated.errors;
  // On nodes that it does not have it cannot run; companion jobs bring them.
  write("cluster.toml", four_cores);
  const auto more = watch("--elastic job", {});
  ASSERT_EQ(more.size(), 1U);
  EXPECT_EQ(more[0].at("decision"), "change");
  EXPECT_EQ(more[0].at("requested"), "");
}

TEST_F(Watch, AnElasticTrainingIsToLeaveNodesThatAreDrainedUntilTheyAreBack) {
  ASSERT_EQ(plan({"-o", "running.toml"}).exit_status, 0);
  fs::create_directories("job");
  write("job/controller.json", "{}");
  write("job/exclude", "n9\n");  // somebody else's
  nlohmann::json epoch{
      {"what", "epoch"}, {"plan", *read_text_file("running.toml")}, {"members", nlohmann::json::array()}};
  for (const char* node : {"n1", "n2", "n3", "n4"}) epoch["members"].push_back({{"host", node}});
  write("job/journal.jsonl", epoch.dump() + "\n");
  const std::string drained =
      cores(R"(["n1", "n2", "n3"])") +
      "[[nodes]]\nnodes = [\"n4\"]\ngpu = \"cpu\"\ngpus_per_node = 1\nmemory_per_node_bytes = 1e9\n"
      "partitions = [\"normal\"]\nstate = \"unavailable\"\nstate_reason = \"drained: paint\"\n";
  const auto lines = watch("--elastic job", {{drained, 1}, {four_cores, 1}});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].at("decision"), "forced");
  EXPECT_EQ(lines[1].at("left"), nlohmann::json::array({"n4"}));
  EXPECT_NE(lines[1].at("requested"), "");
  EXPECT_EQ(lines[2].at("taken_back"), nlohmann::json::array({"n4"}));
  EXPECT_EQ(*read_text_file("job/exclude"), "n9\n");
  write("cluster.toml", drained);
  watch("--elastic job", {});
  EXPECT_EQ(*read_text_file("job/exclude"), "n4\nn9\n");
}

TEST_F(Watch, TheJournalOfAnElasticTrainingSaysWhatRunsAndWhenItIsOver) {
  write("cluster.toml", cores(R"(["n1"])"));
  ASSERT_EQ(plan({"-o", "running.toml"}).exit_status, 0);
  fs::create_directories("job");
  write("job/controller.json", "{}");
  const auto epoch = [](const std::string& text) { return nlohmann::json{{"what", "epoch"}, {"plan", text}}.dump(); };
  const std::string running = epoch(*read_text_file("running.toml"));
  // The last line is being written.
  write("job/journal.jsonl", epoch("an older plan") + "\n" + running + "\n{\"what\":");
  write("cluster.toml", four_cores);
  const auto lines = watch("--elastic job", {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("decision"), "change");
  EXPECT_EQ(lines[0].at("running").at("devices"), 1);
  EXPECT_GE(lines[0].at("switch_cost_s").get<double>(), 5.0);
  write("job/events.jsonl",
        "{\"what\":\"goes_on\",\"why\":\"planned change: 1 more\",\"seconds\":0.25}\n"
        "{\"what\":\"goes_on\",\"why\":\"rank 1 on n1 has gone away\",\"seconds\":7}\n");
  write("cluster.toml", cores(R"(["n1"])"));
  const auto measured = watch("--elastic job", {{four_cores, 1}});
  ASSERT_EQ(measured.size(), 2U);
  EXPECT_EQ(measured[1].at("switch_cost_s"), 0.25);
  write("job/journal.jsonl", running + "\n{\"what\":\"ended\",\"status\":0}\n");
  const auto over = plan({"--watch", "--interval", "1", "--elastic", "job"});  // until it is over
  EXPECT_EQ(over.exit_status, 0);
  EXPECT_NE(over.errors.find("the training of 'job' has ended"), std::string::npos) << over.errors;
}

TEST_F(Watch, AnElasticTrainingIsPlannedForIdleNodesAndItsOwn) {
  write("cluster.toml", cores(R"(["n1", "n2"])"));
  ASSERT_EQ(plan({"-o", "running.toml"}).exit_status, 0);
  fs::create_directories("job");
  write("job/controller.json", "{}");
  const nlohmann::json epoch{
      {"what", "epoch"}, {"plan", *read_text_file("running.toml")}, {"members", {{{"host", "n1"}}, {{"host", "n2"}}}}};
  write("job/journal.jsonl", epoch.dump() + "\n");
  const std::string taken = std::string(four_cores) + "state = \"allocated\"\n";
  const std::string one_is_free =
      cores(R"(["n1", "n2", "n4"])") +
      "state = \"allocated\"\n[[nodes]]\nnodes = [\"n3\"]\ngpu = "
      "\"cpu\"\ngpus_per_node = 1\nmemory_per_node_bytes = 1e9\npartitions = [\"normal\"]\n";
  write("cluster.toml", taken);
  const auto lines = watch("--elastic job", {{one_is_free, 1}});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("nodes").size(), 2U);
  EXPECT_EQ(lines[0].at("decision"), "keep");
  ASSERT_EQ(lines[1].at("came").size(), 1U);
  EXPECT_EQ(lines[1].at("came")[0].at("node"), "n3");
}

TEST_F(Watch, AClusterThatDoesNotAnswerIsAskedAgain) {
  const auto lines = watch("", {{"schema_version = 7\n", 1}, {cores(R"(["n1", "n2"])"), 2}});
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1].at("event"), "no_answer");
  EXPECT_NE(lines[1].at("problem").get<std::string>().find("asked again every 1 s"), std::string::npos);
  EXPECT_EQ(lines[2].at("event"), "answers");
  EXPECT_EQ(lines[3].at("went").size(), 2U);
}

TEST_F(Watch, OptionsThatDoNotGoTogetherAreUsageErrors) {
  expect_failure(plan({"--interval", "5"}), 2, "--interval is about watching the cluster; add --watch");
  expect_failure(plan({"--watch", "--explain"}), 2, "--explain does not go with --watch");
  expect_failure(plan({"--watch", "--format", "toml"}), 2, "--format toml writes one plan");
  expect_failure(plan({"--watch", "--horizon", "soon"}), 2, "--horizon: time 'soon' is not one that Slurm reads");
  ASSERT_EQ(plan({"-o", "mine.toml"}).exit_status, 0);
  expect_failure(
      run("sailor-plan", {"--model", "tiny-gpt", "--global-batch", "4", "--sequence-length", "64", "--profile",
                          "store.h5", "--cluster", "cluster.toml", "--watch", "--against", "mine.toml"}),
      2, "--against mine.toml: the plan is for --global-batch 8, not 4");
}

}  // namespace
}  // namespace sailor::watch_test
