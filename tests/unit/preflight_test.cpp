// The checks before a job is queued: the findings of each for a plan, a cluster and the answers of the system.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "preflight/communicators.hpp"
#include "preflight/preflight.hpp"
#include "preflight/system.hpp"
#include "slurm/words.hpp"

namespace sailor::preflight::preflight_test {
namespace {

constexpr std::int64_t now = 1'700'000'000;

Stage stage(int first, int last, std::string gpu, int tensor_parallel = 1) {
  return {.layers = {first, last}, .gpu = std::move(gpu), .tensor_parallel = tensor_parallel};
}

/// A plan for 4 nodes of 4 GH200, on a cluster that has them, and nothing to complain of.
class Preflight : public ::testing::Test {
 protected:
  Preflight() {
    // 4 pipelines of 2 stages of 2 ranks: 16 ranks.
    plan.job = {.model = "tiny-gpt", .global_batch = 16, .sequence_length = 64};
    plan.pipelines = {
        {.count = 4, .micro_batches = 4, .stages = {stage(0, 3, "GH200-96", 2), stage(3, 6, "GH200-96", 2)}}};
    plan.prediction = PlanPrediction{.iteration_time = Seconds(1.0), .peak_memory = Bytes(40e9)};
    cluster.name = "test";
    cluster.partitions = {{.name = "normal", .time_limit = Seconds(7200), .most_nodes = 8}};
    cluster.groups = {nodes("gh", 6, "GH200-96", NodeState::idle)};
    job.partitions = {"normal"};
    job.mpi = "pmix";
    facts.version = "22.05.8";
    answers.now_unix_s = now;
    answers.identity = {.user = "anna", .is_root = false, .groups = {"users"}};
  }

  static NodeGroup nodes(const std::string& name, int count, const std::string& gpu, NodeState state,
                         const std::string& reason = {}) {
    NodeGroup group{.nodes = {},
                    .count = count,
                    .gpu = gpu,
                    .gpus_per_node = 4,
                    .cpus_per_node = 288,
                    .memory_per_node = Bytes(800e9),
                    .state = state,
                    .state_reason = reason,
                    .zone = {},
                    .partitions = {"normal"}};
    for (int i = 1; i <= count; ++i) group.nodes.push_back(name + std::to_string(i));
    group.gres_type = gpu == "GH200-96" ? "gh200" : "a100";
    return group;
  }

  [[nodiscard]] Subject subject() const {
    return {.job = job,
            .cluster = cluster,
            .gpus = gpus,
            .site = site,
            .facts = facts,
            .left_out = left_out,
            .answers = answers,
            .plan = &plan,
            .model = &model};
  }

  /// "outcome: what -> remedy", a line each.
  static std::string text(const std::vector<Check>& checks) {
    std::string all;
    for (const Check& check : checks) {
      if (!all.empty()) all += "\n";
      all += std::string(to_string(check.outcome)) + ": " + check.what;
      if (!check.remedy.empty()) all += " -> " + check.remedy;
    }
    return all;
  }

  void expect_text(const std::vector<Check>& checks, const std::string& wanted) const {
    EXPECT_EQ(text(checks), wanted);
  }

  GpuCatalogue gpus = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  Model model = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  Plan plan;
  Cluster cluster;
  slurm::Site site;
  slurm::ControllerFacts facts;
  std::vector<std::string> left_out;
  Job job;
  Answers answers;
};

TEST_F(Preflight, FindsNothingWrongWithAGoodJob) {
  job.iterations = 100;
  answers.profile = std::vector<ProfileFacts>{{.gpu = "GH200-96", .measured = true, .age_days = 12.5}};
  answers.mpi_types = std::vector<std::string>{"none", "pmix"};
  answers.data = PathFacts{.path = "corpus", .problem = {}, .size = Bytes(1e6)};
  answers.checkpoints = PathFacts{.path = "/scratch", .problem = {}, .space = Bytes(1e12)};
  answers.starts = {{.need = {.gpu = "GH200-96"}, .start = slurm::ExpectedStart{now, "gh[1-4]"}}};
  job.program = {.path = "/opt/sailor-train"};
  answers.program = ProgramAbilities{.version = "9.0", .devices = {{"cpu", {"fp32"}}, {"cuda", {"fp32", "bf16"}}}};
  const std::vector<Check> checks = run_checks(subject());
  for (const Check& check : checks) EXPECT_EQ(check.outcome, Outcome::ok) << check.name << ": " << check.what;
  EXPECT_EQ(worst(checks), Outcome::ok);
  const std::string table = report(checks);
  EXPECT_NE(table.find("ok           nodes          4 nodes of 4 GH200-96: 6 idle\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\n16 ok, 0 to look at, 0 failed, 0 not checked\n"), std::string::npos) << table;
}

TEST_F(Preflight, RefusesAPlanThatTheJobsProgramCannotRun) {
  job.program = {.path = "/opt/sailor-train"};
  answers.program = ProgramAbilities{.version = "0.1.0",
                                     .devices = {{"cpu", {"fp32", "bf16"}}},
                                     .schedules = {"1f1b"},
                                     .optimizer_sharding = {"none"},
                                     .recompute = {"none"}};
  const auto remedy = std::string(
      " -> build its GPU part beside it (cmake --build FOLDER --target sailor_cuda), name a program for these devices "
      "with --program FILE, or try the plan out on the nodes' CPUs with --train-option=--device=cpu");
  expect_text(check_program(subject()),
              "fail: /opt/sailor-train (0.1.0) computes on CPUs only, and the plan is for GH200-96" + remedy);
  job.program.device = "cpu";
  expect_text(check_program(subject()), "ok: /opt/sailor-train (0.1.0) can run the plan on CPUs (--device=cpu)");
  job.program.device = "gpu";
  expect_text(
      check_program(subject()),
      "fail: /opt/sailor-train (0.1.0) computes on CPUs only, and the plan is for GPUs (--device=gpu)" + remedy);
  job.program.device = "cpu";
  plan.job.precision = Precision::tf32;
  expect_text(check_program(subject()),
              "fail: /opt/sailor-train (0.1.0) computes in fp32, bf16 on CPUs, and the plan is for tf32 -> plan with "
              "--precision fp32");
  plan.job.precision = Precision::bf16;
  plan.optimizer_sharding = OptimizerSharding::zero1;
  expect_text(check_program(subject()),
              "fail: /opt/sailor-train (0.1.0) knows no optimizer_sharding = \"zero1\" -> plan with --pin "
              "optimizer_sharding=none");
  plan.optimizer_sharding = OptimizerSharding::none;
  plan.schedule = Schedule::gpipe;
  expect_text(check_program(subject()),
              "fail: /opt/sailor-train (0.1.0) knows no schedule \"gpipe\" -> plan with --pin schedule=1f1b");
  plan.schedule = Schedule::one_f_one_b;
  plan.pipelines[0].stages[0].recompute = Recompute::full;
  expect_text(check_program(subject()),
              "fail: /opt/sailor-train (0.1.0) knows no recompute = \"full\" -> plan with --pin recompute=none");
}

TEST_F(Preflight, AnOptionThatTheProgramDoesNotHaveFails) {
  job.program = {.path = "/opt/sailor-train", .options = {"--clip-norm=0.5", "--klip-norm=1"}};
  answers.program = ProgramAbilities{.version = "0.1.0", .devices = {{"cpu", {}}, {"cuda", {}}}};
  EXPECT_TRUE(text(check_program(subject())).starts_with("ok: ")) << text(check_program(subject()));  // it does not say
  answers.program->value().options = {"--data", "--clip-norm"};
  expect_text(
      check_program(subject()),
      "fail: /opt/sailor-train (0.1.0) has no option '--klip-norm' -> correct --train-option; sailor-train --help "
      "lists them");
}

TEST_F(Preflight, WarnsOfAProgramThatCannotBeAskedFromHere) {
  job.program = {.path = "/opt/sailor-train", .device = "plan", .inside = "train.toml"};
  answers.program = ask_program(job.program, Seconds(1));
  const std::string remedy =
      " -> make sure that it can run the plan: sailor-train --version --format json, where the job will run";
  expect_text(check_program(subject()),
              "warn: it was not asked what it can run: /opt/sailor-train runs inside of train.toml, which is not there "
              "before the job starts" +
                  remedy);
  job.program = {.path = "/nowhere/sailor-train"};
  answers.program = ask_program(job.program, Seconds(1));
  EXPECT_TRUE(text(check_program(subject())).starts_with("warn: it was not asked what it can run: "))
      << text(check_program(subject()));
  job.program = {.path = "python3"};
  answers.program.reset();
  expect_text(check_program(subject()), "not checked: python3 is not Sailor's: what it can run is not known");
  // A plan for another framework is that one's, whatever the program.
  answers.framework = FrameworkAnswer{.framework = "Megatron-Core", .trainer = "megatron"};
  expect_text(check_program(subject()), "ok: Megatron-Core can run the plan (sailor-submit --trainer megatron)");
  answers.framework->can_run = fail(ErrorCode::unavailable, "Megatron-Core cannot run this: tf32", "plan with bf16");
  expect_text(check_program(subject()), "fail: Megatron-Core cannot run this: tf32 -> plan with bf16");
  answers.framework = FrameworkAnswer{.framework = "nanotron"};
  expect_text(check_program(subject()), "not checked: the plan is for nanotron: what that can run is not known");
}

TEST_F(Preflight, AsksTheProgramItself) {
  const auto folder = std::filesystem::temp_directory_path() / ("sailor_program_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const TrainingProgram program{.path = folder / "sailor-train"};
  const auto write = [&](const std::string& content) {
    std::filesystem::remove(program.path);
    std::ofstream(program.path) << content;
    std::filesystem::permissions(program.path, std::filesystem::perms::owner_all);
  };
  const auto why_not = [&] {
    const auto answer = ask_program(program, Seconds(20));
    return answer ? std::string("answered") : answer.error().what;
  };
  write(
      "#!/bin/sh\n[ \"$*\" = '--version --format json' ] || exit 9\n"
      "echo '{\"program\": \"sailor-train\", \"version\": \"7\", \"more\": 1, \"devices\": [{\"kind\": \"cuda\", "
      "\"precisions\": [\"bf16\"]}]}'\n");
  const auto answer = ask_program(program, Seconds(20));
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->version, "7");
  ASSERT_EQ(answer->devices.size(), 1U);
  EXPECT_EQ(answer->devices[0], (std::pair<std::string, std::vector<std::string>>{"cuda", {"bf16"}}));
  write("#!/bin/sh\necho 'sailor-train 0.1.0'\n");  // of a version that knows no JSON
  const auto old = ask_program(program, Seconds(20));
  ASSERT_TRUE(old) << old.error().message();
  EXPECT_EQ(old->devices[0].first, "cpu");
  write("#!/bin/sh\necho 'libmpi.so.40: cannot open shared object file' >&2\nexit 127\n");
  EXPECT_EQ(why_not(),
            program.path.string() + " --version: exit status 127 (libmpi.so.40: cannot open shared object file)");
  write("#!/bin/sh\necho '[1, 2'\n");
  EXPECT_EQ(why_not(), program.path.string() + ": its answer to --version --format json is not that of sailor-train");
  write(
      "\x7f"
      "ELF of another architecture");
  EXPECT_NE(why_not().find("cannot run '"), std::string::npos) << why_not();
  std::filesystem::remove_all(folder);
}

TEST_F(Preflight, TheWorstCheckGivesTheExitStatus) {
  const auto status = [](std::vector<Outcome> outcomes) {
    std::vector<Check> checks;
    for (const Outcome outcome : outcomes)
      checks.push_back({.name = "x", .outcome = outcome, .what = {}, .remedy = {}});
    return exit_status(worst(checks));
  };
  using enum Outcome;
  EXPECT_EQ(status({ok, not_checked}), 0);
  EXPECT_EQ(status({ok, warn, not_checked}), 4);
  EXPECT_EQ(status({fail, warn, ok, not_checked}), 5);
}

TEST_F(Preflight, PutsRemediesBelowTheirChecks) {
  EXPECT_EQ(report({{.name = "a", .outcome = Outcome::warn, .what = "bad", .remedy = "do x"},
                    {.name = "longer", .outcome = Outcome::not_checked, .what = "no", .remedy = {}}}),
            "warn         a       bad\n"
            "                     -> do x\n"
            "not checked  longer  no\n"
            "\n0 ok, 1 to look at, 0 failed, 1 not checked\n");
}

TEST_F(Preflight, NamesEachStateOfAPartition) {
  job.partitions = {"normal", "nromal"};
  cluster.partitions[0].takes_jobs = false;
  expect_text(check_partitions(subject()),
              "fail: partition 'normal' is draining: it takes no new jobs -> use another one, or ask the administrator "
              "when it will be up\n"
              "fail: partition 'nromal' not found (known: normal) -> did you mean 'normal'? use --partition NAME");
}

TEST_F(Preflight, RefusesAPartitionForReservationsOnlyWithoutOne) {
  cluster.partitions[0].needs_reservation = true;
  expect_text(
      check_partitions(subject()),
      "fail: partition 'normal' takes only jobs in a reservation (ReqResv) -> name one with --reservation NAME, "
      "or use another partition");
  job.reservation = "course";
  expect_text(check_partitions(subject()), "ok: 'normal' is up");
}

TEST_F(Preflight, CountsLicenses) {
  expect_text(check_licenses(subject()), "");
  facts.licenses = {{.name = "matlab", .total = 4, .taken = 1}, {.name = "disk@dbd", .total = 2, .taken = 2}};
  job.licenses = "matlab:3,disk";
  expect_text(check_licenses(subject()),
              "ok: 3 of 'matlab', 3 of 4 free\n"
              "warn: 1 licenses 'disk' wanted, 0 of 2 free now -> the job waits until others give theirs back");
  job.licenses = "matlab=5,mathlab:1";
  expect_text(check_licenses(subject()),
              "fail: 5 licenses 'matlab' wanted, the cluster has 4 -> ask for fewer: the job would never start\n"
              "fail: the cluster has no license 'mathlab' -> `scontrol show licenses` lists those that it has");
  job.licenses = "matlab:many";
  expect_text(check_licenses(subject()), "fail: 'matlab:many' is no license and number -> write NAME or NAME:COUNT");
  facts.version.clear();
  job.licenses = "matlab";
  expect_text(check_licenses(subject()), "not checked: Slurm was not asked");
}

TEST_F(Preflight, RefusesComponentsThatDoNotReachEachOtherOnSlingshot) {
  plan.pipelines.push_back({.count = 1, .micro_batches = 4, .stages = {stage(0, 6, "A100-40", 4)}});
  cluster.groups.push_back(nodes("a", 2, "A100-40", NodeState::idle));
  expect_text(check_components(subject()), "");
  facts.switch_type = "switch/hpe_slingshot";
  facts.version = "23.02.2";
  expect_text(check_components(subject()),
              "fail: the plan needs a heterogeneous job of 2 components, which do not reach each other on Slingshot "
              "with Slurm 23.02.2: before 23.02.3 each has a network identity of its own -> plan for one kind of node "
              "(--pin gpu=NAME), whose groups fill their nodes");
  facts.version = "23.02.3-1";
  expect_text(check_components(subject()), "");
  facts.version = "22.05.8";
  facts.switch_type = "switch/none";
  site.check.fabric_provider = "cxi";  // what says it where Slurm does not
  EXPECT_EQ(check_components(subject()).size(), 1U);
  plan.pipelines.pop_back();
  expect_text(check_components(subject()), "");
}

TEST_F(Preflight, SaysWhoIsKeptOut) {
  cluster.partitions[0].allowed_groups = {"staff", "ml"};
  expect_text(check_access(subject()),
              "fail: partition 'normal' takes jobs of groups staff, ml only, and anna is in users -> use another "
              "partition, or another --account or --qos");
  answers.identity.groups.push_back("ml");
  expect_text(check_access(subject()), "ok: anna may use normal; Slurm keeps no accounts here");
  cluster.partitions[0].allowed_accounts = {"a1"};
  expect_text(check_access(subject()),
              "fail: partition 'normal' takes jobs of accounts a1 only, and the job names none -> use another "
              "partition, or another --account or --qos");
  job.account = "a2";
  expect_text(check_access(subject()),
              "fail: partition 'normal' takes jobs of accounts a1 only, and the job is charged to 'a2' -> use another "
              "partition, or another --account or --qos");
}

TEST_F(Preflight, DoesNotKnowOfAFileWhoMayUseAPartition) {
  facts.version.clear();
  expect_text(check_access(subject()), "not checked: Slurm was not asked who may use the partition");
}

TEST_F(Preflight, KnowsTheUsersAccounts) {
  facts = {.version = "22.05.8", .accounting = true, .enforces_associations = true, .enforces_qos = true};
  expect_text(check_access(subject()), "not checked: the accounting database was not asked");
  slurm::Accounting accounting;
  accounting.user = "anna";
  answers.accounting = accounting;
  expect_text(check_access(subject()),
              "fail: the accounting database does not know user anna on this cluster -> ask the administrator for an "
              "account");
  accounting.associations = {{.account = "ml", .partition = {}, .qos = {"normal"}, .default_qos = "normal"}};
  answers.accounting = accounting;
  expect_text(
      check_access(subject()),
      "fail: the job names no account, and you have no default one -> use one of yours with --account NAME: ml");
  accounting.default_account = "ml";
  answers.accounting = accounting;
  expect_text(check_access(subject()), "ok: anna may use normal with account 'ml' and QOS 'normal'");
  job.qos = "long";
  expect_text(check_access(subject()),
              "fail: account 'ml' does not have QOS 'long' (it has: normal) -> use one of these with --qos NAME");
}

TEST_F(Preflight, ComparesLimitsOfThePartition) {
  expect_text(check_limits(subject()), "ok: 4 nodes, 16 GPUs, 02:00:00, within all limits");
  cluster.partitions[0].most_nodes = 2;
  cluster.partitions[0].most_cpus_per_node = 100;
  job.time = Seconds(10800);
  expect_text(check_limits(subject()),
              "fail: the job takes 288 CPUs of a node, partition 'normal' allows 100 -> take fewer cores per rank, or "
              "use another partition\n"
              "fail: the plan takes 4 nodes, partition 'normal' allows 2 per job -> plan with --max-nodes 2, or use "
              "another partition\n"
              "fail: time 03:00:00 is over the limit of partition 'normal': 02:00:00 -> use a smaller --time, or "
              "another partition");
  cluster.partitions[0] = {.name = "normal"};
  cluster.partitions[0].least_nodes = 5;
  expect_text(check_limits(subject()),
              "fail: the plan takes 4 nodes, partition 'normal' wants 5 at least -> use another partition");
}

/// With limits that Slurm enforces: account 'ml' of project 'hub', and QOS 'short' of which nothing is used.
class PreflightLimits : public Preflight {
 protected:
  PreflightLimits() {
    facts = {.version = "22.05.8", .accounting = true, .enforces_limits = true};
    accounting.default_account = "ml";
    accounting.associations = {
        {.account = "ml", .partition = {}, .qos = {}, .default_qos = "short", .used = slurm::GroupUsage{}}};
    accounting.known_accounts = {{.name = "ml", .parent = "hub", .used = slurm::GroupUsage{}},
                                 {.name = "hub", .parent = {}, .used = slurm::GroupUsage{}}};
    accounting.qos = {{.name = "short", .used_by_user = slurm::GroupUsage{}, .used_by_all = slurm::GroupUsage{}},
                      {.name = "part", .used_by_user = slurm::GroupUsage{}, .used_by_all = slurm::GroupUsage{}}};
    job.time = Seconds(3600);
  }
  void expect_limits(const std::string& wanted) {
    answers.accounting = accounting;
    expect_text(check_limits(subject()), wanted);
  }
  [[nodiscard]] slurm::QosLimits& qos() { return accounting.qos[0]; }
  [[nodiscard]] slurm::QosLimits& partition_qos() {
    cluster.partitions[0].qos = "part";
    return accounting.qos[1];
  }
  static constexpr const char* within = "ok: 4 nodes, 16 GPUs, 01:00:00, within all limits";

  slurm::Accounting accounting;
};

TEST_F(PreflightLimits, ComparesWhatAJobTakes) {
  expect_limits(within);
  accounting.associations[0].per_job.resources = {{"gres/gpu", 8}};
  qos().per_job.time = Seconds(1800);
  qos().per_user.resources = {{"node", 3}};
  expect_limits(
      "fail: time 01:00:00 is over the 00:30:00 of QOS 'short' -> use --time 00:30:00 or less\n"
      "fail: the job takes 4 nodes, QOS 'short' for a user allows 3 -> plan with a smaller --max-nodes, or use "
      "another QOS or account\n"
      "fail: the job takes 16 GPUs, account 'ml' allows 8 -> plan with a smaller --max-gpus, or use another QOS "
      "or account");
  facts.enforces_limits = false;
  EXPECT_EQ(worst(check_limits(subject())), Outcome::warn);
}

TEST_F(PreflightLimits, SaysTheLargestTimeThatALimitOnNodeMinutesAllows) {
  // Clariden's debug partition: 90 node-minutes.
  partition_qos().per_job.minutes = {{"node", 90}};
  expect_limits(
      "fail: 4 nodes for 01:00:00 are 240 node-minutes, QOS 'part' allows 90 per job -> use --time 00:22:00 or less");
  job.time = Seconds(22 * 60);
  expect_limits("ok: 4 nodes, 16 GPUs, 00:22:00, within all limits");
  // The smallest of all helps.
  job.time = Seconds(3600);
  qos().per_job.time = Seconds(600);
  expect_limits(
      "fail: 4 nodes for 01:00:00 are 240 node-minutes, QOS 'part' allows 90 per job -> use --time 00:10:00 or less\n"
      "fail: time 01:00:00 is over the 00:10:00 of QOS 'short' -> use --time 00:10:00 or less");
  partition_qos().per_job.minutes = {{"node", 3}};
  qos().per_job.time.reset();
  expect_limits(
      "fail: 4 nodes for 01:00:00 are 240 node-minutes, QOS 'part' allows 3 per job -> no --time is short enough: plan "
      "for fewer nodes, or use another QOS or account");
}

TEST_F(PreflightLimits, CountsJobsThatRunAndWait) {
  partition_qos().per_user.jobs = 1;
  partition_qos().per_user.submitted = 2;
  expect_limits(within);
  partition_qos().used_by_user = slurm::GroupUsage{.jobs = 1, .submitted = 1};
  expect_limits("warn: QOS 'part' for a user lets 1 job run at one time, and 1 does: the job waits until it has ended");
  partition_qos().used_by_user = slurm::GroupUsage{.jobs = 1, .submitted = 2};
  expect_limits(
      "warn: QOS 'part' for a user lets 1 job run at one time, and 1 does: the job waits until it has ended\n"
      "fail: QOS 'part' for a user takes 2 jobs that wait or run, and there are 2: sbatch refuses the job -> wait "
      "until "
      "one of them has ended, or cancel one");
  // Those of an association count only where no QOS says otherwise.
  accounting.associations[0].most_jobs = 1;
  accounting.associations[0].used->jobs = 1;
  partition_qos().per_user.submitted.reset();
  partition_qos().per_user.jobs = 4;
  expect_limits(within);
  partition_qos().per_user.jobs.reset();
  expect_limits(
      "warn: account 'ml' for all your jobs lets 1 job run at one time, and 1 does: the job waits until it has ended");
}

TEST_F(PreflightLimits, CountsEveryComponentAsAJob) {
  cluster.groups.push_back(nodes("a", 2, "A100-40", NodeState::idle));
  plan.pipelines = {{.count = 1, .micro_batches = 4, .stages = {stage(0, 6, "GH200-96", 2)}},
                    {.count = 1, .micro_batches = 4, .stages = {stage(0, 6, "A100-40", 2)}}};
  qos().per_job.resources = {{"node", 1}};
  qos().per_user.jobs = 2;
  expect_limits("ok: 2 nodes, 4 GPUs, 01:00:00, within all limits");
  qos().per_user.jobs = 1;
  qos().all_jobs.resources = {{"node", 1}};
  expect_limits(
      "fail: the job has 2 components, which count as jobs, QOS 'short' for a user lets 1 run at one time -> use "
      "another "
      "QOS or account\n"
      "fail: the job takes 2 nodes, QOS 'short' for all jobs allows 1 -> plan with a smaller --max-nodes, or use "
      "another "
      "QOS or account");
}

TEST_F(PreflightLimits, CountsWhatOthersUseNow) {
  accounting.known_accounts[1].all_jobs.resources = {{"gres/gpu", 24}};
  expect_limits(within);
  accounting.known_accounts[1].used->resources = {{"gres/gpu", 12}};
  expect_limits(
      "warn: the job takes 16 GPUs, account 'hub' for all its jobs allows 24, of which jobs that run have 12: it waits "
      "until enough of them have ended");
  accounting.known_accounts[1].used.reset();
  accounting.usage_problem = "scontrol: Access denied";
  expect_limits(
      "ok: 4 nodes, 16 GPUs, 01:00:00, within the limits that could be compared\n"
      "not checked: what is used now of limits of account 'hub' for all its jobs (scontrol: Access denied)");
}

TEST_F(PreflightLimits, ComparesBudgetsOfMinutes) {
  accounting.known_accounts[1].all_jobs.minutes = {{"node", 1000}};
  accounting.known_accounts[1].used->minutes = {{"node", 700}};
  expect_limits(within);
  // Without "safe" the job starts, and is ended when nothing is left.
  accounting.known_accounts[1].used->minutes = {{"node", 800}};
  expect_limits(
      "warn: 4 nodes for 01:00:00 are 240 node-minutes, account 'hub' for all its jobs has 1000 node-minutes, of which "
      "800 are used, and 0 reserved by jobs that run: Slurm ends the job when they are used up -> use --time 00:50:00 "
      "or "
      "less");
  facts.enforces_safely = true;
  expect_limits(
      "fail: 4 nodes for 01:00:00 are 240 node-minutes, account 'hub' for all its jobs has 1000 node-minutes, of which "
      "800 are used -> use --time 00:50:00 or less");
  accounting.known_accounts[1].used->minutes = {{"node", 700}};
  accounting.known_accounts[1].used->running_minutes = {{"node", 100}};
  expect_limits(
      "warn: 4 nodes for 01:00:00 are 240 node-minutes, account 'hub' for all its jobs has 1000 node-minutes, of which "
      "700 are used, and 100 reserved by jobs that run: it waits until enough of them have ended");
  accounting.known_accounts[1].used->minutes = {{"node", 1000}};
  facts.usage_decays = true;
  expect_limits(
      "fail: account 'hub' for all its jobs has 1000 node-minutes, of which 1000 are used -> use another QOS or "
      "account, "
      "or ask for more, or wait: what was used is forgotten with time");
}

TEST_F(PreflightLimits, ComparesMinutesOfJobsThatRun) {
  qos().all_jobs.running_minutes = {{"node", 300}};
  qos().used_by_all->running_minutes = {{"node", 60}};
  expect_limits(within);
  qos().used_by_all->running_minutes = {{"node", 100}};
  expect_limits(
      "warn: 4 nodes for 01:00:00 are 240 node-minutes, QOS 'short' for all jobs allows 300 for jobs that run at one "
      "time, of which 100 are left to those that run now: it waits until these are fewer -> with --time 00:50:00 or "
      "less "
      "it need not wait for that");
  job.time = Seconds(7200);
  expect_limits(
      "fail: 4 nodes for 02:00:00 are 480 node-minutes, QOS 'short' for all jobs allows 300 for jobs that run at one "
      "time -> use --time 01:15:00 or less");
  // 22.05 does not tell those of a user.
  qos().all_jobs.running_minutes.clear();
  qos().per_user.running_minutes = {{"node", 500}};
  qos().used_by_user->running_minutes_known = false;
  expect_limits(
      "ok: 4 nodes, 16 GPUs, 02:00:00, within the limits that could be compared\n"
      "not checked: what is used now of limits of QOS 'short' for a user");
}

TEST_F(PreflightLimits, KnowsWhoseLimitCounts) {
  // The partition's QOS, then the job's, then the account's.
  accounting.associations[0].per_job.resources = {{"node", 1}};
  qos().per_job.resources = {{"node", 2}};
  partition_qos().per_job.resources = {{"node", 8}};
  expect_limits(within);
  qos().flags = {"OverPartQOS"};
  expect_limits(
      "fail: the job takes 4 nodes, QOS 'short' allows 2 -> plan with a smaller --max-nodes, or use another QOS or "
      "account");
  // Of each resource by itself.
  qos().per_job.resources = {{"gres/gpu", 99}};
  partition_qos().per_job.resources.clear();
  expect_limits(
      "fail: the job takes 4 nodes, account 'ml' allows 1 -> plan with a smaller --max-nodes, or use another QOS or "
      "account");
  qos().limit_factor = 4.0;
  expect_limits(within);
}

TEST_F(PreflightLimits, ComparesWhatEachNodeGivesAndTheLeastThatAJobMustTake) {
  qos().per_job.per_node = {{"gres/gpu", 2}};
  qos().per_job.minimum = {{"node", 5}, {"gres/gpu", 16}};
  expect_limits(
      "fail: the job takes 4 GPUs of a node, QOS 'short' allows 2 -> take fewer devices or cores of each node, or use "
      "another QOS or account\n"
      "fail: the job takes 4 nodes, QOS 'short' wants 5 at least -> use another QOS, or plan for more");
}

TEST_F(PreflightLimits, CountsMemoryTypesAndBilling) {
  site.launch.exclusive_nodes = true;
  site.launch.memory_per_node = 450.0 * gib;
  qos().per_job.resources = {{"mem", 1000 * 1024}, {"gres/gpu:gh200", 15}, {"cpu", 1152}, {"billing", 1152}};
  expect_limits(
      "fail: the job takes 16 GPUs of type gh200, QOS 'short' allows 15 -> plan with a smaller --max-gpus, or use "
      "another QOS or account\n"
      "fail: the job takes 1.76 TiB of memory, QOS 'short' allows 1000 GiB -> take less memory per node, or use "
      "another "
      "QOS or account");
  cluster.partitions[0].billing_weights = "CPU=0.5,GRES/gpu=100";
  qos().per_job.resources = {{"billing", 2000}};
  expect_limits(
      "fail: the job takes a billing of 2176, QOS 'short' allows 2000 -> plan for fewer nodes, or use another QOS or "
      "account");
  facts.billing_takes_largest = true;  // of 576 and 1600
  expect_limits(within);
}

TEST_F(PreflightLimits, LetsSlurmLowerATimeThatNobodySaid) {
  job.time.reset();
  qos().per_job.time = Seconds(600);
  qos().per_job.minutes = {{"node", 40}};
  expect_limits("ok: 4 nodes, 16 GPUs, 02:00:00, within all limits");
  // Not where the partition has a default.
  cluster.partitions[0].default_time = Seconds(1800);
  expect_limits(
      "fail: 4 nodes for 00:30:00 are 120 node-minutes, QOS 'short' allows 40 per job -> use --time 00:10:00 or less\n"
      "fail: time 00:30:00 is over the 00:10:00 of QOS 'short' -> use --time 00:10:00 or less");
}

TEST_F(PreflightLimits, CountsAsOftenAsTheQosDoes) {
  qos().flags = {"UsageFactorSafe"};
  qos().usage_factor = 2.0;
  qos().per_job.minutes = {{"node", 240}};
  expect_limits(within);
  facts.enforces_safely = true;
  expect_limits(
      "fail: 4 nodes for 01:00:00 are 480 node-minutes (counted 2 times by the QOS), QOS 'short' allows 240 per job -> "
      "use --time 00:30:00 or less");
}

TEST_F(PreflightLimits, ObeysFlagsOfTheQos) {
  cluster.partitions[0].time_limit = Seconds(600);
  cluster.partitions[0].most_nodes = 2;
  EXPECT_EQ(worst(check_limits(subject())), Outcome::fail);
  qos().flags = {"PartitionTimeLimit", "PartitionMaxNodes"};
  expect_limits(within);
}

TEST_F(PreflightLimits, NamesWhatIsNotCompared) {
  qos().flags = {"Relative", "EnforceUsageThreshold"};
  qos().usage_threshold = "0.5";
  qos().per_job.resources = {{"node", 1}};
  facts.job_submit_plugins = "lua";
  expect_limits(
      "ok: 4 nodes, 16 GPUs, 01:00:00, within the limits that could be compared\n"
      "not checked: the limits of QOS 'short', which are shares of the cluster; the fair share that QOS 'short' wants "
      "(0.5); what the site's job_submit plugin (lua) makes of the job");
}

TEST_F(PreflightLimits, SaysThatSlurmsExpectedStartDoesNotKnowThem) {
  qos().per_job.minutes = {{"node", 90}};
  answers.accounting = accounting;
  answers.starts = {{.need = {.gpu = "GH200-96"}, .start = slurm::ExpectedStart{now, "gh[1-4]"}}};
  expect_text(check_start(subject()),
              "warn: now on gh[1-4] by its nodes alone: the limits above hold the job back, which Slurm does not count "
              "here");
}

TEST_F(Preflight, WantsAReservationForAQosThatDoes) {
  facts = {.version = "22.05.8", .accounting = true, .enforces_qos = true};
  slurm::Accounting accounting;
  accounting.user = "anna";
  accounting.default_account = "ml";
  accounting.associations = {{.account = "ml", .partition = {}, .qos = {"keep"}, .default_qos = "keep"}};
  accounting.qos = {{.name = "keep", .flags = {"RequiresReservation"}}};
  answers.accounting = accounting;
  expect_text(check_access(subject()),
              "fail: QOS 'keep' takes only jobs in a reservation -> use --reservation NAME, or another --qos");
}

TEST_F(Preflight, ComparesHostMemoryThatTheJobGets) {
  plan.prediction->peak_memory = 40.0 * gib;
  const auto host = [&] { return text({check_memory(subject())[1]}); };
  EXPECT_EQ(
      host(),
      "ok: 176 GiB on each node of GH200-96 (as the plan needs), 4 ranks and a copy of what their devices hold need "
      "176 GiB");
  site.launch.memory_per_node = 100.0 * gib;
  EXPECT_EQ(host(),
            "warn: 100 GiB on each node of GH200-96 (as the site file says), 4 ranks and a copy of what their devices "
            "hold need 176 GiB -> a checkpoint may not fit beside what else the job holds: try one early in the run");
  site.launch.memory_per_node.reset();
  cluster.partitions[0].most_memory_per_node = 64.0 * gib;
  EXPECT_TRUE(host().starts_with("warn: 64.0 GiB on each node of GH200-96 (all that it may give), 4 ranks")) << host();
}

TEST_F(Preflight, CountsIdleBusyAndDrainedNodes) {
  cluster.groups = {nodes("a", 2, "GH200-96", NodeState::idle), nodes("b", 1, "GH200-96", NodeState::allocated),
                    nodes("c", 1, "GH200-96", NodeState::unavailable, "drained: fan"),
                    nodes("d", 1, "GH200-96", NodeState::unavailable, "down")};
  expect_text(
      check_nodes(subject()),
      "fail: 4 nodes of 4 GH200-96 needed, 3 up: 2 idle, 1 busy, 1 down, 1 drained: fan -> wait until nodes are "
      "back, or plan for what is up with --availability up");
  cluster.groups[1].nodes = {"b1", "b2"};
  cluster.groups[1].count = 2;
  expect_text(check_nodes(subject()),
              "ok: 4 nodes of 4 GH200-96: 2 idle, 2 busy, 1 down, 1 drained: fan; the job waits until enough are free");
}

TEST_F(Preflight, SaysThatEveryNodeIsDrained) {
  cluster.groups = {nodes("a", 4, "GH200-96", NodeState::unavailable, "drained: cooling")};
  expect_text(check_nodes(subject()),
              "fail: 4 nodes of 4 GH200-96 needed, 0 up: 0 idle, 4 drained: cooling -> wait until nodes are back, or "
              "choose another partition");
}

TEST_F(Preflight, SaysThatThereAreNoSuchNodes) {
  cluster.groups = {nodes("a", 9, "A100-40", NodeState::idle)};
  const std::string said = text(check_nodes(subject()));
  EXPECT_EQ(said.find("fail: the plan needs 16 GH200-96, there is none"), 0U) << said;
}

TEST_F(Preflight, CountsEachKindOfNodeOfAPlan) {
  plan.pipelines = {
      {.count = 2, .micro_batches = 4, .stages = {stage(0, 3, "GH200-96", 4), stage(3, 6, "A100-40", 2)}}};
  cluster.groups.push_back(nodes("a", 1, "A100-40", NodeState::idle));
  const auto needs = needs_of(plan, cluster, job.partitions, Availability::up);
  ASSERT_TRUE(needs.has_value()) << needs.error().message();
  ASSERT_EQ(needs->size(), 2U);
  EXPECT_EQ((*needs)[0].nodes, 2);  // a group of 4 on each
  EXPECT_EQ((*needs)[1].nodes, 1);  // two groups of 2
  EXPECT_EQ((*needs)[1].most_ranks, 4);
  EXPECT_EQ((*needs)[1].gres_type, "a100");
  const slurm::StartQuestion question = start_question((*needs)[1], job, site, gpus);
  EXPECT_EQ(question.nodes, 1);
  EXPECT_EQ(question.gpus_per_node, 4);
  EXPECT_EQ(question.cpus_per_task, 72);
  EXPECT_EQ(question.gres_type, "a100");
}

TEST_F(Preflight, SaysWhatSlurmCallsTheGpus) {
  expect_text(check_gres(subject()), "ok: GH200-96 is gpu:gh200");
  left_out = {"left out node m1: GPUs without a type"};
  expect_text(check_gres(subject()), "ok: GH200-96 is gpu:gh200\nok: left out node m1: GPUs without a type");
  cluster.groups[0].count = 1;  // too few: the nodes left out may be missed
  cluster.groups[0].nodes.resize(1);
  EXPECT_EQ(worst(check_gres(subject())), Outcome::warn);
}

TEST_F(Preflight, SaysHowOldTheProfileIs) {
  expect_text(check_profile(subject()),
              "not checked: no profile store is named -> name the one that the plan was made with: --profile STORE");
  answers.profile = std::vector<ProfileFacts>{
      {.gpu = "GH200-96", .measured = true, .age_days = 400.0}, {.gpu = "A100-40", .published = true}, {.gpu = "cpu"}};
  const std::string import_them =
      "measure it with sailor-profile layers --gpu NAME, "
      "or import it with sailor-profile import";
  expect_text(check_profile(subject()),
              "warn: GH200-96: measured, 400 days ago -> drivers and clocks have changed since: " + import_them +
                  "\nwarn: A100-40: published figures, not measured here -> " + import_them +
                  "\nwarn: cpu: nobody measured it, time and memory are estimates -> measure it with sailor-profile "
                  "layers");
}

TEST_F(Preflight, ComparesMemoryWithTheDevices) {
  job.memory_margin = 0.05;
  answers.memory_headroom = -0.02;
  EXPECT_EQ(
      text(check_memory(subject())).find("fail: 37.3 GiB on the rank that takes most; 2.0% more than a device has"), 0U)
      << text(check_memory(subject()));
  answers.memory_headroom = 0.03;
  EXPECT_EQ(check_memory(subject())[0].outcome, Outcome::warn);
  answers.memory_headroom.reset();
  plan.prediction->peak_memory = Bytes(51312590848.0);  // half of a GH200's
  EXPECT_EQ(check_memory(subject())[0].what,
            "47.8 GiB on the rank that takes most; 50% of the tightest device stay free");
  // 4 ranks of 51.3 GB on a node of 100 GB
  cluster.groups[0].memory_per_node = Bytes(100e9);
  EXPECT_EQ(check_memory(subject())[1].outcome, Outcome::warn);
  plan.prediction.reset();
  EXPECT_EQ(check_memory(subject())[0].outcome, Outcome::not_checked);
}

TEST_F(Preflight, ComparesTheLengthOfTheTrainingWithTheJobs) {
  expect_text(check_time(subject()),
              "not checked: the length of the training is not given -> give it with --iterations N");
  job.iterations = 3600;
  expect_text(check_time(subject()), "ok: 3600 iterations of 1.00 s take 01:00:00, the job has 02:00:00");
  job.time = Seconds(3700);
  EXPECT_EQ(check_time(subject())[0].outcome, Outcome::warn);
  job.time = Seconds(1800);
  expect_text(check_time(subject()),
              "fail: 3600 iterations of 1.00 s take 01:00:00, the job has 00:30:00 -> use a larger --time, fewer "
              "iterations, or --checkpoints FOLDER and several jobs");
  job.checkpoints = "/scratch";
  EXPECT_EQ(check_time(subject())[0].outcome, Outcome::warn);
  EXPECT_EQ(check_time(subject())[0].remedy, "about 2 jobs one after the other, each from the last checkpoint");
  // The partition's default counts when the job asks for none.
  job.time.reset();
  cluster.partitions[0].default_time = Seconds(600);
  EXPECT_NE(check_time(subject())[0].what.find("the job has 00:10:00"), std::string::npos);
}

TEST_F(Preflight, SeesReservationsThatCutIntoTheTime) {
  expect_text(check_reservations(subject()), "ok: none while the job would run");
  // 3 of 6 nodes, in an hour: 3 are left, 4 are needed
  cluster.reservations = {{.name = "fix",
                           .start_unix_s = now + 3600,
                           .end_unix_s = now + 7200,
                           .nodes = {"gh1", "gh2", "gh3"},
                           .maintenance = true}};
  const std::vector<Check> checks = check_reservations(subject());
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].outcome, Outcome::warn);
  EXPECT_EQ(checks[0].what.find("maintenance 'fix' takes 3 nodes from 2023-11-1"), 0U) << checks[0].what;
  EXPECT_EQ(checks[0].remedy,
            "a job with a --time below 01:00:00 can start before it, a longer one only after its end");
  job.time = Seconds(3000);
  expect_text(check_reservations(subject()), "ok: none while the job would run");
  job.time = Seconds(7200);
  cluster.reservations[0].nodes = {"gh1", "gh2"};
  EXPECT_EQ(check_reservations(subject())[0].outcome, Outcome::ok);  // 4 are left
  cluster.reservations[0].nodes = {"elsewhere"};
  expect_text(check_reservations(subject()), "ok: none while the job would run");
}

TEST_F(Preflight, ChecksTheReservationOfTheJob) {
  job.reservation = "ours";
  job.time = Seconds(3600);
  expect_text(
      check_reservations(subject()),
      "fail: reservation 'ours' not found (known: none) -> correct --reservation; one that is over is no longer "
      "known");
  cluster.reservations = {
      {.name = "ours", .start_unix_s = now - 60, .end_unix_s = now + 7200, .nodes = {"gh1", "gh2"}, .users = {"anna"}}};
  const std::string span = slurm::format_clock(now - 60) + " to " + slurm::format_clock(now + 7200);
  expect_text(check_reservations(subject()), "ok: the job runs in 'ours', which has 2 nodes since " + span);
  job.time = Seconds(7201);
  expect_text(check_reservations(subject()),
              "warn: the job runs in 'ours', which has 2 nodes since " + span +
                  ", before the job's 02:00:01 are over -> use a --time below 02:00:00: Slurm stops jobs that are left "
                  "when their reservation ends");
  cluster.reservations[0].nodes = {"a1"};
  expect_text(check_reservations(subject()),
              "fail: reservation 'ours' has no node that can be planned for -> leave out --reservation");
  cluster.groups.push_back(nodes("a", 1, "A100-40", NodeState::idle));
  cluster.groups.back().partitions = {"a100"};
  expect_text(check_reservations(subject()),
              "fail: reservation 'ours' has no node in normal -> use the partition of its nodes: a100");
  cluster.reservations[0].users = {"bob"};
  expect_text(check_reservations(subject()),
              "fail: reservation 'ours' takes no jobs of anna (users: bob) -> leave out --reservation, or ask the "
              "administrator to be let into it");
}

TEST_F(Preflight, WarnsOfWhatIsNotCountedWithOfAReservation) {
  left_out = {"reservation 'ours' is FLEX: so", "left out node a1: so"};
  expect_text(check_reservations(subject()), "warn: reservation 'ours' is FLEX: so");
  EXPECT_FALSE(text(check_gres(subject())).find("FLEX") != std::string::npos);
}

TEST_F(Preflight, LetsAccountsBelowThatOfTheReservationIn) {
  job.reservation = "ours";
  job.account = "team";
  job.time = Seconds(3600);
  cluster.reservations = {{.name = "ours",
                           .start_unix_s = now - 60,
                           .end_unix_s = now + 7200,
                           .nodes = {"gh1", "gh2"},
                           .accounts = {"project"}}};
  const auto outcome = [&] { return check_reservations(subject())[0].outcome; };
  EXPECT_EQ(outcome(), Outcome::fail);  // without a database there is no account above
  facts = {.version = "22.05.8", .accounting = true};
  EXPECT_EQ(outcome(), Outcome::ok);  // not known
  slurm::Accounting accounting;
  accounting.known_accounts = {{.name = "team", .parent = "project", .all_jobs = {}},
                               {.name = "project", .parent = "root", .all_jobs = {}},
                               {.name = "root", .parent = {}, .all_jobs = {}}};
  answers.accounting = accounting;
  EXPECT_EQ(outcome(), Outcome::ok);
  cluster.reservations[0].accounts = {"-project"};
  EXPECT_EQ(outcome(), Outcome::fail);
  cluster.reservations[0].accounts = {"other"};
  expect_text(check_reservations(subject()),
              "fail: reservation 'ours' takes no jobs of account 'team' (accounts: other) -> use another --account, or "
              "leave out --reservation");
}

TEST_F(Preflight, WaitsForTheReservationOfTheJobToBegin) {
  job.reservation = "ours";
  job.time = Seconds(3600);
  cluster.reservations = {
      {.name = "ours", .start_unix_s = now + 600, .end_unix_s = now + 7200, .nodes = {"gh1", "gh2"}}};
  answers.starts = {
      {.need = {.gpu = "GH200-96"}, .start = fail(ErrorCode::failure, "slurmctld: Invalid time specified")}};
  expect_text(check_start(subject()),
              "warn: slurmctld: Invalid time specified -> Slurm does not say before reservation 'ours' has begun: the "
              "job waits until then");
  EXPECT_EQ(check_reservations(subject())[0].outcome, Outcome::ok);
  cluster.reservations[0].users = {"-anna"};
  expect_text(check_start(subject()),
              "fail: slurmctld: Invalid time specified -> leave out --reservation, or ask the administrator to be let "
              "into it");
  cluster.reservations[0].users.clear();
  EXPECT_EQ(start_question(Need{.gpu = "GH200-96"}, job, site, gpus).reservation, "ours");
}

TEST_F(Preflight, SaysThatComponentsWereAskedAboutOneByOne) {
  answers.starts = {{.need = {.gpu = "GH200-96"}, .start = slurm::ExpectedStart{now + 5400, "gh[1-4]"}},
                    {.need = {.gpu = "A100-40"}, .start = slurm::ExpectedStart{now, "a1"}}};
  expect_text(check_start(subject()),
              "ok: GH200-96 alone: in 01:30:00, at " + slurm::format_clock(now + 5400) +
                  " on gh[1-4]\nok: A100-40 alone: now on a1\nok: the whole job: not before the last of these, in "
                  "01:30:00, at " +
                  slurm::format_clock(now + 5400) +
                  "; Slurm says it of each component alone, but they wait for each other");
}

TEST_F(Preflight, TellsWhenTheJobWouldStart) {
  expect_text(check_start(subject()), "not checked: Slurm was not asked");
  answers.starts = {{.need = {.gpu = "GH200-96"}, .start = slurm::ExpectedStart{now + 5, "gh[1-4]"}}};
  expect_text(check_start(subject()), "ok: now on gh[1-4]");
  answers.starts[0].start = slurm::ExpectedStart{now + 5400, "gh[1-4]"};
  EXPECT_EQ(text(check_start(subject())).find("ok: in 01:30:00, at 20"), 0U) << text(check_start(subject()));
  answers.starts[0].start = fail(ErrorCode::failure, "slurmctld: Requested node configuration is not available");
  EXPECT_EQ(check_start(subject())[0].outcome, Outcome::fail);
  // Slurm does not look past a reservation.
  cluster.reservations = {
      {.name = "fix", .start_unix_s = now - 10, .end_unix_s = now + 7200, .nodes = {"gh1", "gh2", "gh3"}}};
  expect_text(check_start(subject()),
              "warn: slurmctld: Requested node configuration is not available -> Slurm does not look past reservation "
              "'fix': the job may only have to wait for its end");
  answers.starts[0].start = fail(ErrorCode::unavailable, "slurmctld does not answer");
  EXPECT_EQ(check_start(subject())[0].outcome, Outcome::not_checked);
}

TEST_F(Preflight, LooksForDataAndRoomForCheckpoints) {
  expect_text(check_paths(subject()),
              "not checked: not named -> name it with --data PREFIX\n"
              "not checked: not named -> name their folder with --checkpoints FOLDER");
  answers.data = PathFacts{.path = "corpus.bin", .problem = "does not exist"};
  const double one = 12.0 * static_cast<double>(model.total_parameters());
  answers.checkpoints = PathFacts{.path = "/scratch", .problem = {}, .space = Bytes(1.5 * one)};
  const std::vector<Check> checks = check_paths(subject());
  EXPECT_EQ(checks[0].outcome, Outcome::fail);
  EXPECT_EQ(checks[0].what, "'corpus.bin' does not exist");
  EXPECT_EQ(checks[1].outcome, Outcome::warn);
  answers.checkpoints->space = Bytes(0.9 * one);
  EXPECT_EQ(check_paths(subject())[1].outcome, Outcome::fail);
  answers.checkpoints->space = Bytes(2.1 * one);
  EXPECT_EQ(check_paths(subject())[1].outcome, Outcome::ok);
}

TEST_F(Preflight, WarnsOfManyCommunicators) {
  EXPECT_EQ(check_communicators(subject())[0].outcome, Outcome::ok);
  site.name = "alps";
  site.limits.communicators_per_rank = 2;
  const std::vector<Check> checks = check_communicators(subject());
  EXPECT_EQ(checks[0].outcome, Outcome::warn);
  EXPECT_NE(checks[0].what.find("; site alps is known to take 2 of a rank"), std::string::npos) << checks[0].what;
}

TEST_F(Preflight, NamesTheMpiTypesThatThereAre) {
  answers.mpi_types = std::vector<std::string>{"none", "pmi2"};
  expect_text(
      check_mpi(subject()),
      "fail: srun has no --mpi=pmix (it has: none, pmi2) -> use one of these with --mpi TYPE, as the MPI library "
      "of sailor-train wants it");
}

TEST_F(Preflight, ChecksWhatItCanWithoutAPlan) {
  Subject without = subject();
  without.plan = nullptr;
  without.no_plan = Error{ErrorCode::infeasible, "no node is up", "wait"};
  const std::vector<Check> checks = run_checks(without);
  EXPECT_EQ(worst(checks), Outcome::fail);
  EXPECT_NE(report(checks).find("fail         plan          no node is up\n"), std::string::npos) << report(checks);
}

TEST(ParseMpiList, TakesWhatSrunPrints) {
  const std::vector<std::string> wanted{"none", "pmix", "pmi2", "pmix_v4"};
  EXPECT_EQ(parse_mpi_list("MPI plugin types are...\n\tnone\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: "
                           "pmix_v4\n"),
            wanted);
  EXPECT_EQ(parse_mpi_list("srun: MPI types are...\nsrun: none\nsrun: pmix\n"),
            (std::vector<std::string>{"none", "pmix"}));
  EXPECT_TRUE(parse_mpi_list("").empty());
}

TEST(CountCommunicators, CountsSetsOfRanksThatSumTheSame) {
  const Model gpt = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  ASSERT_TRUE(gpt.tied_embedding);
  Plan plan;
  plan.job = {.model = "tiny-gpt", .global_batch = 4, .sequence_length = 64};
  // One pipeline of one stage: nobody to sum with.
  plan.pipelines = {{.count = 1, .micro_batches = 4, .stages = {stage(0, 6, "cpu")}}};
  EXPECT_EQ(count_communicators(plan, gpt).most_per_rank, 1);
  // Two of these: both ranks sum everything.
  plan.pipelines[0].count = 2;
  EXPECT_EQ(count_communicators(plan, gpt).most_per_rank, 2);
  EXPECT_EQ(count_communicators(plan, gpt).of_job, 2);
  // Two of two stages: {0,2} the first stage, {1,3} the second, {0,1,2,3} the tied embedding; and the world.
  plan.pipelines[0].stages = {stage(0, 3, "cpu"), stage(3, 6, "cpu")};
  EXPECT_EQ(count_communicators(plan, gpt).most_per_rank, 3);
  EXPECT_EQ(count_communicators(plan, gpt).of_job, 4);
  // Two ranks for each of these four, which exchange heads: a group for each pair.
  plan.context_parallel = 2;
  EXPECT_EQ(count_communicators(plan, gpt).most_per_rank, 4);
  EXPECT_EQ(count_communicators(plan, gpt).of_job, 8);
}

TEST(System, FindsTheFolderAboveACheckpointFolderThatIsNotThere) {
  const std::string base = ::testing::TempDir();
  const PathFacts facts = checkpoint_facts(base + "/none/such");
  EXPECT_EQ(facts.problem, "");
  EXPECT_TRUE(facts.space.has_value());
  EXPECT_EQ(std::filesystem::weakly_canonical(facts.path), std::filesystem::weakly_canonical(base));
  EXPECT_EQ(data_facts(base + "/none").problem, "does not exist");
}

}  // namespace
}  // namespace sailor::preflight::preflight_test
