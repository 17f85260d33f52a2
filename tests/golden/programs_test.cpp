// The programs as a user meets them: exit status and message for what can be wrong, and the reports they print.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files.hpp"
#include "core/process.hpp"
#include "plan/plan.hpp"
#include "profile/store.hpp"
#include "reports/plans.hpp"
#include "tests/golden/golden.hpp"
#include "tests/golden/programs.hpp"

namespace sailor::programs_test {
namespace {

namespace fs = std::filesystem;

using testing::four_cores;

class Programs : public testing::ProgramsTest {};

TEST_F(Programs, PlanPrintsATableAndWritesThePlan) {
  const auto outcome = plan({"--top", "3", "-o", "plan.toml"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  // The best: four replicas, each two micro-batches of 1 or one of 2, 2·29 s; an all-reduce of four, scaled from the
  // measured one of two by the ring formula, 3 s · (3/4)/(1/2); the update, 1.625 s, shared by four (ZeRO-1). Money:
  // 4 · 0.04 USD/h.
  EXPECT_TRUE(
      outcome.output.starts_with("tiny-gpt in fp32 on 4 nodes of four cores: 4 cpu; profile store.h5\nthe best of "))
      << outcome.output;
  EXPECT_NE(outcome.output.find("for 8 sequences of 64 tokens (0 did not fit into memory)\n"), std::string::npos);
  EXPECT_NE(
      outcome.output.find(
          "1  62.9 s        0.0159       $0.00280            0.0699        4     4.26 MiB      100%  4 x [cpu tp1] b"),
      std::string::npos)
      << outcome.output;
  EXPECT_TRUE(fs::exists("plan.toml"));
  const auto simulated =
      run("sailor-simulate", {"plan.toml", "--profile", "store.h5", "--cluster", "cluster.toml", "--format", "json"});
  ASSERT_EQ(simulated.exit_status, 0) << simulated.errors;
  const auto json = nlohmann::json::parse(simulated.output);
  EXPECT_NEAR(json.at("iteration_time_s").get<double>(), 62.90625, 1e-9);
  EXPECT_TRUE(json.at("fits").get<bool>());
  EXPECT_GT(json.at("peak_memory_bytes").get<double>(), 1e6);
  EXPECT_GT(json.at("cost_usd_per_iteration").get<double>(), 0.0);
}

// 8.03e9 parameters take 16 bytes each in bf16: 2 for weights, which ZeRO-2 keeps whole, or 16.1 GB; of the other 14
// each of 16 ranks has 7.0 GB. An A10 has 22.5 GiB, and layers take more. ZeRO-3 divides all of it.
TEST_F(Programs, FsdpPlansShardWeightsWhereNothingElseFits) {
  const auto fsdp = [&](const std::string& pins) {
    return run("sailor-plan", {"--gpus", "1x16:A10", "--model", "llama-3-8b", "--framework", "torch-fsdp",
                               "--global-batch", "16", "--sequence-length", "2048", "--profile", "store.h5", "--pin",
                               "pipeline_parallel=1,tensor_parallel=1,recompute=full" + pins, "--save-cluster",
                               "a10.toml", "--explain", "-o", "fsdp.toml"});
  };
  const auto found = fsdp("");
  ASSERT_EQ(found.exit_status, 0) << found.errors;
  EXPECT_NE(found.output.find(", zero3: "), std::string::npos) << found.output;
  EXPECT_NE(found.output.find("including waits for the weights and gradients of zero3"), std::string::npos);
  const std::string plan = read_text_file("fsdp.toml").value();
  EXPECT_NE(plan.find("optimizer_sharding = \"zero3\"\n"), std::string::npos) << plan;
  const auto as = [&](const std::string& sharding) {
    std::string other = plan.substr(0, plan.find("[prediction]"));
    write("other.toml", other.replace(other.find("zero3"), 5, sharding));
    return run("sailor-simulate",
               {"other.toml", "--profile", "store.h5", "--cluster", "a10.toml", "--framework", "torch-fsdp"});
  };
  expect_failure(as("zero1"), 1, "framework 'torch-fsdp' does not train with optimizer_sharding zero1");
  const auto less = as("zero2");
  EXPECT_NE((less.output + less.errors).find("it would fit with optimizer_sharding = \"zero3\""), std::string::npos)
      << less.output << less.errors;
  expect_failure(fsdp(",optimizer_sharding=zero2"), 3, "fits into memory");
  expect_failure(fsdp(",optimizer_sharding=zero1"), 2, "framework torch-fsdp does not have it");
}

TEST_F(Programs, WhereNothingFitsPlanSaysHowManyDevicesItWouldTake) {
  const auto plan = [&](const char* gpus) {
    return run("sailor-plan", {"--gpus", gpus, "--model", "opt-30b", "--global-batch", "64", "--precision", "fp16"});
  };
  expect_failure(plan("1x4:V100-16"), 3,
                 "; on 16 times as many nodes (64 devices) there is one: 1 pipeline of 16 stages");
  EXPECT_EQ(plan("16x4:V100-16").exit_status, 0);
}

TEST_F(Programs, PlanForGpusInAWordNeedsNoFileAndNoClusterBeside) {
  const std::vector<std::string> gpus{"--gpus", "1x2:A100-40", "--model", "tiny-gpt", "--global-batch", "8"};
  std::vector<std::string> arguments = gpus;
  arguments.insert(arguments.end(), {"--profile", "store.h5", "--save-cluster", "saved.toml", "-o", "words.toml"});
  const auto outcome = run("sailor-plan", arguments);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_TRUE(fs::exists("words.toml"));
  // What it planned for can be planned for again, from a file.
  const auto again = run("sailor-plan", {"--cluster", "saved.toml", "--model", "tiny-gpt", "--global-batch", "8",
                                         "--profile", "store.h5", "--format", "json"});
  ASSERT_EQ(again.exit_status, 0) << again.errors;
  arguments = gpus;
  arguments.insert(arguments.end(), {"--cluster", "cluster.toml", "--profile", "store.h5"});
  const auto both = run("sailor-plan", arguments);
  EXPECT_EQ(both.exit_status, 2);
  EXPECT_NE(both.errors.find("--gpus says which GPUs there are, and so does --cluster or --partition"),
            std::string::npos)
      << both.errors;
}

TEST_F(Programs, APlanForGpusInAWordIsSimulatedOnThem) {
  const auto planned =
      run("sailor-plan",
          {"--gpus", "2x4:GH200-96", "--model", "llama-3-8b", "--global-batch", "16", "--sequence-length", "512",
           "--framework", "torch-fsdp", "--profile", "published", "--pin",
           "pipeline_parallel=1,tensor_parallel=1,optimizer_sharding=zero3,sharding_degree=4,data_parallel=8", "--top",
           "1", "-o", "words.toml"});
  ASSERT_EQ(planned.exit_status, 0) << planned.errors;
  const auto plan = load_plan("words.toml");
  ASSERT_TRUE(plan.has_value() && plan->prediction.has_value());
  const auto time = [](const ProcessOutcome& outcome) {
    return nlohmann::json::parse(outcome.output).at("iteration_time_s").get<double>();
  };
  const auto there = run("sailor-simulate", {"words.toml", "--format", "json"});
  ASSERT_EQ(there.exit_status, 0) << there.errors;
  EXPECT_NE(there.errors.find("on nodes of 2x4:GH200-96, for which the plan was made"), std::string::npos);
  EXPECT_DOUBLE_EQ(time(there), plan->prediction->iteration_time.value());
  // That a plan was edited to need more than its file says is said.
  std::string text = read_text_file("words.toml").value();
  write("more.toml", text.replace(text.find("2x4:GH200-96"), 12, "1x4:GH200-96"));
  const auto elsewhere = run("sailor-simulate", {"more.toml", "--format", "json"});
  ASSERT_EQ(elsewhere.exit_status, 0) << elsewhere.errors;
  EXPECT_NE(elsewhere.errors.find("warning: the plan needs 8 GH200-96, there are 4"), std::string::npos)
      << elsewhere.errors;
}

TEST_F(Programs, PlanJsonHasTheContractsKeys) {
  const auto outcome = plan({"--format", "json"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const auto json = nlohmann::json::parse(outcome.output);
  double last = 0.0;
  // Plans that differ in kind: there need not be ten.
  ASSERT_GE(json.at("plans").size(), 2U);
  ASSERT_LE(json.at("plans").size(), 10U);
  for (const auto& row : json.at("plans")) {
    EXPECT_GE(row.at("iteration_time_s").get<double>(), last);
    last = row.at("iteration_time_s").get<double>();
    EXPECT_NEAR(row.at("throughput_iterations_per_s").get<double>(), 1.0 / last, 1e-12);
    for (const char* key : {"peak_memory_bytes", "cost_usd_per_iteration", "fits", "plan"})
      EXPECT_TRUE(row.contains(key)) << key;
  }
}

TEST_F(Programs, PlanJsonSaysWhatWasAskedAndHowGoodTheAnswerIs) {
  const auto outcome = plan({"--format", "json", "--objective", "cost", "--top", "2", "--explain"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json.at("objective"), "cost");
  EXPECT_EQ(json.at("space"), "full");
  EXPECT_EQ(json.at("cost_model"), "simulator");
  EXPECT_GT(json.at("considered").get<int>(), 0);
  for (const char* key : {"did_not_fit", "stop", "left_out"}) EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json.at("bound").at("unit"), "usd_per_iteration");
  EXPECT_EQ(json.at("bound").at("by"), "closed_form");
  for (const char* key : {"found", "bound", "gap"}) EXPECT_TRUE(json.at("bound").contains(key)) << key;
  ASSERT_LE(json.at("plans").size(), 2U);
  EXPECT_LE(json.at("bound").at("bound").get<double>(), json.at("plans")[0].at("cost_usd_per_iteration").get<double>());
  EXPECT_TRUE(json.at("plans")[0].contains("memory_headroom"));
  EXPECT_GE(json.at("explanation").size(), 4U);
}

// Without Slurm: the script is only written.
TEST_F(Programs, SubmitRefusesAPlanThatSailorTrainCannotRun) {
  write("gpu.toml", R"(schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 2
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
micro_batches = 2
[[pipelines.stages]]
layers = [0, 6]
gpu = "GH200-96"
)");
  write("corpus.bin", "12");
  write("corpus.idx", "12");
  const auto submit = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"gpu.toml",           "--data", "corpus",   "--iterations", "5",
                                       "--devices-per-node", "4",      "--placer", "slurm"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run("sailor-submit", std::move(arguments));
  };
  ::setenv("SAILOR_GPU_MODULE", "/none", 1);  // as in a build without CUDA
  const std::string why =
      "computes on CPUs only, and the plan is for GH200-96; build its GPU part beside it (cmake --build FOLDER "
      "--target sailor_cuda), name a program";
  expect_failure(submit({"--export", "job.sbatch"}), 1, why);
  EXPECT_FALSE(fs::exists("job.sbatch"));
  EXPECT_FALSE(fs::exists("run-gpu"));
  const auto shown = submit({"--dry-run"});  // there is nothing to refuse yet
  EXPECT_EQ(shown.exit_status, 0) << shown.errors;
  EXPECT_NE(shown.errors.find(why), std::string::npos) << shown.errors;
  const auto tried = submit({"--export", "job.sbatch", "--train-option=--device=cpu"});
  EXPECT_EQ(tried.exit_status, 0) << tried.errors;
  EXPECT_TRUE(fs::exists("job.sbatch"));
  const auto other = submit({"--export", "other.sbatch", "--program", "./other"});
  EXPECT_EQ(other.exit_status, 0) << other.errors;
  expect_failure(
      submit({"--export", "job.sbatch", "--program", "/nowhere/sailor-train"}), 0,
      "whether the job's program can run the plan is not known: there is no program '/nowhere/sailor-train'");
}

TEST_F(Programs, PlanHelpIsAsExpected) {
  const auto outcome = run("sailor-plan", {"--help"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_TRUE(testing::matches_golden("plan_help.txt", outcome.output));
}

TEST_F(Programs, LaunchHelpIsAsExpected) {
  const auto outcome = run("sailor-launch", {"--help"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_TRUE(testing::matches_golden("launch_help.txt", outcome.output));
}

TEST_F(Programs, PlanShowsWhereEveryRankWouldGo) {
  const auto outcome = plan(
      {"--placement", "--top", "1", "--exclude", "n2", "--pin", "pipeline_parallel=1", "--pin", "data_parallel=2"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_NE(
      outcome.output.find("\nPlacement on the nodes that are there now (Slurm may choose others that are alike):\n"
                          "node  gpu  devices  ranks  holds\n"
                          "----------------------------------------------\n"
                          "n1    cpu   1 of 1  0      pipeline 0: stage 0\n"
                          "n3    cpu   1 of 1  1      pipeline 1: stage 0\n"),
      std::string::npos)
      << outcome.output;
  const auto json = nlohmann::json::parse(plan({"--placement", "--top", "1", "--format", "json"}).output);
  ASSERT_GE(json.at("placement").size(), 1U);
  EXPECT_EQ(json.at("placement")[0].at("rank"), 0);
  EXPECT_EQ(json.at("placement")[0].at("node"), "n1");
}

constexpr const char* busy_gpus = R"(schema_version = 1
name = "alps"
[[partitions]]
name = "normal"
time_limit_s = 3600.0
most_nodes = 2
[[nodes]]
nodes = ["gh1", "gh2"]
gpu = "GH200-96"
gpus_per_node = 4
cpus_per_node = 288
memory_per_node_bytes = 854e9
partitions = ["normal"]
gres_type = "gh200"
[[nodes]]
nodes = ["gh3"]
gpu = "GH200-96"
gpus_per_node = 4
memory_per_node_bytes = 854e9
state = "unavailable"
state_reason = "drained: leaking pump"
partitions = ["normal"]
)";

TEST_F(Programs, PreflightOfTheBestPlanIsInTheJson) {
  const auto outcome = plan({"-p", "normal", "--preflight", "--iterations", "10", "--format", "json"});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output << outcome.errors;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_GE(json.at("plans").size(), 1U);
  EXPECT_EQ(json.at("preflight").at("outcome"), "ok");
  bool has_time = false;
  for (const auto& check : json.at("preflight").at("checks")) {
    for (const char* key : {"name", "outcome", "what", "remedy"}) EXPECT_TRUE(check.contains(key)) << check;
    has_time = has_time || check.at("name") == "time";
  }
  EXPECT_TRUE(has_time);
}

TEST_F(Programs, PreflightWithoutAnyPlanSaysWhy) {
  const auto outcome = plan({"-p", "normal", "--preflight", "--max-gpus", "1", "--pin", "data_parallel=2"});
  EXPECT_EQ(outcome.exit_status, 5) << outcome.errors;
  EXPECT_NE(outcome.output.find("fail         plan          what is pinned takes 2 devices"), std::string::npos)
      << outcome.output;
}

TEST_F(Programs, PreflightTableIsAsExpected) {
  write("busy.toml", busy_gpus);
  // 12 ranks: three nodes, of which one is drained; the partition gives two.
  write("three.toml", R"(schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 12
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 6
micro_batches = 2
[[pipelines.stages]]
layers = [0, 3]
gpu = "GH200-96"
[[pipelines.stages]]
layers = [3, 6]
gpu = "GH200-96"
)");
  write("data.bin", "0123456789");
  write("data.idx", "0123456789");
  const auto outcome =
      run("sailor-plan", {"-p", "normal", "--cluster", "busy.toml", "--preflight", "three.toml", "--time", "2:00:00",
                          "--data", "data", "--profile", "none.h5", "--program", "mine"});
  EXPECT_EQ(outcome.exit_status, 5) << outcome.errors;
  EXPECT_TRUE(testing::matches_golden("preflight.txt", outcome.output));
}

TEST_F(Programs, PlanOptionsThatDoNotGoTogetherAreUsageErrors) {
  expect_failure(plan({"--within", "1:00:00"}), 2,
                 "sailor-plan: error: --within limits the whole training, but its length is not known; say it with "
                 "--tokens N or --iterations N");
  expect_failure(plan({"--max-node-hours", "3"}), 2, "--max-node-hours limits the whole training");
  expect_failure(plan({"--tokens", "1e9", "--iterations", "10"}), 2, "--tokens and --iterations both say");
  expect_failure(plan({"--iterations", "10", "--within", "soon"}), 2,
                 "--within: time 'soon' is not one that Slurm reads");
  expect_failure(plan({"--pin", "pipelines=4"}), 2, "--pin: key 'pipelines' is not known");
  expect_failure(plan({"--pin", "gpu=H9000"}), 2, "--pin gpu=H9000: ");
  expect_failure(plan({"--pin", "zone=nowhere"}), 2, "zone 'nowhere' has no nodes in this cluster");
  expect_failure(plan({"--pin", "pipeline_parallel=99"}), 2, "--pin pipeline_parallel=99 is more than the");
  expect_failure(plan({"--pin", "micro_batch=3"}), 2, "--pin micro_batch=3 does not divide the global batch 8");
  expect_failure(plan({"--pin", "tensor_parallel=4", "--max-tensor-parallel", "2"}), 2,
                 "--pin tensor_parallel=4 is over --max-tensor-parallel 2");
  expect_failure(
      plan({"--pin", "pipeline_parallel=2,pipeline_parallel=4"}), 2,
      "--pin pipeline_parallel=2 and --pin pipeline_parallel=4 contradict each other; leave out one of them");
  expect_failure(plan({"--iterations", "1.5"}), 2, "--iterations 1.5 is no whole number");
  expect_failure(plan({"--cost-model", "artifact", "--precision", "bf16"}), 2,
                 "--precision bf16: the profile has no such times of tiny-gpt");
  expect_failure(plan({"--availability-trace", "t.csv", "--top", "3"}), 2,
                 "--top does not go with --availability-trace");
  expect_failure(plan({"--exclude", "n[2-1]"}), 2, "--exclude: node list 'n[2-1]': the range 2-1 runs backwards");
  expect_failure(plan({"--exclude", "n9"}), 1, "--exclude: the cluster has no node 'n9'");
  expect_failure(plan({"--cost-model", "artifact", "--pin", "schedule=gpipe"}), 2,
                 "--pin schedule: the artifact's cost model knows only 1f1b");
  expect_failure(plan({"--cost-model", "artifact", "--pin", "sharding_degree=2"}), 2,
                 "--pin sharding_degree: the artifact's cost model knows only 1f1b");
  expect_failure(plan({"--cost-model", "artifact", "--explain"}), 2,
                 "--explain does not go with --cost-model artifact");
  expect_failure(plan({"--reconfiguration-time", "3"}), 2,
                 "--reconfiguration-time is about a trace, but none is named");
  expect_failure(plan({"--availability-trace", "t.csv", "--pareto"}), 2,
                 "--pareto does not go with --availability-trace");
  expect_failure(plan({"--availability-trace", "t.csv", "--format", "toml"}), 2, "--format toml writes one plan");
  expect_failure(plan({"--format", "sailor-json", "--explain"}), 2, "without what --explain says");
  expect_failure(plan({"--objective", "speed"}), 2, "'speed' is not one of: throughput, cost, throughput-per-usd");
}

TEST_F(Programs, PinsAndLimitsAreKept) {
  const auto outcome = plan({"--pin", "pipeline_parallel=2,micro_batch=1", "--max-gpus", "2", "--format", "json"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const auto json = nlohmann::json::parse(outcome.output);
  for (const auto& row : json.at("plans")) {
    EXPECT_LE(row.at("plan").at("ranks").get<int>(), 2);
    for (const auto& pipeline : row.at("plan").at("pipelines")) {
      EXPECT_EQ(pipeline.at("stages").size(), 2U);
      EXPECT_EQ(pipeline.at("micro_batch"), 1);
    }
  }
  const auto excluded = plan({"--exclude", "n[2-4]", "--format", "json"});
  ASSERT_EQ(excluded.exit_status, 0) << excluded.errors;
  EXPECT_EQ(nlohmann::json::parse(excluded.output).at("plans")[0].at("plan").at("ranks"), 1);
  expect_failure(plan({"--min-throughput", "1000"}), 3, "times less than the 1000 asked for");
}

TEST_F(Programs, ALimitFarFromEverythingIsNamedInFiniteNumbers) {
  for (const auto& [option, value] : {std::pair("--max-cost", "1e-300"), std::pair("--min-throughput", "1e300")}) {
    const auto outcome = plan({option, value});
    EXPECT_EQ(outcome.exit_status, 3) << outcome.errors;
    EXPECT_EQ(outcome.errors.find("inf%"), std::string::npos) << outcome.errors;
    EXPECT_EQ(outcome.errors.find("100.0%"), std::string::npos) << outcome.errors;
  }
}

TEST_F(Programs, PinsThatTakeTooManyDevicesSayHowMany) {
  expect_failure(plan({"--pin", "pipeline_parallel=2,data_parallel=4", "--max-nodes", "1"}), 3,
                 "what is pinned takes 8 devices (pipeline_parallel 2 x data_parallel 4), ");
}

TEST_F(Programs, AsManyPlansOfTheFrontAreShownAsAreAskedFor) {
  const auto outcome = plan({"--pareto", "--top", "1", "--format", "json"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_EQ(nlohmann::json::parse(outcome.output).at("plans").size(), 1U);
}

TEST_F(Programs, AMisspeltKeyOfTheConfigurationFileIsRecognised) {
  write("mistyped.toml", "global-batch = 8\n");
  expect_failure(plan({"--config", "mistyped.toml"}), 2, "unknown key 'global-batch'; did you mean 'global_batch'?");
}

TEST_F(Programs, OriginalJsonThatIsWrittenIsSimulatedAlike) {
  const auto written = plan({"--space", "paper", "--format", "sailor-json", "-o", "plan.toml"});
  ASSERT_EQ(written.exit_status, 0) << written.errors;
  write("plan.json", written.output);
  const std::vector<std::string> more{"--profile", "store.h5", "--cluster", "cluster.toml", "--format", "json"};
  std::vector<std::string> ours{"plan.toml"};
  ours.insert(ours.end(), more.begin(), more.end());
  const auto plan_of = run("sailor-simulate", ours);
  ASSERT_EQ(plan_of.exit_status, 0) << plan_of.errors;
  const auto why_not = plan({"--space", "paper", "--why-not", "plan.json", "--format", "json"});
  ASSERT_EQ(why_not.exit_status, 0) << why_not.errors;
  const auto json = nlohmann::json::parse(why_not.output).at("why_not");
  EXPECT_NEAR(json.at("iteration_time_s").get<double>(),
              nlohmann::json::parse(plan_of.output).at("iteration_time_s").get<double>(), 1e-9);
  EXPECT_NEAR(json.at("time_ratio").get<double>(), 1.0, 1e-9);
  EXPECT_TRUE(json.at("problems").empty());
}

TEST_F(Programs, WhyNotComparesTheUsersPlan) {
  ASSERT_EQ(plan({"--pin", "pipeline_parallel=4", "-o", "mine.toml"}).exit_status, 0);
  const auto outcome = plan({"--top", "1", "--why-not", "mine.toml"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_NE(outcome.output.find("\nWhy not mine.toml:\nYours is 1 x [cpu tp1: "), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find(" slower: "), std::string::npos) << outcome.output;
  expect_failure(run("sailor-plan", {"--model", "tiny-gpt", "--global-batch", "4", "--sequence-length", "64",
                                     "--profile", "store.h5", "--cluster", "cluster.toml", "--why-not", "mine.toml"}),
                 2, "--why-not mine.toml: the plan is for --global-batch 8, not 4");
}

TEST_F(Programs, WhyNotNamesThePinsAndNodesThatForbidThePlan) {
  ASSERT_EQ(plan({"-o", "mine.toml"}).exit_status, 0);  // on all four nodes
  const auto outcome = plan({"--why-not", "mine.toml", "--exclude", "n4", "--pin", "data_parallel=3,micro_batch=1"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_NE(outcome.output.find("Yours cannot be chosen: its data_parallel is "), std::string::npos) << outcome.output;
  EXPECT_NE(
      outcome.output.find("Yours cannot be chosen: the plan needs 4 cpu, there are 3 (3 nodes with 1) in the cluster."),
      std::string::npos)
      << outcome.output;
}

TEST_F(Programs, ATraceIsReplannedStepByStep) {
  write("trace.csv", "Timestamp,cpu_a\n0,4\n10000,2\n20000,4\n");
  const std::vector<std::string> arguments{"--model",
                                           "tiny-gpt",
                                           "--global-batch",
                                           "8",
                                           "--sequence-length",
                                           "64",
                                           "--profile",
                                           "store.h5",
                                           "--cluster",
                                           "cluster.toml",
                                           "--availability-trace",
                                           "trace.csv"};
  const auto table = run("sailor-plan", arguments);
  ASSERT_EQ(table.exit_status, 0) << table.errors;
  EXPECT_NE(table.output.find("tiny-gpt in fp32: 3 steps of availability, objective throughput"), std::string::npos);
  std::vector<std::string> as_json = arguments;
  as_json.insert(as_json.end(), {"--format", "json"});
  const auto outcome = run("sailor-plan", as_json);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.errors;
  const auto json = nlohmann::json::parse(outcome.output);
  ASSERT_EQ(json.at("steps").size(), 3U);
  EXPECT_EQ(json.at("steps")[0].at("decision"), "start");
  EXPECT_EQ(json.at("steps")[1].at("decision"), "forced");
  EXPECT_EQ(json.at("steps")[2].at("decision"), "change");
  EXPECT_EQ(json.at("steps")[1].at("plan").at("ranks"), 2);
  // 62.90625 s an iteration on four, as in PlanPrintsATableAndWritesThePlan.
  EXPECT_NEAR(json.at("steps")[0].at("iterations").get<double>(), 10000.0 / 62.90625, 1e-6);
  EXPECT_NEAR(json.at("steps")[2].at("iterations").get<double>(), (3600.0 - 12.0) / 62.90625, 1e-6);

  // Nothing to train with at any time is no success.
  write("trace.csv", "Timestamp,cpu_a\n0,0\n");
  const auto nothing = run("sailor-plan", arguments);
  expect_failure(nothing, 3, "sailor-plan: error: trace.csv: no step has a plan");
  EXPECT_NE(nothing.output.find("none: there are no GPUs"), std::string::npos) << nothing.output;
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
                 1, "sailor-plan: error: model 'gpt-5' is not known (known: ");
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
                 3, "memory");
  const auto outcome = run("sailor-simulate", {"plan.toml", "--profile", "store.h5", "--cluster", "small.toml"});
  expect_failure(outcome, 3,
                 "sailor-simulate: error: the plan does not fit into memory: stage 0 of pipeline 0 needs 4.26 MiB but "
                 "a cpu has 977 KiB");
  EXPECT_NE(outcome.output.find("does not fit"), std::string::npos) << outcome.output;
}

/// A plan with `kinds` kinds of pipelines: A100 in one stage, V100 in two, then deeper ones.
planner::Candidate mixed_candidate(int kinds, double seconds) {
  planner::Candidate candidate;
  Plan& plan = candidate.plan;
  plan.job = {.model = "opt-350m", .sequence_length = 2048};
  plan.micro_batch = 8;
  const auto stage = [](int first, int last, const char* gpu, int tensor_parallel) {
    return Stage{.layers = {first, last}, .gpu = gpu, .tensor_parallel = tensor_parallel, .zone = "us-central1-a"};
  };
  plan.pipelines.push_back({.count = 32, .micro_batches = 4, .stages = {stage(0, 26, "A100-40", 4)}});
  if (kinds > 1)
    plan.pipelines.push_back({.count = 24,
                              .micro_batches = 3,
                              .micro_batch = 2,
                              .stages = {stage(0, 13, "V100-16", 4), stage(13, 26, "V100-16", 4)}});
  for (int kind = 2; kind < kinds; ++kind)
    plan.pipelines.push_back({.count = 2,
                              .micro_batches = kind,
                              .micro_batch = 1,
                              .stages = {stage(0, 4, "V100-16", 1), stage(4, 8, "V100-16", 1),
                                         stage(8, 26, "A100-40", kind % 2 == 0 ? 2 : 1)}});
  for (const Pipeline& pipeline : plan.pipelines)
    plan.job.global_batch += pipeline.count * pipeline.micro_batches * plan.micro_batch_of(pipeline);
  candidate.prediction.iteration_time = Seconds(seconds);
  candidate.prediction.cost_per_iteration = Usd(0.3 * seconds);
  candidate.prediction.peak_memory = 20.0 * gib;
  candidate.memory_headroom = 0.41;
  return candidate;
}

TEST(PlansReport, PipelinesThatDifferHaveALineEach) {
  planner::Request request;
  request.job = {.model = "opt-350m", .global_batch = 1168, .sequence_length = 2048};
  planner::SearchResult result;
  for (const int kinds : {1, 2, 4, 11}) result.plans.push_back(mixed_candidate(kinds, 2.0 + 0.1 * kinds));
  result.considered = 12345;
  result.did_not_fit = 67;
  result.bound = {.found = 1.0 / 2.1, .bound = 1.013 / 2.1, .gap = 0.013};
  const reports::Heading heading{.model = "opt-350m",
                                 .precision = Precision::bf16,
                                 .why_precision = "as --precision says",
                                 .cluster = "two types",
                                 .nodes = 64,
                                 .devices = {{"A100-40", 128}, {"V100-16", 128}},
                                 .zones = 1,
                                 .profile = "published"};
  EXPECT_TRUE(testing::matches_golden("plans_report.txt", reports::plans_report(heading, request, result)));
  request.objective = planner::Objective::throughput_per_usd;
  request.iterations = 10000;
  result.bound = {};
  result.stop = planner::Stop::time_limit;
  EXPECT_TRUE(testing::matches_golden("plans_report_per_usd.txt", reports::plans_report(heading, request, result)));
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
}  // namespace sailor::programs_test
