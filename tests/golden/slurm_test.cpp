// What Slurm gets from us and what we keep of a live cluster, as texts.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cluster/cluster.hpp"
#include "core/process.hpp"
#include "slurm/elastic_script.hpp"
#include "slurm/node_records.hpp"
#include "slurm/sbatch.hpp"
#include "slurm/site.hpp"
#include "tests/golden/golden.hpp"

namespace sailor::slurm::slurm_test {
namespace {

using sailor::testing::matches_golden;

Model tiny() { return find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value(); }

Plan plan_on(const std::string& gpu, int pipelines) {
  const auto stage = [&](int first, int last) {
    return Stage{.layers = {first, last}, .gpu = gpu, .tensor_parallel = 1, .zone = {}};
  };
  Plan plan;
  plan.job = {.model = "tiny-gpt", .global_batch = 4 * pipelines, .sequence_length = 128};
  plan.pipelines = {{.count = pipelines, .micro_batches = 4, .stages = {stage(0, 3), stage(3, 6)}}};
  return plan;
}

SbatchRequest request(int devices_per_node) {
  SbatchRequest request;
  request.nodes.push_back({.devices_per_node = devices_per_node});
  request.placer = Placer::launcher;
  request.launcher = "/opt/sailor/bin/sailor-launch";
  request.run_directory = "/scratch/anna/run-1";
  request.plan_path = "/scratch/anna/run-1/plan.toml";
  request.models_folder = "/opt/sailor/share/sailor/profiles/models";
  request.program = "/opt/sailor/bin/sailor-train";
  request.data = "/scratch/anna/corpus";
  request.iterations = 100;
  request.time_limit = Seconds(5400);
  return request;
}

/// bash reads it, and shellcheck, where it is installed, has nothing to say.
void expect_sound(const std::string& script) {
  const auto syntax = run_command({.arguments = {"bash", "-n"}, .input = script, .deadline = Seconds(30)});
  ASSERT_TRUE(syntax.has_value()) << syntax.error().message();
  EXPECT_TRUE(syntax->succeeded()) << syntax->errors;
  const auto lint = run_command({.arguments = {"shellcheck", "-"}, .input = script, .deadline = Seconds(60)});
  if (lint) {
    EXPECT_TRUE(lint->succeeded()) << lint->output;
  }
}

TEST(SbatchScript, ForACpuPlan) {
  SbatchRequest cpu = request(2);
  cpu.nodes[0].device_kind = DeviceKind::cpu;
  cpu.nodes[0].memory_per_cpu = Bytes(512.0 * 1048576);
  const auto script = sbatch_script(plan_on("cpu", 2), tiny(), cpu);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("cpu_plan.sbatch", *script));
  expect_sound(*script);
}

TEST(SbatchScript, ForAGpuPlanWithEverythingGiven) {
  SbatchRequest gpu = request(4);
  gpu.job_name = "night-run";
  gpu.nodes[0].partition = "normal";
  gpu.account = "csstaff";
  gpu.qos = "high";
  gpu.licenses = "matlab:2";
  gpu.comment = "sailor plan 0123456789abcdef";
  gpu.mail_type = "END,FAIL";
  gpu.mail_user = "anna@example.org";
  gpu.nodes[0].gres_type = "gh200";
  gpu.nodes[0].cpus_per_rank = 72;
  gpu.extra_options = {"--exclude=gh7,gh9"};
  gpu.environment = {{"NCCL_DEBUG", "WARN"}};
  gpu.learning_rate = 3e-4;
  gpu.seed = 7;
  gpu.extra_arguments = {"--warm-up-iterations=10"};
  gpu.run_file = "/scratch/anna/run-1/run.h5";
  const auto script = sbatch_script(plan_on("GH200-96", 4), tiny(), gpu);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("gpu_plan.sbatch", *script));
  expect_sound(*script);
}

TEST(SbatchScript, ForRanksThatDoNotFillTheLastNode) {
  SbatchRequest gpu = request(4);
  gpu.placer = Placer::slurm;
  const auto script = sbatch_script(plan_on("GH200-96", 3), tiny(), gpu);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("packed_plan.sbatch", *script));
  expect_sound(*script);
}

/// As sailor-submit fills it in from the site file.
SbatchRequest on_clariden() {
  const GpuCatalogue gpus = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  const Site site = load_site(SAILOR_SOURCE_DIR "/slurm/sites/alps-clariden.toml", gpus).value();
  SbatchRequest alps = request(4);
  alps.account = "a-g177";
  alps.nodes[0].partition = "normal";
  alps.nodes[0].cpus_per_rank = 72;
  alps.nodes[0].memory_nodes = site.find_layout("GH200-96")->memory_nodes;
  alps.nodes[0].memory_per_node = site.launch.memory_per_node;
  alps.nodes[0].memory_reason = MemoryReason::site;
  alps.one_gpu_per_task = site.launch.one_gpu_per_task;
  alps.exclusive = site.launch.exclusive_nodes;
  alps.constraint = site.launch.constraint;
  alps.extra_options = site.launch.sbatch_options;
  const SoftwareEnvironment* software = site.find_environment("uenv");
  alps.srun_options = software->srun_options;
  alps.srun_options.push_back(software->image_option + "=prgenv-gnu/24.11:v2");
  alps.srun_options.push_back(software->view_option + "=" + software->view);
  alps.in_image = true;
  alps.no_core_files = site.launch.no_core_files;
  alps.environment = variables_of(site, software, true);
  return alps;
}

TEST(SbatchScript, ForAlpsClariden) {
  SbatchRequest alps = on_clariden();
  alps.checkpoints = "/capstor/scratch/anna/checkpoints";
  alps.continuation = Continuation::resubmit;
  const auto script = sbatch_script(plan_on("GH200-96", 4), tiny(), alps);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("alps_clariden.sbatch", *script));
  expect_sound(*script);
}

/// As sailor-submit --elastic 2-4 fills it in.
SbatchRequest elastic_request() {
  SbatchRequest elastic = request(4);
  elastic.checkpoints = "/scratch/anna/checkpoints";
  elastic.continuation = Continuation::requeue;
  elastic.check_nodes = true;
  elastic.checker = "/opt/sailor/bin/sailor-check";
  elastic.nodes[0].gres_type = "gh200";
  elastic.nodes[0].cpus_per_rank = 72;
  elastic.elastic = ElasticNodes{.least = 2,
                                 .most = 4,
                                 .controller = "/opt/sailor/bin/sailor-controller",
                                 .controller_arguments = {"--profile=/scratch/anna/store.h5"}};
  return elastic;
}

TEST(SbatchScript, ForAnElasticTraining) {
  const auto script = sbatch_script(plan_on("GH200-96", 5), tiny(), elastic_request());  // 10 ranks, 3 nodes
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("elastic.sbatch", *script));
  expect_sound(*script);
}

TEST(SbatchScript, ForACompanionOfAnElasticTraining) {
  const auto script = companion_script(plan_on("GH200-96", 5), elastic_request());
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("companion.sbatch", *script));
  expect_sound(*script);
}

TEST(SbatchScript, RefusesElasticTrainingsThatCannotBe) {
  const auto error = [](const Plan& plan, const std::function<void(SbatchRequest&)>& change) {
    SbatchRequest elastic = elastic_request();
    change(elastic);
    const auto script = sbatch_script(plan, tiny(), elastic);
    return script ? std::string() : script.error().message();
  };
  EXPECT_EQ(error(plan_on("GH200-96", 12), [](SbatchRequest&) {}),
            "the plan is for 6 nodes, not for 2 to 4; use another --elastic MIN-MAX, or make a plan for so many nodes "
            "(--max-nodes)");
  EXPECT_EQ(error(plan_on("GH200-96", 4), [](SbatchRequest& one) { one.continuation = Continuation::none; }),
            "an elastic training that loses the node of its script has to be requeued; use --when-stopped requeue");
  Plan mixed = plan_on("GH200-96", 2);
  mixed.pipelines.push_back(mixed.pipelines.front());
  for (Stage& stage : mixed.pipelines.back().stages) stage.gpu = "A100-40";
  mixed.job.global_batch = 16;
  EXPECT_EQ(error(mixed, [](SbatchRequest& one) { one.nodes.push_back(one.nodes.front()); }),
            "an elastic training is on nodes of one kind, and the plan is for several; make a plan for one, with --pin "
            "gpu=NAME, or submit it without --elastic");
}

TEST(SbatchScript, ForNodesThatAreCheckedFirst) {
  SbatchRequest checked = request(4);
  checked.checkpoints = "/scratch/anna/checkpoints";
  checked.continuation = Continuation::requeue;
  checked.check_nodes = true;
  checked.spare_nodes = 1;
  checked.checker = "/opt/sailor/bin/sailor-check";
  checked.checker_arguments = {"--software=uenv"};
  checked.stop_lead = Seconds(412);
  checked.stop_lead_reason = "a checkpoint of 12.3 GiB takes about 161 s, as the last one did";
  const auto script = sbatch_script(plan_on("GH200-96", 3), tiny(), checked);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("checked_nodes.sbatch", *script));
  expect_sound(*script);
}

TEST(SbatchScript, ForAJobArray) {
  SbatchRequest sweep = request(4);
  sweep.nodes[0].partition = "normal";
  sweep.nodes[0].cpus_per_rank = 72;
  sweep.reservation = "course";
  sweep.run_directory = "/scratch/anna/sweep";
  sweep.plan_path = "plan.toml";
  sweep.array_limit = 1;
  const Plan deep = plan_on("GH200-96", 2);
  Plan wide = plan_on("GH200-96", 4);
  for (Pipeline& pipeline : wide.pipelines) pipeline.stages = {{.layers = {0, 6}, .gpu = "GH200-96"}};
  sweep.array = {{.directory = "/scratch/anna/sweep/deep", .plan = describe(deep)},
                 {.directory = "/scratch/anna/sweep/wide", .plan = describe(wide)}};
  const auto script = sbatch_script(deep, tiny(), sweep);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("array.sbatch", *script));
  expect_sound(*script);
}

TEST(SbatchScript, ForAHeterogeneousJob) {
  SbatchRequest mixed = request(4);
  mixed.nodes[0].partition = "normal";
  mixed.nodes[0].cpus_per_rank = 72;
  mixed.nodes.push_back({.partition = "a100", .devices_per_node = 4, .cpus_per_rank = 16});
  mixed.placer = Placer::plugin;
  mixed.checkpoints = "/scratch/anna/checkpoints";
  mixed.continuation = Continuation::requeue;
  Plan plan = plan_on("GH200-96", 2);
  Pipeline slow{.count = 1, .micro_batches = 4, .stages = {plan.pipelines[0].stages[0]}};
  slow.stages[0] = {.layers = {0, 6}, .gpu = "A100-40", .tensor_parallel = 2};
  plan.pipelines.push_back(slow);
  plan.job.global_batch = 12;
  const auto script = sbatch_script(plan, tiny(), mixed);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("heterogeneous.sbatch", *script));
  expect_sound(*script);
}

/// As sailor-submit --trainer megatron fills it in.
SbatchRequest framework_request() {
  SbatchRequest job = request(4);
  job.data.clear();
  job.iterations = 0;
  job.mpi = "none";
  job.runs_sailor_train = false;
  job.nodes[0].partition = "normal";
  job.nodes[0].cpus_per_rank = 72;
  job.framework =
      FrameworkProgram{.framework = "Megatron-Core",
                       .command = {"python", "pretrain_gpt.py", "--train-iters", "1000", "--data-path", "my corpus"},
                       .directory = "/scratch/anna/Megatron-LM",
                       .title = "Arguments of Megatron-Core",
                       .settings = "SAILOR_MEGATRON_ARGS=(\n  --num-layers 4\n)\n",
                       .array = "SAILOR_MEGATRON_ARGS"};
  return job;
}

TEST(SbatchScript, ForAProgramOfAnotherFramework) {
  SbatchRequest job = framework_request();
  job.check_nodes = true;
  job.checker = "/opt/sailor/bin/sailor-check";
  job.mpi = "pmix";
  job.stop_lead = Seconds(300);
  const auto script = sbatch_script(plan_on("GH200-96", 4), tiny(), job);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("framework_job.txt", *script));
  expect_sound(*script);
}

TEST(SbatchScript, ForAProgramOfAnotherFrameworkOnTwoKindsOfNodes) {
  SbatchRequest job = framework_request();
  job.nodes.push_back({.partition = "a100", .devices_per_node = 4, .cpus_per_rank = 16});
  job.framework->framework = "DeepSpeed";
  job.framework->command = {"./train.py", "--deepspeed_config", "/scratch/anna/run-1/ds_config.json"};
  job.framework->title = "DeepSpeed's configuration for the plan: ds_config.json";
  job.framework->settings = "{\n  \"train_batch_size\": 16\n}\n";
  job.framework->array.clear();
  job.framework->file = "ds_config.json";
  job.framework->port = 29500;
  job.framework->ranks_by_stage = true;
  Plan plan = plan_on("GH200-96", 4);
  plan.pipelines[0].stages[1].gpu = "A100-40";
  const auto script = sbatch_script(plan, tiny(), job);
  ASSERT_TRUE(script.has_value()) << script.error().message();
  EXPECT_TRUE(matches_golden("framework_heterogeneous.txt", *script));
  expect_sound(*script);
}

TEST(SbatchScript, RefusesProgramsOfFrameworksThatCannotBe) {
  const auto error = [](const std::function<void(SbatchRequest&)>& change) {
    SbatchRequest job = framework_request();
    change(job);
    const auto script = sbatch_script(plan_on("GH200-96", 4), tiny(), job);
    return script ? std::string() : script.error().message();
  };
  EXPECT_EQ(error([](SbatchRequest&) {}), "");
  EXPECT_EQ(error([](SbatchRequest& job) { job.framework->command.clear(); }),
            "there is no program of Megatron-Core to run; name it behind '--'");
  EXPECT_EQ(error([](SbatchRequest& job) { job.placer = Placer::plugin; }),
            "the variables by which Megatron-Core finds its ranks come from sailor-launch; let it place the ranks: "
            "--placer launcher");
  EXPECT_EQ(error([](SbatchRequest& job) { job.framework->port = 80; }),
            "80 is no TCP port of a user's program; use one from 1024 to 65535");
  EXPECT_NE(error([](SbatchRequest& job) { job.framework->directory = "here"; }).find("is not absolute"),
            std::string::npos);
  EXPECT_NE(error([](SbatchRequest& job) { job.checkpoints = "/kept"; }).find("are for sailor-train"),
            std::string::npos);
}

TEST(ClusterToml, OfWhatSlurmSaid) {
  const GpuCatalogue catalogue = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  const auto node = [](std::string name, std::string gres, NodeState state, std::string reason) {
    return NodeRecord{.name = std::move(name),
                      .gres = std::move(gres),
                      .cpus = 288,
                      .cores = 288,
                      .memory_mib = 854000,
                      .state = state,
                      .state_reason = std::move(reason),
                      .partitions = {"normal", "debug"}};
  };
  NodeRecord cpu = node("cn1", "", NodeState::mixed, "");
  cpu.cpus = 256;
  cpu.cores = 128;
  cpu.partitions = {"cpu"};
  const auto reading = assemble_cluster(
      "alps",
      {{.name = "normal", .is_default = true, .time_limit = Seconds(86400), .most_nodes = {}},
       {.name = "debug", .time_limit = Seconds(1800), .most_nodes = 2},
       {.name = "cpu", .up = false, .time_limit = {}, .most_nodes = {}}},
      {node("nid1", "gpu:gh200:4(S:0-3)", NodeState::idle, ""), node("nid2", "gpu:gh200:4(S:0-3)", NodeState::idle, ""),
       node("nid3", "gpu:gh200:4(S:0-3)", NodeState::unavailable, "drained: \"bad\" fan"), cpu},
      catalogue);
  ASSERT_TRUE(reading.has_value()) << reading.error().message();
  const std::string text = cluster_to_toml(reading->cluster);
  EXPECT_TRUE(matches_golden("slurm_cluster.toml", text));
  EXPECT_EQ(cluster_to_toml(parse_cluster(text, "slurm", catalogue).value()), text);
}

}  // namespace
}  // namespace sailor::slurm::slurm_test
