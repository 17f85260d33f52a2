// The SPANK plugin in a fake host: every hook in every context, with the real spank.h. It is linked in (also
// under sanitizers), and tested again, with SAILOR_SPANK_MODULE, as the shared object that Slurm loads.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/affinity.hpp"
#include "fakes/spank_host.hpp"
#include "slurm/task_role.hpp"

namespace sailor::spank_plugin_test {
namespace {

namespace fs = std::filesystem;
using fakes::Outcome;
using fakes::SpankHost;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Two pipelines of two stages on `gpu`, the second stage tensor-parallel: ranks 0, 1-2, and 3, 4-5.
std::string plan_text(const std::string& gpu = "GH200-96") {
  return "schema_version = 1\nmicro_batch = 1\nschedule = \"1f1b\"\n"
         "[job]\nmodel = \"tiny-gpt\"\nglobal_batch = 4\nsequence_length = 64\nprecision = \"fp32\"\n"
         "optimizer = \"adamw\"\n"
         "[[pipelines]]\ncount = 2\nmicro_batches = 2\n"
         "[[pipelines.stages]]\nlayers = [0, 3]\ngpu = \"" +
         gpu +
         "\"\n"
         "[[pipelines.stages]]\nlayers = [3, 6]\ngpu = \"" +
         gpu + "\"\ntensor_parallel = 2\n";
}

class SpankPlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sailor-spank.XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    write("plan.toml", plan_text());
    write("slurm.conf", "NodeName=gh[1-4] Gres=gpu:gh200:4\nNodeName=a1 Gres=gpu:a100:4\nNodeName=c1 CPUs=8\n");
  }
  void TearDown() override {
    std::error_code code;
    fs::permissions(folder_ / "closed", fs::perms::owner_all, code);
    fs::remove_all(folder_, code);
  }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  [[nodiscard]] std::string file(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string gpus() const { return "gpus=" SAILOR_SOURCE_DIR "/profiles/gpus.toml"; }

  [[nodiscard]] SpankHost command(spank_context_t program = S_CTX_LOCAL) const { return SpankHost(program); }

  /// slurmstepd with task `local` of a step of 6 tasks on gh1 and gh2, of a job that asked for plan.toml.
  [[nodiscard]] SpankHost stepd(int local = 0, const std::string& node = "gh1") const {
    SpankHost host(S_CTX_REMOTE);
    host.arguments = {gpus(), "devices=none"};
    host.task = {{"SAILOR_PLAN", file("plan.toml")},
                 {"SLURM_STEP_NODELIST", "gh[1-2]"},
                 {"SLURM_STEP_TASKS_PER_NODE", "4,2"},
                 {"SLURMD_NODENAME", node},
                 {"SLURM_LOCALID", std::to_string(local)},
                 {"SLURM_PROCID", std::to_string(node == "gh1" ? local : 4 + local)},
                 {"SLURM_CPU_BIND", "none"},
                 {"SLURM_CONF", file("slurm.conf")},
                 {"CUDA_VISIBLE_DEVICES", "0,1,2,3"},
                 {"HOME", "/home/user"}};
    return host;
  }

  fs::path folder_;
};

int submit(SpankHost& host) {
  const int begun = host.init();
  return begun != 0 ? begun : host.init_post_opt();
}
auto submit_with(const std::string& plan) {
  return [plan](SpankHost& host) {
    if (const int status = host.init(); status != 0) return status;
    if (const int status = host.option(plan); status != 0) return status;
    return host.init_post_opt();
  };
}
int start_task(SpankHost& host) {
  if (const int status = host.init(); status != 0) return status;
  if (const int status = host.init_post_opt(); status != 0) return status;
  return host.task_init();
}
auto start_task_with(const std::string& plan) {
  return [plan](SpankHost& host) {
    if (const int status = host.init(); status != 0) return status;
    // slurmstepd calls it twice.
    for (int call = 0; call < 2; ++call)
      if (const int status = host.option(plan); status != 0) return status;
    if (const int status = host.init_post_opt(); status != 0) return status;
    return host.task_init();
  };
}

void expect_refused(const Outcome& outcome, const std::string& message) {
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_PRED2(contains, outcome.said(), message);
  EXPECT_TRUE(outcome.misuse.empty()) << outcome.misuse.front();
}
void expect_fine(const Outcome& outcome) {
  EXPECT_FALSE(outcome.ended);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.said(), "");
  EXPECT_TRUE(outcome.misuse.empty()) << outcome.misuse.front();
}

// ---- what Slurm sees

TEST_F(SpankPlugin, IsOneForThisSlurm) {
  EXPECT_STREQ(static_cast<const char*>(fakes::plugin_symbol("plugin_name")), "sailor");
  EXPECT_STREQ(static_cast<const char*>(fakes::plugin_symbol("plugin_type")), "spank");
  EXPECT_EQ(*static_cast<const unsigned*>(fakes::plugin_symbol("plugin_version")), SLURM_VERSION_NUMBER);
  EXPECT_NE(fakes::plugin_symbol("spank_plugin_version"), nullptr);
}

TEST_F(SpankPlugin, HasOnlyTheHooksThatItNeeds) {
  for (const std::string& name : fakes::all_hooks) {
    const bool there = fakes::plugin_symbol(name) != nullptr;
    EXPECT_EQ(there,
              name == "slurm_spank_init" || name == "slurm_spank_init_post_opt" || name == "slurm_spank_task_init")
        << name;
  }
}

TEST_F(SpankPlugin, RegistersItsOptionWhereItIsUsed) {
  for (const auto context : {S_CTX_LOCAL, S_CTX_ALLOCATOR, S_CTX_REMOTE}) {
    const Outcome outcome = command(context).run([](SpankHost& host) { return host.init(); });
    expect_fine(outcome);
    ASSERT_EQ(outcome.options.size(), 1U);
    EXPECT_TRUE(outcome.options.front().starts_with("sailor-plan=FILE [sailor] ")) << outcome.options.front();
  }
}

TEST_F(SpankPlugin, DoesNothingInSlurmdAndInPrologs) {
  for (const auto context : {S_CTX_SLURMD, S_CTX_JOB_SCRIPT, S_CTX_ERROR}) {
    SpankHost host = command(context);
    host.own = {{"SAILOR_PLAN", "/nowhere"}, {"SPANK_SAILOR_PLAN", "/nowhere"}};
    const Outcome outcome = host.run([](SpankHost& running) {
      int status = 0;
      for (const std::string& name : fakes::all_hooks)
        if (name != "slurm_spank_task_init") status |= running.hook(name);
      return status;
    });
    expect_fine(outcome);
    EXPECT_TRUE(outcome.options.empty());
  }
}

// ---- jobs that do not ask

TEST_F(SpankPlugin, LeavesOtherJobsAlone) {
  SpankHost host = stepd();
  host.task.erase("SAILOR_PLAN");
  host.task.erase("SLURM_CPU_BIND");
  host.arguments = {"environment=/nowhere", "gpus=/nowhere", "nonsense"};
  const Outcome outcome = host.run(start_task);
  expect_fine(outcome);
  EXPECT_EQ(outcome.task, host.task);
  EXPECT_EQ(outcome.cores, allowed_cores());
}

TEST_F(SpankPlugin, LeavesCommandsOfOtherJobsAlone) {
  for (const auto context : {S_CTX_LOCAL, S_CTX_ALLOCATOR}) {
    SpankHost host = command(context);
    host.arguments = {"nonsense"};
    const Outcome outcome = host.run(submit);
    expect_fine(outcome);
    EXPECT_FALSE(outcome.own.contains("SAILOR_PLAN"));
    EXPECT_FALSE(outcome.own.contains("SLURM_SPANK_SAILOR_PLAN"));
    EXPECT_TRUE(outcome.job_control.empty());
  }
}

TEST_F(SpankPlugin, TakesAnEmptyVariableForNoPlan) {
  SpankHost host = stepd();
  host.task["SAILOR_PLAN"] = "";
  host.task["SLURM_SPANK_SAILOR_PLAN"] = file("plan.toml");
  const Outcome outcome = host.run(start_task_with("plan.toml"));  // the job's option
  expect_fine(outcome);
  EXPECT_EQ(outcome.task, host.task);

  // Under --export=NONE the tasks see only what Slurm carries.
  SpankHost srun = command();
  srun.own = {{"SAILOR_PLAN", ""},
              {"SLURM_SPANK_SAILOR_PLAN", file("plan.toml")},
              {"SLURM_SPANK__SLURM_SPANK_OPTION_sailor_sailor_plan", "plan.toml"}};
  for (const auto& body : {std::function<int(SpankHost&)>(submit), {submit_with("plan.toml")}}) {
    const Outcome submitted = srun.run(body);
    expect_fine(submitted);
    EXPECT_EQ(submitted.own.at("SLURM_SPANK_SAILOR_PLAN"), "");
  }
  host.task.erase("SAILOR_PLAN");
  host.task["SLURM_SPANK_SAILOR_PLAN"] = "";
  expect_fine(host.run(start_task_with("plan.toml")));
}

TEST_F(SpankPlugin, TakesNoneForNoPlan) {
  SpankHost host = stepd();
  const Outcome outcome = host.run(start_task_with("none"));
  expect_fine(outcome);
  EXPECT_EQ(outcome.task, host.task);

  SpankHost srun = command();
  srun.own = {{"SAILOR_PLAN", "/nowhere"}, {"SLURM_SPANK_SAILOR_PLAN", "/nowhere"}};
  expect_fine(srun.run(submit_with("none")));
}

TEST_F(SpankPlugin, LeavesBatchScriptsAndShellsAlone) {
  for (const std::uint32_t step : {0xfffffffbU, 0xfffffffaU, 0xfffffffcU}) {
    SpankHost host = stepd();
    host.step = step;
    host.task["SAILOR_PLAN"] = "/nowhere";
    const Outcome outcome = host.run(start_task_with("/nowhere"));
    expect_fine(outcome);
    EXPECT_EQ(outcome.task, host.task);
  }
}

// ---- submitting

TEST_F(SpankPlugin, HandsTheAbsolutePlanOn) {
  fs::create_directory_symlink(folder_, folder_ / "link");
  for (const auto context : {S_CTX_LOCAL, S_CTX_ALLOCATOR}) {
    SpankHost host = command(context);
    const Outcome outcome = host.run([&](SpankHost& running) {
      fs::current_path(folder_ / "link");
      return submit_with("./plan.toml")(running);
    });
    expect_fine(outcome);
    const std::string plan = fs::canonical(folder_ / "plan.toml").string();
    EXPECT_EQ(outcome.own.at("SAILOR_PLAN"), plan);
    EXPECT_EQ(outcome.job_control.at("SAILOR_PLAN"), plan);
    EXPECT_EQ(outcome.own.contains("SLURM_SPANK_SAILOR_PLAN"), context == S_CTX_LOCAL);
  }
}

TEST_F(SpankPlugin, PrefersTheOptionToTheVariable) {
  write("other.toml", plan_text("A100-40"));
  SpankHost host = command(S_CTX_ALLOCATOR);
  host.own = {{"SAILOR_PLAN", "/nowhere"}};
  const Outcome outcome = host.run(submit_with(file("other.toml")));
  expect_fine(outcome);
  EXPECT_EQ(outcome.own.at("SAILOR_PLAN"), fs::canonical(folder_ / "other.toml").string());
}

TEST_F(SpankPlugin, TakesTheVariableWithoutTheOption) {
  for (const std::string name : {"SAILOR_PLAN", "SLURM_SPANK_SAILOR_PLAN"}) {
    SpankHost host = command();
    host.own = {{name, file("plan.toml")}};
    const Outcome outcome = host.run(submit);
    expect_fine(outcome);
    EXPECT_EQ(outcome.own.at("SAILOR_PLAN"), fs::canonical(folder_ / "plan.toml").string());
    host.own[name] = file("missing.toml");
    expect_refused(host.run(submit), "missing.toml' does not exist");
  }
}

TEST_F(SpankPlugin, InheritsTheJobsOptionFromAnotherFolder) {
  // Slurm hands a job's option to srun in the job as it was typed.
  write("other.toml", plan_text());
  for (const std::string name :
       {"_SLURM_SPANK_OPTION_sailor_sailor_plan", "SLURM_SPANK__SLURM_SPANK_OPTION_sailor_sailor_plan"}) {
    SpankHost host = command();
    host.own = {
        {name, "plan.toml"}, {"SAILOR_PLAN", file("plan.toml")}, {"SLURM_SPANK_SAILOR_PLAN", file("plan.toml")}};
    const Outcome inherited = host.run([](SpankHost& running) {
      fs::current_path("/");
      return submit_with("plan.toml")(running);
    });
    expect_fine(inherited);
    EXPECT_EQ(inherited.own.at("SAILOR_PLAN"), fs::canonical(folder_ / "plan.toml").string());

    // Another on the command line comes after it, and wins; so for each component of a heterogeneous step.
    const Outcome other = host.run([&](SpankHost& running) {
      (void)running.init();
      for (int component = 0; component < 2; ++component)
        if (running.option("plan.toml") != 0 || running.option(file("other.toml")) != 0) return 1;
      return running.init_post_opt();
    });
    expect_fine(other);
    EXPECT_EQ(other.own.at("SAILOR_PLAN"), fs::canonical(folder_ / "other.toml").string());
    const Outcome wrong = host.run([&](SpankHost& running) {
      (void)running.init();
      return running.option("plan.toml") == 0 ? running.option("missing.toml") : 1;
    });
    EXPECT_EQ(wrong.status, -1);

    // The script names another in the variable.
    host.own["SAILOR_PLAN"] = file("other.toml");
    EXPECT_EQ(host.run(submit_with("plan.toml")).own.at("SAILOR_PLAN"), fs::canonical(folder_ / "other.toml").string());

    // The job's has been deleted since.
    host.own.erase("SAILOR_PLAN");
    host.own["SLURM_SPANK_SAILOR_PLAN"] = file("deleted.toml");
    expect_refused(host.run(submit_with("plan.toml")), "the plan of the enclosing job: file '");
  }
}

/// What is no plan, and what is said about it.
struct BadPlan {
  std::string name;
  std::string message;
  friend void PrintTo(const BadPlan& plan, std::ostream* out) { *out << plan.name.substr(0, 40); }
};

class BadPlans : public SpankPlugin, public ::testing::WithParamInterface<BadPlan> {
 protected:
  void make() const {
    const std::string& name = GetParam().name;
    const std::string path = file(name);
    if (name == "truncated") write(name, plan_text().substr(0, plan_text().size() - 30));
    if (name == "nonsense") write(name, "Lorem ipsum dolor sit amet\n");
    if (name == "binary")
      write(name, std::string("\x7f"
                              "ELF\x02\x01\0\0\xff\xfe\x1b[2J\n\x07",
                              16));
    if (name == "empty") write(name, "");
    if (name == "other-toml") write(name, "schema_version = 1\n[servers]\nalpha = 1\n");
    if (name == "gap") {
      std::string text = plan_text();
      text.replace(text.find("[3, 6]"), 6, "[4, 6]");
      write(name, text);
    }
    if (name == "directory") fs::create_directory(path);
    if (name == "fifo") (void)::mkfifo(path.c_str(), 0600);
    if (name == "gigabyte") {
      write(name, plan_text());
      fs::resize_file(path, std::uintmax_t{1} << 30);  // sparse
    }
    if (name == "deep") write(name, "x = " + std::string(1 << 20, '['));
    if (name == "circle") fs::create_symlink(path, path);
    if (name == "closed/plan.toml") {
      fs::create_directory(folder_ / "closed");
      write(name, plan_text());
      fs::permissions(folder_ / "closed", fs::perms::none);
    }
  }
};

TEST_P(BadPlans, AreRefusedBeforeQueueing) {
  if (GetParam().name.starts_with("closed") && ::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  make();
  for (const auto context : {S_CTX_LOCAL, S_CTX_ALLOCATOR}) {
    const Outcome typed = command(context).run([&](SpankHost& host) {
      (void)host.init();
      return host.option(file(GetParam().name));
    });
    EXPECT_FALSE(typed.ended);
    EXPECT_EQ(typed.status, -1);
    EXPECT_PRED2(contains, typed.said(), GetParam().message);
    SpankHost host = command(context);
    host.own = {{"SAILOR_PLAN", file(GetParam().name)}};
    expect_refused(host.run(submit), GetParam().message);
  }
  EXPECT_FALSE(fs::exists(folder_ / "harm"));
}

TEST_P(BadPlans, AreRefusedFromTheTask) {
  if (GetParam().name.starts_with("closed") && ::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  make();
  SpankHost host = stepd();
  host.task["SAILOR_PLAN"] = file(GetParam().name);
  const Outcome outcome = host.run(start_task);
  expect_refused(outcome, GetParam().message);
  EXPECT_PRED2(contains, outcome.said(), "error: sailor: node gh1: ");
  for (const std::string& line : outcome.log)
    for (const char c : line) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << line;  // no escapes to the terminal
}

INSTANTIATE_TEST_SUITE_P(
    Spank, BadPlans,
    ::testing::Values(
        BadPlan{"missing", "missing' does not exist"}, BadPlan{"truncated", "truncated:"},
        BadPlan{"nonsense", "nonsense:1:"}, BadPlan{"binary", "binary:"}, BadPlan{"empty", "the file is empty"},
        BadPlan{"other-toml", "other-toml"}, BadPlan{"gap", "stage 1 starts at layer 4 but stage 0 ends at 3"},
        BadPlan{"directory", "directory' is not a regular file"}, BadPlan{"fifo", "fifo' is not a regular file"},
        BadPlan{"gigabyte", "has 1073741824 bytes; the limit is 16777216; is it the right file?"},
        BadPlan{"deep", "deep:1:"}, BadPlan{"circle", "Too many levels of symbolic links"},
        BadPlan{"closed/plan.toml", "Permission denied"},
        BadPlan{"$(touch harm).toml", "$(touch harm).toml' does not exist"},
        BadPlan{"`touch harm`;touch harm", "does not exist"}, BadPlan{"two\nlines", "two?lines' does not exist"},
        BadPlan{std::string(300, 'x'), "File name too long"},
        BadPlan{[] {
                  std::string deep;
                  for (int i = 0; i < 3000; ++i) deep += "d/";
                  return deep;
                }(),
                "File name too long"}),
    [](const auto& bad) {
      std::string name = bad.param.name.substr(0, 12);
      std::replace_if(
          name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
      return std::to_string(bad.index) + name;
    });

TEST_F(SpankPlugin, RefusesAnEmptyOption) {
  const Outcome outcome = command().run(submit_with(""));
  EXPECT_EQ(outcome.status, -1);
  EXPECT_PRED2(contains, outcome.said(), "--sailor-plan: no file is named; 'none' means no plan");
}

TEST_F(SpankPlugin, SaysWhenThePlanWillBeLost) {
  SpankHost host = command(S_CTX_ALLOCATOR);
  host.failing = {"spank_job_control_setenv"};
  const Outcome outcome = host.run(submit_with(file("plan.toml")));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_PRED2(contains, outcome.said(), "error: sailor: the plan is lost under --export=NONE");
}

// ---- tasks

TEST_F(SpankPlugin, PlacesEveryTask) {
  // gh1 has 4 tasks, gh2 has 2. A pipeline takes 3 ranks; tensor-parallel groups (ranks 1-2 and 4-5) stay on a node.
  std::set<std::string> ranks;
  for (int task = 0; task < 6; ++task) {
    const bool first = task < 4;
    const SpankHost host = stepd(first ? task : task - 4, first ? "gh1" : "gh2");
    const Outcome outcome = SpankHost(host).run(start_task);
    expect_fine({.ended = outcome.ended, .signal = outcome.signal, .status = outcome.status, .misuse = outcome.misuse});
    const std::string rank = outcome.task.at("SAILOR_RANK");
    ranks.insert(rank);
    const int number = std::stoi(rank);
    EXPECT_EQ(outcome.task.at("SAILOR_RANKS"), "6");
    EXPECT_EQ(outcome.task.at("SAILOR_PIPELINE"), std::to_string(number / 3));
    EXPECT_EQ(outcome.task.at("SAILOR_STAGE"), number % 3 == 0 ? "0" : "1");
    EXPECT_EQ(outcome.task.at("SAILOR_TENSOR_PARALLEL_INDEX"), number % 3 == 2 ? "1" : "0");
    EXPECT_EQ(outcome.task.at("CUDA_VISIBLE_DEVICES"), outcome.task.at("SAILOR_LOCAL_RANK"));
    EXPECT_EQ(outcome.task.at("SAILOR_PLAN"), file("plan.toml"));
    EXPECT_EQ(outcome.task.at("HOME"), "/home/user");
    EXPECT_PRED2(contains, outcome.said(), "verbose: sailor: rank " + rank + " of 6: pipeline ");
  }
  EXPECT_EQ(ranks.size(), 6U);
}

TEST_F(SpankPlugin, FindsThePlanWithoutTheUsersEnvironment) {
  SpankHost host = stepd();
  host.task.erase("SAILOR_PLAN");
  host.task["SLURM_SPANK_SAILOR_PLAN"] = file("plan.toml");  // --export=NONE
  EXPECT_EQ(host.run(start_task).task.at("SAILOR_PLAN"), file("plan.toml"));

  host.task.erase("SLURM_SPANK_SAILOR_PLAN");  // the option alone came through, as typed
  host.task["SLURM_SUBMIT_DIR"] = folder_.string();
  EXPECT_EQ(host.run(start_task_with("plan.toml")).task.at("SAILOR_PLAN"), file("plan.toml"));
}

TEST_F(SpankPlugin, RefusesAnotherNumberOfTasks) {
  SpankHost host = stepd();
  host.task["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  const Outcome outcome = host.run(start_task);
  expect_refused(outcome, "the plan has 6 ranks but the job step has 8 tasks");
  EXPECT_PRED2(contains, outcome.said(), "a step that is no training: srun --sailor-plan=none");
  // All tasks meet it: the first one tells.
  host.task["SLURM_LOCALID"] = host.task["SLURM_PROCID"] = "1";
  const Outcome silent = host.run(start_task);
  EXPECT_TRUE(silent.ended);
  EXPECT_EQ(silent.status, 1);
  EXPECT_EQ(silent.said(), "");
}

TEST_F(SpankPlugin, RefusesNodesOfAnotherGpuType) {
  write("slurm.conf", "NodeName=gh1 Gres=gpu:gh200:4\nNodeName=gh2 Gres=gpu:a100:4\n");
  const Outcome outcome = stepd().run(start_task);
  expect_refused(outcome, "the plan needs GH200-96 on node gh2, which has A100-40");
  EXPECT_EQ(outcome.task.count("SAILOR_RANK"), 0U);
}

TEST_F(SpankPlugin, RefusesWhatIsNoStep) {
  SpankHost host = stepd();
  host.task.erase("SLURM_STEP_NODELIST");
  expect_refused(host.run(start_task), "this is no task of a Slurm job step");
}

TEST_F(SpankPlugin, RefusesTooFewVisibleGpus) {
  SpankHost host = stepd(3);
  host.task["CUDA_VISIBLE_DEVICES"] = "0,1";
  expect_refused(host.run(start_task), "node gh1: the task sees 2 GPUs");
}

TEST_F(SpankPlugin, RefusesToReadAsAnotherUser) {
  SpankHost host = stepd();
  host.user = ::geteuid() + 1;
  expect_refused(host.run(start_task), "who owns the job: its plan is not read");
}

TEST_F(SpankPlugin, ReadsListsOfAnyLength) {
  // 2000 nodes of a task each: more than the usual buffer.
  std::string nodes = "gh1";
  std::string text = plan_text();
  for (int i = 2; i <= 2000; ++i) nodes += ",gh" + std::to_string(i);
  text.replace(text.find("tensor_parallel = 2"), 19, "tensor_parallel = 1");
  text.replace(text.find("count = 2"), 9, "count = 1000");
  text.replace(text.find("global_batch = 4"), 16, "global_batch = 2000");
  write("plan.toml", text);
  write("slurm.conf", "NodeName=gh[1-2000] Gres=gpu:gh200:4\n");
  SpankHost host = stepd();
  host.task["SLURM_STEP_NODELIST"] = nodes;
  host.task["SLURM_STEP_TASKS_PER_NODE"] = "1(x2000)";
  const Outcome outcome = host.run(start_task);
  EXPECT_EQ(outcome.task.at("SAILOR_RANKS"), "2000") << outcome.said();
}

TEST_F(SpankPlugin, KeepsTasksToTheirCores) {
  const std::vector<int> allowed = allowed_cores();
  if (allowed.size() < 2) GTEST_SKIP() << "one core";
  // Two ranks share the node: each has half of the cores.
  std::string text = plan_text();
  text.replace(text.find("tensor_parallel = 2"), 19, "tensor_parallel = 1");
  text.replace(text.find("count = 2"), 9, "count = 1");
  text.replace(text.find("global_batch = 4"), 16, "global_batch = 2");
  write("plan.toml", text);
  std::vector<int> seen;
  for (int task = 0; task < 2; ++task) {
    SpankHost host = stepd(task);
    host.task.erase("SLURM_CPU_BIND");
    host.task["SLURM_STEP_NODELIST"] = "gh1";
    host.task["SLURM_STEP_TASKS_PER_NODE"] = "2";
    const Outcome outcome = host.run(start_task);
    EXPECT_EQ(outcome.cores.size(), allowed.size() / 2) << outcome.said();
    seen.insert(seen.end(), outcome.cores.begin(), outcome.cores.end());
    host.task["SLURM_CPU_BIND"] = "quiet,none";
    EXPECT_EQ(host.run(start_task).cores, allowed);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

// ---- what administrators give

TEST_F(SpankPlugin, ReportsUnknownArgumentsToAdministratorsAndWhoAsked) {
  const std::string message =
      "error: sailor: plugstack.conf: unknown argument 'plan=/x' (known: gpus=FILE, environment=FILE, "
      "devices=FOLDER|none)\n";
  SpankHost slurmd = command(S_CTX_SLURMD);
  slurmd.arguments = {"plan=/x", "gpus=relative"};
  const Outcome started = slurmd.run([](SpankHost& host) { return host.init(); });
  EXPECT_EQ(started.status, 0);
  EXPECT_EQ(started.said(), message + "error: sailor: plugstack.conf: 'gpus=relative' needs an absolute path\n");

  SpankHost srun = command();
  srun.arguments = {"plan=/x"};
  const Outcome submitted = srun.run(submit_with(file("plan.toml")));
  EXPECT_EQ(submitted.status, 0);
  EXPECT_EQ(submitted.said(), message);

  SpankHost host = stepd();
  host.arguments.push_back("plan=/x");
  const Outcome first = host.run(start_task);
  EXPECT_FALSE(first.ended);
  EXPECT_PRED2(contains, first.said(), message);
  host.task["SLURM_PROCID"] = "1";
  EXPECT_FALSE(contains(host.run(start_task).said(), "plugstack.conf"));
}

TEST_F(SpankPlugin, SetsTheSitesVariablesUnlessTheUserHas) {
  write("site.toml", "NCCL_NET = \"AWS Libfabric\"\nFI_CXI_DEFAULT_CQ_SIZE = \"131072\"\nHOME = \"/tmp\"\n");
  SpankHost host = stepd();
  host.arguments.push_back("environment=" + file("site.toml"));
  const Outcome outcome = host.run(start_task);
  EXPECT_EQ(outcome.task.at("NCCL_NET"), "AWS Libfabric") << outcome.said();
  EXPECT_EQ(outcome.task.at("FI_CXI_DEFAULT_CQ_SIZE"), "131072");
  EXPECT_EQ(outcome.task.at("HOME"), "/home/user");
}

TEST_F(SpankPlugin, RefusesASiteEnvironmentThatCannotBeRead) {
  SpankHost host = stepd();
  host.arguments.push_back("environment=" + file("site.toml"));
  expect_refused(host.run(start_task), "node gh1: the site's environment: file '");
  write("site.toml", "NCCL_NET = 3\n");
  expect_refused(host.run(start_task), "site.toml:1:12: 'NCCL_NET' must be a string, not an integer");
  write("site.toml", "\"A B\" = \"x\"\n");
  expect_refused(host.run(start_task), "'A B' is no name of a variable; use letters, digits and _");
}

TEST_F(SpankPlugin, GoesOnWithoutACatalogueAndSaysSo) {
  write("slurm.conf", "NodeName=gh[1-2] Gres=gpu:a100:4\n");
  SpankHost host = stepd();
  host.arguments = {"gpus=" + file("missing.toml"), "devices=none"};
  const Outcome outcome = host.run(start_task);
  EXPECT_FALSE(outcome.ended);
  EXPECT_EQ(outcome.task.at("SAILOR_RANK"), "0");
  EXPECT_PRED2(contains, outcome.said(), "error: sailor: GPU types are not compared with the plan: file '");
}

TEST_F(SpankPlugin, TakesTheUsersCatalogue) {
  // In this catalogue the nodes' type means another device than the plan's.
  write("slurm.conf", "NodeName=gh[1-4] Gres=gpu:mine:4\n");
  write("gpus.toml",
        "schema_version = 1\n[[gpus]]\nname = \"Mine\"\nmemory_bytes = 1e9\npeak_fp32_flop_per_s = 1e12\n"
        "memory_bandwidth_bytes_per_s = 1e12\nprice_usd_per_hour = 1.0\nslurm_gres = [\"mine\"]\nsource = \"test\"\n"
        "[[gpus]]\nname = \"GH200-96\"\nmemory_bytes = 1e9\npeak_fp32_flop_per_s = 1e12\n"
        "memory_bandwidth_bytes_per_s = 1e12\nprice_usd_per_hour = 1.0\nslurm_gres = [\"other\"]\nsource = \"test\"\n");
  SpankHost host = stepd();
  host.arguments = {"devices=none"};
  host.task["SAILOR_GPUS"] = file("gpus.toml");
  expect_refused(host.run(start_task), "the plan needs GH200-96 on nodes gh1, gh2, which have Mine");
  host.task.erase("SAILOR_GPUS");
  host.task["SAILOR_PROFILES"] = folder_.string();
  expect_refused(host.run(start_task), "which have Mine");
}

TEST_F(SpankPlugin, AsksTheDriverWhatTheGpusAre) {
  const auto device = [&](const std::string& name, const std::string& model) {
    fs::create_directories(folder_ / "gpus" / name);
    write("gpus/" + name + "/information", "Model: \t\t " + model + "\nIRQ:   \t\t 93\n");
  };
  SpankHost host = stepd();
  host.arguments = {gpus(), "devices=" + file("gpus")};
  EXPECT_FALSE(host.run(start_task).ended);  // no driver
  device("0009:01:00.0", "NVIDIA GH200 120GB");
  EXPECT_FALSE(host.run(start_task).ended);
  device("0009:01:00.0", "NVIDIA A100-SXM4-40GB");
  device("0019:01:00.0", "NVIDIA A100-SXM4-40GB");
  expect_refused(host.run(start_task),
                 "node gh1: its driver reports NVIDIA A100-SXM4-40GB (A100-40), but the plan has GH200-96 here");
  device("0019:01:00.0", "NVIDIA B9000");  // not in the catalogue: may be any
  EXPECT_FALSE(host.run(start_task).ended);
  device("0019:01:00.0", "NVIDIA GH200 120GB");  // one of each: Slurm chose
  EXPECT_FALSE(host.run(start_task).ended);
  write("plan.toml", plan_text("cpu"));
  host.task["SLURM_CONF"] = "/nowhere";
  fs::remove_all(folder_ / "gpus" / "0019:01:00.0");
  EXPECT_FALSE(host.run(start_task).ended);  // on its cores
}

// ---- faults

TEST_F(SpankPlugin, SurvivesFailingCallsOfSlurm) {
  for (const auto context : {S_CTX_LOCAL, S_CTX_ALLOCATOR, S_CTX_REMOTE}) {
    SpankHost host = command(context);
    host.failing = {"spank_option_register"};
    const Outcome outcome = host.run([](SpankHost& running) { return running.init(); });
    EXPECT_FALSE(outcome.ended);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_PRED2(contains, outcome.said(), "error: sailor: no option --sailor-plan");
  }
  SpankHost host = stepd();
  host.failing = {"spank_getenv"};
  expect_fine(host.run(start_task));  // nobody asked, as far as one can tell
  host.failing = {"spank_setenv"};
  expect_refused(host.run(start_task), "cannot set SAILOR_PLAN for the task");
  host.failing = {"spank_get_item"};
  expect_refused(host.run(start_task), "who owns the job: its plan is not read");
}

TEST_F(SpankPlugin, LetsNothingOutOfItsHooks) {
  if (std::getenv("SAILOR_SPANK_MODULE") != nullptr) GTEST_SKIP() << "the installed plugin has no faults to inject";
  for (const std::string kind : {"exception", "memory", "unknown"}) {
    for (const auto& [context, name] : {std::pair{S_CTX_LOCAL, "LOCAL"},
                                        {S_CTX_ALLOCATOR, "ALLOCATOR"},
                                        {S_CTX_REMOTE, "REMOTE"},
                                        {S_CTX_SLURMD, "SLURMD"},
                                        {S_CTX_JOB_SCRIPT, "JOB_SCRIPT"}}) {
      SCOPED_TRACE(kind + " in " + name);
      SpankHost host = context == S_CTX_REMOTE ? stepd() : command(context);
      const auto fault = [&](const std::string& hook) {
        host.own["SAILOR_SPANK_FAULT"] = hook + " " + name + " " + kind;
      };
      // init: never an error. Without the option the job runs as if there were no plugin.
      fault("init");
      const Outcome begun = host.run([](SpankHost& running) { return running.init() | running.init_post_opt(); });
      EXPECT_FALSE(begun.ended);
      EXPECT_EQ(begun.status, 0);
      EXPECT_EQ(begun.log.size(), 1U);
      if (context == S_CTX_SLURMD || context == S_CTX_JOB_SCRIPT) continue;

      // The option: refused where it is typed; in slurmstepd from the task.
      fault("--sailor-plan");
      const Outcome taken = host.run([&](SpankHost& running) {
        (void)running.init();
        return running.option(file("plan.toml"));
      });
      EXPECT_FALSE(taken.ended);
      EXPECT_EQ(taken.status, context == S_CTX_REMOTE ? 0 : -1);
      EXPECT_EQ(taken.log.size(), 1U);
      if (context == S_CTX_REMOTE) {
        const Outcome task = host.run(start_task_with(file("plan.toml")));
        expect_refused(task, "the option --sailor-plan was lost");
        fault("task_init");
      } else {
        fault("init_post_opt");
        expect_fine(host.run(submit));  // nobody asked
        host.own["SAILOR_PLAN"] = file("plan.toml");
      }
      const Outcome last = host.run(context == S_CTX_REMOTE ? start_task : submit);
      EXPECT_TRUE(last.ended);
      EXPECT_EQ(last.signal, 0);
      EXPECT_EQ(last.status, 1);
      EXPECT_EQ(last.log.size(), 1U);
    }
  }
}

}  // namespace
}  // namespace sailor::spank_plugin_test
