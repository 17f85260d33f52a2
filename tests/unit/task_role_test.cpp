#include "slurm/task_role.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "core/affinity.hpp"

namespace sailor::slurm::task_role_test {

namespace {

using Words = std::vector<std::string>;
using Cores = std::vector<int>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

using Variables = std::map<std::string, std::string>;

Lookup in(const Variables& variables) {
  return [variables](const std::string& name) { return lookup_in(variables)(name); };
}

/// As a task on gh2 of a plain step sees it.
Variables plain() {
  return {{"SLURM_STEP_NODELIST", "gh[1-2]"},
          {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
          {"SLURMD_NODENAME", "gh2"},
          {"SLURM_LOCALID", "1"}};
}

/// Components gh[1-2] with 2 tasks each and a1 with 4; the step's lists are sorted by name.
Variables heterogeneous(const std::string& node, const std::string& local) {
  return {{"SLURM_STEP_NODELIST", "a1,gh[1-2]"},
          {"SLURM_STEP_TASKS_PER_NODE", "4,2(x2)"},
          {"SLURMD_NODENAME", node},
          {"SLURM_LOCALID", local},
          {"SLURM_HET_SIZE", "2"},
          {"SLURM_JOB_NODELIST_HET_GROUP_0", "gh[1-2]"},
          {"SLURM_JOB_NODELIST_HET_GROUP_1", "a1"}};
}

std::string refusal(const Result<Step>& step) { return step ? "read" : step.error().message(); }

const GpuCatalogue& gpus() {
  static const GpuCatalogue catalogue = *GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml");
  return catalogue;
}

Stage stage(const std::string& gpu, int tensor_parallel, const std::string& zone = "") {
  Stage made;
  made.gpu = gpu;
  made.tensor_parallel = tensor_parallel;
  made.zone = zone;
  return made;
}

Plan plan_of(const std::vector<std::vector<Stage>>& pipelines) {
  Plan plan;
  for (const auto& stages : pipelines) {
    plan.pipelines.emplace_back();
    plan.pipelines.back().stages = stages;
  }
  return plan;
}

/// A GPU pipeline of two stages of 2, another of a stage of 4 on other GPUs.
Plan mixed_plan() {
  return plan_of({{stage("GH200-96", 2, "normal"), stage("GH200-96", 2, "normal")}, {stage("A100-40", 4, "a100")}});
}

std::string refusal(const Plan& plan, const Step& step) {
  const auto role = find_role(plan, step, &gpus());
  return role ? "placed" : role.error().message();
}

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "task_role_XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return folder / name;
  }
  std::filesystem::path folder;
};

}  // namespace

TEST(TaskRoleStep, IsReadFromTheTasksEnvironment) {
  const auto step = read_step(in(plain()));
  ASSERT_TRUE(step) << step.error().message();
  EXPECT_EQ(step->tasks(), 8);
  EXPECT_EQ(step->components, 1);
  EXPECT_EQ(step->nodes[step->own_node].name, "gh2");
  EXPECT_EQ(step->local_task, 1);
}

TEST(TaskRoleStep, ComponentsAreInTheOrderOfTheJob) {
  const auto step = read_step(in(heterogeneous("a1", "3")));
  ASSERT_TRUE(step) << step.error().message();
  EXPECT_EQ(step->components, 2);
  std::vector<std::string> nodes;
  for (const StepNode& node : step->nodes)
    nodes.push_back(node.name + ":" + std::to_string(node.tasks) + ":" + std::to_string(node.component));
  EXPECT_EQ(nodes, (Words{"gh1:2:0", "gh2:2:0", "a1:4:1"}));
  EXPECT_EQ(step->own_node, 2U);
}

TEST(TaskRoleStep, SaysWhatIsWrongWithTheEnvironment) {
  EXPECT_EQ(refusal(read_step(in({}))),
            "this is no task of a Slurm job step: SLURM_STEP_NODELIST is not set; start it with srun");
  const auto with = [](const std::string& name, const std::string& value) {
    Variables variables = plain();
    variables[name] = value;
    return refusal(read_step(in(variables)));
  };
  EXPECT_PRED2(contains, with("SLURM_STEP_NODELIST", "gh[1-3]"),
               "has 3 nodes but SLURM_STEP_TASKS_PER_NODE='4(x2)' has 2");
  EXPECT_PRED2(contains, with("SLURM_STEP_NODELIST", "gh[1-"), "SLURM_STEP_NODELIST: node list");
  for (const char* bad : {"4(x2", "x", "4(x)", "-1", "4(x999999999)", "2(x2)garbage"})
    EXPECT_PRED2(contains, with("SLURM_STEP_TASKS_PER_NODE", bad), "is not readable") << bad;
  EXPECT_PRED2(contains, with("SLURMD_NODENAME", "gh7"), "SLURMD_NODENAME=gh7 is not among the step's nodes gh[1-2]");
  EXPECT_PRED2(contains, with("SLURM_LOCALID", "4"), "SLURM_LOCALID=4 but node gh2 has 4 tasks");
  EXPECT_PRED2(contains, with("SLURM_LOCALID", "x"), "SLURM_LOCALID='x' is no number");
}

TEST_F(Files, SlurmConfSaysWhichNodesHaveWhat) {
  const auto conf = write("slurm.conf",
                          "ClusterName=alps\n"
                          "Include nodes.conf # more\n"
                          "NodeName=DEFAULT Gres=gpu:gh200:4\n"
                          "nodename=gh1 CPUs=288 # the rest is default\n"
                          "NodeName=gh2 \\\n"
                          "  CPUs=288 Gres=gpu:a100:2,shard:4\n");
  write("nodes.conf", "NodeName=a[1-9] Gres=gpu:a100:4(S:0-1) Comment=\"two words\"\nNodeName=b1\nNodeName=b[1\n");
  write("topology.conf", "SwitchName=s1 Nodes=gh[1-2]\nSwitchName=s2 Nodes=a[1-9]\nSwitchName=top Switches=s[1-2]\n");
  Step step;
  for (const char* name : {"a1", "b1", "gh1", "gh2", "elsewhere"}) step.nodes.push_back({.name = name, .tasks = 1});
  const auto read = add_node_facts(step, conf);
  ASSERT_TRUE(read) << read.error().message();
  std::vector<std::string> facts;
  for (const StepNode& node : step.nodes) facts.push_back(node.name + " " + node.gres_type + " " + node.leaf_switch);
  EXPECT_EQ(facts, (Words{"a1 a100 s2", "b1 - ", "gh1 gh200 s1", "gh2 a100 s1", "elsewhere  "}));
}

TEST_F(Files, IncludesThatNeverEndAndFilesThatAreNotThereAreNoTrap) {
  Step step;
  step.nodes.push_back({.name = "n1", .tasks = 1});
  EXPECT_TRUE(add_node_facts(step, write("slurm.conf", "Include slurm.conf\nNodeName=n1 Gres=gpu:v100:2\n")));
  EXPECT_EQ(step.nodes[0].gres_type, "v100");
  EXPECT_FALSE(add_node_facts(step, folder / "missing.conf"));
}

TEST_F(Files, TellATaskInAContainerWhatSlurmConfSaysOfItsNodes) {
  write("slurm.conf", "NodeName=gh[1-2] Gres=gpu:gh200:4\nNodeName=a1 Gres=gpu:a100:2\nNodeName=z9 Gres=gpu:1\n");
  write("topology.conf", "SwitchName=s0 Nodes=gh1,a1\nSwitchName=s1 Nodes=gh2,z9\n");
  // The script of a heterogeneous job, on the host
  const auto facts = node_facts_of_job(in({{"SLURM_CONF", (folder / "slurm.conf").string()},
                                           {"SLURM_JOB_NODELIST", "gh[1-2]"},
                                           {"SLURM_JOB_NODELIST_HET_GROUP_0", "gh[1-2]"},
                                           {"SLURM_JOB_NODELIST_HET_GROUP_1", "a1"}}));
  ASSERT_TRUE(facts) << facts.error().message();
  EXPECT_EQ(facts->find("z9"), std::string::npos);
  const auto file = write("facts.toml", *facts);
  // A task of it, which sees no slurm.conf
  auto step = read_step(in(heterogeneous("a1", "0")));
  ASSERT_TRUE(step) << step.error().message();
  const auto read = read_node_facts(*step, file);
  ASSERT_TRUE(read) << read.error().message();
  std::string seen;
  for (const StepNode& node : step->nodes)
    seen += node.name + " " + node.gres_type + " " + std::to_string(node.gpus) + " " + node.leaf_switch + "\n";
  EXPECT_EQ(seen, "gh1 gh200 4 s0\ngh2 gh200 4 s1\na1 a100 2 s0\n");

  EXPECT_EQ(node_facts_of_job(in({})).error().what, "this is no job of Slurm's: SLURM_JOB_NODELIST is not set");
  // A file that cannot be read there ends no job: the tasks say what is not known.
  const auto none = node_facts_of_job(in({{"SLURM_CONF", "/nowhere/slurm.conf"}, {"SLURM_JOB_NODELIST", "gh1"}}));
  ASSERT_TRUE(none) << none.error().message();
  const auto unknown = read_node_facts(*step, write("none.toml", *none));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::unavailable);
  EXPECT_TRUE(contains(unknown.error().what, "on the host: ") && contains(unknown.error().what, "/nowhere/slurm.conf"))
      << unknown.error().what;
  EXPECT_TRUE(contains(
      read_node_facts(*step, write("bad.toml", "schema_version = 1\n[[nodes]]\nnmae = \"x\"\n")).error().message(),
      "bad.toml:"));
}

TEST(TaskRole, FollowsThePlanOnAPlainStep) {
  const Plan plan = plan_of({{stage("GH200-96", 2), stage("GH200-96", 2)}, {stage("GH200-96", 4)}});
  const auto step = read_step(in(plain()));  // task 1 of the second of two nodes: rank 5
  ASSERT_TRUE(step);
  const auto role = find_role(plan, *step, &gpus());
  ASSERT_TRUE(role) << role.error().message();
  EXPECT_EQ(describe(*role, *step), "rank 5 of 8: pipeline 1, stage 0, tensor-parallel index 1, GH200-96 1 of gh2");
  EXPECT_TRUE(role->on_gpu);
}

TEST(TaskRole, ComponentsBelongToTheDevicesInThePlansOrder) {
  const std::map<std::pair<std::string, std::string>, int> expected{
      {{"gh1", "0"}, 0}, {{"gh1", "1"}, 1}, {{"gh2", "0"}, 2}, {{"gh2", "1"}, 3}, {{"a1", "0"}, 4}, {{"a1", "3"}, 7}};
  for (const auto& [task, rank] : expected) {
    const auto step = read_step(in(heterogeneous(task.first, task.second)));
    ASSERT_TRUE(step);
    const auto role = find_role(mixed_plan(), *step, &gpus());
    ASSERT_TRUE(role) << role.error().message();
    EXPECT_EQ(role->role.rank, rank) << task.first << " " << task.second;
  }
}

TEST(TaskRole, DevicesThatAreKnownSayWhatComponentsAreFor) {
  // The components the other way round than the plan.
  Variables variables = heterogeneous("a1", "0");
  std::swap(variables["SLURM_JOB_NODELIST_HET_GROUP_0"], variables["SLURM_JOB_NODELIST_HET_GROUP_1"]);
  auto step = read_step(in(variables));
  ASSERT_TRUE(step);
  for (StepNode& node : step->nodes) node.gres_type = node.name == "a1" ? "a100" : "gh200";
  const auto role = find_role(mixed_plan(), *step, &gpus());
  ASSERT_TRUE(role) << role.error().message();
  EXPECT_EQ(role->role.rank, 4);
}

TEST(TaskRole, RefusesAnAllocationThatIsNotThePlans) {
  auto step = read_step(in(plain()));
  ASSERT_TRUE(step);
  EXPECT_EQ(refusal(plan_of({{stage("GH200-96", 4)}}), *step),
            "the plan has 4 ranks but the job step has 8 tasks; start it with srun --nodes=1 --ntasks-per-node=4, or "
            "make another plan");
  for (StepNode& node : step->nodes) node.gres_type = "a100";
  const Plan plan = plan_of({{stage("GH200-96", 4)}, {stage("GH200-96", 4)}});
  EXPECT_PRED2(contains, refusal(plan, *step),
               "the plan needs GH200-96 on nodes gh1, gh2, which have A100-40; ask for");
  step->nodes[0].gres_type = "gh200";
  EXPECT_PRED2(contains, refusal(plan, *step), "the plan needs GH200-96 on node gh2, which has A100-40");
  step->nodes[1].gres_type = "-";
  EXPECT_PRED2(contains, refusal(plan, *step), "the plan needs GH200-96 on node gh2, which has cpu");
  step->nodes[1].gres_type = "mystery";  // the site file, or --gpu-type, has said that these are GH200
  EXPECT_EQ(refusal(plan, *step), "placed");
  step->nodes[1].gres_type = "";  // not known
  EXPECT_EQ(refusal(plan, *step), "placed");
  step->nodes[1].gpus = 2;
  EXPECT_EQ(refusal(plan, *step), "node gh2 has 4 tasks but 2 GPUs; start at most 2 on a node: --ntasks-per-node=2");
  step->nodes[1].gpus = 4;
  // Two nodes of 4 tasks cannot hold a group of 8.
  EXPECT_PRED2(contains, refusal(plan_of({{stage("GH200-96", 8)}}), *step),
               "a tensor-parallel group, of up to 8, stays on one");
  EXPECT_PRED2(contains, refusal(mixed_plan(), *step), "nothing says which nodes of this job are which");
}

TEST(TaskRole, SaysWhichNodesAndTasksThePlanNeeds) {
  // Of two nodes with 4 tasks each; `gpus` by slurm.conf, 0: not known.
  const auto needs = [](const Plan& plan, int gpus, int copies = 1) {
    auto step = read_step(in(plain()));
    for (StepNode& node : step->nodes) node.gpus = gpus;
    Plan copied = plan;
    copied.pipelines.front().count = copies;
    const std::string message = refusal(copied, *step);
    const std::string before = "start it with srun ";
    const std::size_t begin = message.find(before);
    if (begin == std::string::npos) return message;
    return message.substr(begin + before.size(), message.find(", or make") - begin - before.size());
  };
  const Plan single = plan_of({{stage("GH200-96", 1)}});
  const Plan pairs = plan_of({{stage("GH200-96", 2)}});
  EXPECT_EQ(needs(single, 0, 12), "--nodes=3 --ntasks-per-node=4");
  EXPECT_EQ(needs(single, 2, 12), "--nodes=6 --ntasks-per-node=2");
  EXPECT_EQ(needs(single, 4, 3), "--nodes=1 --ntasks-per-node=3");
  // 4 + 2 would do; 3 + 3 is one component.
  EXPECT_EQ(needs(single, 4, 6), "--nodes=2 --ntasks-per-node=3");
  // 3 + 3 would tear a pair apart.
  EXPECT_EQ(needs(pairs, 4, 3), "--nodes=1 --ntasks-per-node=4 : --nodes=1 --ntasks-per-node=2");
  EXPECT_EQ(needs(pairs, 3, 3), "--nodes=3 --ntasks-per-node=2");
  // 7 ranks do not divide.
  EXPECT_EQ(needs(single, 4, 7), "--nodes=1 --ntasks-per-node=4 : --nodes=1 --ntasks-per-node=3");
  // A group is on one node, whatever the step has.
  EXPECT_EQ(needs(plan_of({{stage("GH200-96", 16)}}), 4), "--nodes=1 --ntasks-per-node=16");
  // Cores: the nodes of the step, with as many tasks as it takes.
  EXPECT_EQ(needs(plan_of({{stage("cpu", 1)}}), 0, 20), "--nodes=2 --ntasks-per-node=10");
  EXPECT_EQ(needs(plan_of({{stage("GH200-96", 2, "normal"), stage("A100-40", 4, "a100")}}), 4, 2),
            "--nodes=1 --ntasks-per-node=4 : --nodes=2 --ntasks-per-node=4 (GH200-96 in 'normal' : A100-40 in 'a100')");
  // Found in a moment, however many ranks a hostile plan has.
  EXPECT_EQ(needs(pairs, 4, 500'000'000), "--nodes=250000000 --ntasks-per-node=4");
}

TEST(TaskRole, RefusesComponentsOfOtherSizes) {
  Variables variables = heterogeneous("a1", "0");
  variables["SLURM_STEP_TASKS_PER_NODE"] = "2,3(x2)";
  const auto step = read_step(in(variables));
  ASSERT_TRUE(step);
  EXPECT_PRED2(contains, refusal(mixed_plan(), *step),
               "component 0 of the job has 6 tasks, 2 more than the plan has ranks left for GH200-96 in 'normal'");
}

TEST(TaskRole, ACpuPlanRunsOnAnyNode) {
  auto step = read_step(in(plain()));
  ASSERT_TRUE(step);
  for (StepNode& node : step->nodes) node.gres_type = "a100";
  const auto role = find_role(plan_of({{stage("cpu", 4), stage("cpu", 4)}}), *step, &gpus());
  ASSERT_TRUE(role) << role.error().message();
  EXPECT_FALSE(role->on_gpu);
}

TEST(TaskRoleEnvironment, NamesTheRoleAndOneGpu) {
  const Plan plan = mixed_plan();
  TaskRole task{.role = {.rank = 5, .pipeline = 1, .stage = 0, .tensor_parallel_index = 1},
                .ranks = 8,
                .local_rank = 1,
                .local_ranks = 4,
                .gpu = "A100-40"};
  const auto visible = [&](const std::string& devices) -> std::string {
    const auto variables = role_environment(task, plan, "/p/plan.toml", in({{"CUDA_VISIBLE_DEVICES", devices}}));
    if (!variables) return variables.error().message();
    const auto& [name, value] = variables->back();
    return name == "CUDA_VISIBLE_DEVICES" ? value : "unchanged";
  };
  EXPECT_EQ(visible("0,2,4,7"), "2");
  EXPECT_EQ(visible("GPU-a,GPU-b,GPU-c,GPU-d"), "GPU-b");
  EXPECT_EQ(visible("3"), "unchanged");
  EXPECT_PRED2(
      contains, visible("0,1"),
      "the task sees 2 GPUs (CUDA_VISIBLE_DEVICES=0,1) for the 4 ranks of its node; ask for --gpus-per-node=4");
  task.on_gpu = false;
  EXPECT_EQ(visible("0,1"), "unchanged");
  const auto variables = role_environment(task, plan, "/p/plan.toml", in({}));
  ASSERT_TRUE(variables);
  const Variables found(variables->begin(), variables->end());
  EXPECT_EQ(found, (Variables{{"SAILOR_PLAN", "/p/plan.toml"},
                              {"SAILOR_PLAN_FINGERPRINT", plan_fingerprint(plan)},
                              {"SAILOR_RANK", "5"},
                              {"SAILOR_RANKS", "8"},
                              {"SAILOR_PIPELINE", "1"},
                              {"SAILOR_STAGE", "0"},
                              {"SAILOR_TENSOR_PARALLEL_INDEX", "1"},
                              {"SAILOR_LOCAL_RANK", "1"}}));
}

TEST(TaskRoleEnvironment, PyTorchRanksCanBeNumberedByStage) {
  // Two pipelines of two stages, tensor parallelism 2. By pipeline: P0S0 0-1, P0S1 2-3, P1S0 4-5, P1S1 6-7; by stage:
  // P0S0 0-1, P1S0 2-3, P0S1 4-5, P1S1 6-7.
  const std::vector<Stage> pipeline{stage("GH200-96", 2), stage("GH200-96", 2)};
  const Plan plan = plan_of({pipeline, pipeline});
  Step step;
  step.nodes = {{.name = "gh1", .tasks = 4}, {.name = "gh2", .tasks = 4}};
  std::map<std::string, std::string> numbers;
  for (const bool by_stage : {false, true})
    for (const std::size_t node : {0U, 1U})
      for (const int local : {0, 1, 2, 3}) {
        step.own_node = node;
        step.local_task = local;
        const auto task = find_role(plan, step, nullptr);
        ASSERT_TRUE(task) << task.error().message();
        for (const auto& [name, value] : torch_environment(*task, plan, step, {.port = 29500, .by_stage = by_stage}, {},
                                                           in({{"SLURM_JOB_ID", "12"}})))
          if (name == "RANK") numbers[by_stage ? "stage" : "plan"] += value;
      }
  EXPECT_EQ(numbers["plan"], "01234567");
  EXPECT_EQ(numbers["stage"], "01452367");
}

TEST(TaskRoleEnvironment, PyTorchFindsTheFirstRankOfThePlan) {
  const auto step = read_step(in(heterogeneous("a1", "3")));
  ASSERT_TRUE(step) << step.error().message();
  const auto task = find_role(mixed_plan(), *step, &gpus());
  ASSERT_TRUE(task) << task.error().message();
  const auto of = [&](const Variables& role, const Variables& environment) {
    const auto variables =
        torch_environment(*task, mixed_plan(), *step, {.port = 29500}, {role.begin(), role.end()}, in(environment));
    return Variables(variables.begin(), variables.end());
  };
  const Variables alone{
      {"RANK", "7"},       {"WORLD_SIZE", "8"},    {"LOCAL_RANK", "0"},      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "2"}, {"MASTER_ADDR", "gh1"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "0.0"}};
  // One GPU that Sailor or Slurm chose is number 0 of those that the task sees.
  EXPECT_EQ(of({{"CUDA_VISIBLE_DEVICES", "3"}}, {{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}}), alone);
  EXPECT_EQ(of({}, {{"CUDA_VISIBLE_DEVICES", "3"}}), alone);
  // Of several, or of cores, the task's own.
  Variables of_several = alone;
  of_several["LOCAL_RANK"] = "3";
  EXPECT_EQ(of({}, {}), of_several);
}

TEST(TaskRoleCores, AreDividedEquallyUnlessSlurmHasDoneSo) {
  const TaskRole task{.role = {}, .ranks = 4, .local_rank = 1, .local_ranks = 2, .gpu = "cpu"};
  const std::vector<int> all{0, 1, 2, 3, 8, 9, 10};
  EXPECT_EQ(cores_of_task(task, all, in({})), (Cores{3, 8, 9}));
  EXPECT_EQ(cores_of_task(task, all, in({{"SLURM_CPU_BIND", "quiet,none"}})), all);
  EXPECT_EQ(cores_of_task(task, all, in({{"SLURM_CPU_BIND", "quiet,mask_cpu:0x0F,0x700"}})), all);
  EXPECT_EQ(cores_of_task(task, all, in({{"SLURM_CPU_BIND", "verbose,sockets"}})), all);
  EXPECT_EQ(cores_of_task(task, all, in({{"SLURM_CPU_BIND", "quiet,mask_cpu:0x70F,0x70F"}})), (Cores{3, 8, 9}));
  EXPECT_EQ(cores_of_task(task, all, in({{"SLURM_CPUS_PER_TASK", "7"}})), all);
  EXPECT_EQ(cores_of_task(task, all, in({{"SLURM_CPUS_PER_TASK", "2"}})), (Cores{3, 8, 9}));
  EXPECT_EQ(cores_of_task(task, {5}, in({})), (Cores{5}));
}

TEST(TaskRoleCores, OfThisProcessAreThoseOfTheSystem) {
  const std::vector<int> before = allowed_cores();
  ASSERT_FALSE(before.empty());
  ASSERT_TRUE(bind_to_cores({before.back()}));
  EXPECT_EQ(allowed_cores(), (Cores{before.back()}));
  EXPECT_TRUE(bind_to_cores(before));
  EXPECT_FALSE(bind_to_cores({}));
}

}  // namespace sailor::slurm::task_role_test
