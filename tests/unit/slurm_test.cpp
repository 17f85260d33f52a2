// The parts of slurm/ that need no Slurm: words, node records, scripts, output of Slurm's commands, processes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/process.hpp"
#include "core/text.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/jobs.hpp"
#include "slurm/node_records.hpp"
#include "slurm/query.hpp"
#include "slurm/reservations.hpp"
#include "slurm/sbatch.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm::slurm_test {
namespace {

using ::testing::Test;

template <class T>
std::string message_of(const Result<T>& result) {
  return result ? "no error" : result.error().message();
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// ---- words

TEST(ShellQuote, LeavesHarmlessWordsAlone) {
  EXPECT_EQ(shell_quote("/data/corpus-1.2_x"), "/data/corpus-1.2_x");
  EXPECT_EQ(shell_quote("a=b:d@e%f+g"), "a=b:d@e%f+g");
}

TEST(ShellQuote, PutsEverythingElseInSingleQuotes) {
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("$(rm -rf /)"), "'$(rm -rf /)'");
  EXPECT_EQ(shell_quote("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quote("~root"), "'~root'");
}

TEST(ShellQuote, IsReadBackByBashUnchanged) {
  for (const std::string word :
       {"$(id)", "`id`", "a\nb", "it's \"x\"", "\\n", "-n", "*", "{a,b}", "!x", "\t", "#x", "a;b", "$HOME", "é"}) {
    const auto outcome = run_command(
        {.arguments = {"bash", "-c", "printf %s " + shell_quote(word)}, .input = {}, .deadline = Seconds(20)});
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->output, word);
  }
}

TEST(SbatchQuote, RefusesNewlines) {
  EXPECT_EQ(*sbatch_quote("job name", "a b"), "'a b'");
  EXPECT_EQ(*sbatch_quote("exclude", "gh1,gh2"), "gh1,gh2");
  EXPECT_EQ(
      message_of(sbatch_quote("comment", "x\n#SBATCH --uid=0")),
      "comment holds a control character, which an #SBATCH line cannot hold; use a value without newlines and tabs");
}

TEST(CheckName, TakesWhatSlurmTakes) {
  for (const char* name : {"normal", "gpu_a100.x", "job+1@x:y=z"})
    EXPECT_TRUE(check_name("partition", name).has_value()) << name;
  for (const char* name : {"", "-x", "a b", "a;b", "a\nb", "a'b", "a#b", "a$b"})
    EXPECT_FALSE(check_name("partition", name).has_value()) << name;
  EXPECT_EQ(
      message_of(check_name("partition", "a b")),
      "partition 'a b' has characters that Slurm does not take; use letters, digits and . _ + @ : = - (not first)");
}

TEST(TimeLimit, ReadsAllOfSlurmsFormats) {
  EXPECT_EQ(*parse_time_limit("90"), Seconds(5400));
  EXPECT_EQ(*parse_time_limit("10:30"), Seconds(630));
  EXPECT_EQ(*parse_time_limit("1:30:00"), Seconds(5400));
  EXPECT_EQ(*parse_time_limit("1-12"), Seconds(129600));
  EXPECT_EQ(*parse_time_limit("1-12:30"), Seconds(131400));
  EXPECT_EQ(*parse_time_limit("1-12:30:15"), Seconds(131415));
}

TEST(TimeLimit, RefusesEverythingElse) {
  for (const char* text :
       {"", "x", "0", "1:2:3:4", "1::2", "-1", "1-", "1.5", "1 0", "00:00", "9999999999", "1-2-3", "+5"})
    EXPECT_FALSE(parse_time_limit(text).has_value()) << text;
  EXPECT_EQ(message_of(parse_time_limit("2h")),
            "time '2h' is not one that Slurm reads; write minutes, MM:SS, H:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS");
}

TEST(TimeLimit, IsWrittenAsItIsRead) {
  for (const double seconds : {1.0, 59.0, 5400.0, 86399.0, 86400.0, 131415.0})
    EXPECT_EQ(*parse_time_limit(format_time_limit(Seconds(seconds))), Seconds(seconds));
  EXPECT_EQ(format_time_limit(Seconds(5400)), "01:30:00");
  EXPECT_EQ(format_time_limit(Seconds(131415)), "1-12:30:15");
}

// ---- node records

std::vector<GpuCount> gpus_of(std::string_view gres) { return parse_gpus(gres).value(); }

TEST(ParseGpus, ReadsWhatSlurmWrites) {
  EXPECT_EQ(gpus_of("gpu:gh200:4(S:0-3)"), (std::vector<GpuCount>{{"gh200", 4}}));
  EXPECT_EQ(gpus_of("gpu:a100:2(S:0,1),shard:a100:8,craynetwork:4"), (std::vector<GpuCount>{{"a100", 2}}));
  EXPECT_EQ(gpus_of("gpu:a100:2(S:0),gpu:a100:2(S:1)"), (std::vector<GpuCount>{{"a100", 4}}));
  EXPECT_EQ(gpus_of("gpu:a100:2,gpu:v100:1"), (std::vector<GpuCount>{{"a100", 2}, {"v100", 1}}));
  EXPECT_EQ(gpus_of("gpu:4"), (std::vector<GpuCount>{{"", 4}}));
  EXPECT_EQ(gpus_of("gpu"), (std::vector<GpuCount>{{"", 1}}));
  EXPECT_EQ(gpus_of("gpu:gh200"), (std::vector<GpuCount>{{"gh200", 1}}));
  EXPECT_EQ(gpus_of("gpu:gh200:no_consume:4"), (std::vector<GpuCount>{{"gh200", 4}}));
  EXPECT_EQ(gpus_of("gpu:0"), std::vector<GpuCount>{});
  EXPECT_EQ(gpus_of("gpus:a100:4"), std::vector<GpuCount>{});
  EXPECT_EQ(gpus_of(""), std::vector<GpuCount>{});
  EXPECT_EQ(gpus_of("(null)"), std::vector<GpuCount>{});
}

TEST(ParseGpus, RefusesCountsThatAreNone) {
  EXPECT_EQ(message_of(parse_gpus("gpu:a100:4x")), "the number of GPUs in Gres 'gpu:a100:4x' is not readable");
  EXPECT_FALSE(parse_gpus("gpu:a100:99999999999").has_value());
}

GpuCatalogue catalogue() { return GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value(); }

NodeRecord node(std::string name, std::string gres = "gpu:gh200:4") {
  return {.name = std::move(name),
          .gres = std::move(gres),
          .cpus = 288,
          .cores = 288,
          .memory_mib = 854000,
          .state = NodeState::idle,
          .state_reason = {},
          .partitions = {"normal"}};
}

TEST(AssembleCluster, FoldsAlikeNodesAndKeepsOthersApart) {
  std::vector<NodeRecord> nodes{node("n1"), node("n2"), node("n3"), node("n4")};
  nodes[2].state = NodeState::unavailable;
  nodes[2].state_reason = "drained: bad fan";
  const auto reading =
      assemble_cluster("alps", {{.name = "normal", .time_limit = {}, .most_nodes = {}}}, nodes, catalogue());
  ASSERT_TRUE(reading.has_value()) << message_of(reading);
  ASSERT_EQ(reading->cluster.groups.size(), 2U);
  EXPECT_EQ(reading->cluster.groups[0].nodes, (std::vector<std::string>{"n1", "n2", "n4"}));
  EXPECT_EQ(reading->cluster.groups[0].count, 3);
  EXPECT_EQ(reading->cluster.groups[0].gpu, "GH200-96");
  EXPECT_EQ(reading->cluster.groups[0].gpus_per_node, 4);
  EXPECT_EQ(reading->cluster.groups[0].memory_per_node, Bytes(854000.0 * 1048576));
  EXPECT_EQ(reading->cluster.groups[1].state_reason, "drained: bad fan");
  EXPECT_TRUE(reading->warnings.empty());
  // What a child process sends to its parent says the same.
  const auto again = parse_cluster(cluster_to_toml(reading->cluster), "slurm", catalogue());
  ASSERT_TRUE(again.has_value()) << message_of(again);
  EXPECT_EQ(cluster_to_toml(*again), cluster_to_toml(reading->cluster));
}

TEST(AssembleCluster, MakesNodesWithoutGpusCpuNodesOfOneDevicePerCore) {
  NodeRecord cpu = node("c1", "");
  cpu.cpus = 128;
  cpu.cores = 64;
  const auto reading =
      assemble_cluster("x", {{.name = "normal", .time_limit = {}, .most_nodes = {}}}, {cpu}, catalogue());
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->cluster.groups[0].gpu, "cpu");
  EXPECT_EQ(reading->cluster.groups[0].gpus_per_node, 64);
  EXPECT_EQ(reading->cluster.groups[0].cpus_per_node, 128);
}

TEST(AssembleCluster, LeavesOutNodesItCannotPlanForAndNamesThem) {
  std::vector<NodeRecord> nodes{node("n1")};
  for (int i = 1; i <= 12; ++i) nodes.push_back(node("m" + std::to_string(i), "gpu:mi300:8"));
  nodes.push_back(node("u1", "gpu:4"));
  nodes.push_back(node("t1", "gpu:a100:2,gpu:v100:2"));
  const auto reading =
      assemble_cluster("x", {{.name = "normal", .time_limit = {}, .most_nodes = {}}}, nodes, catalogue());
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->cluster.groups.size(), 1U);
  std::vector<std::string> said;
  for (const LeftOutNodes& left : reading->cluster.left_out) said.push_back(left.message());
  const std::string which = "say which with --gpu-type NAME, or with [[gpu_types]] of the site file";
  EXPECT_EQ(
      said,
      (std::vector<std::string>{
          "left out nodes m1, m2, m3, m4, m5, m6, m7, m8 and 4 more: GPU type 'mi300' is not in the catalogue; " +
              which + "; or add it to slurm_gres of a GPU in gpus.toml",
          "left out node t1: GPUs of several types on one node (a100, v100)",
          "left out node u1: GPUs without a type (Slurm says only 'gpu', and no feature of the node says more); " +
              which}));
  EXPECT_EQ(reading->cluster.left_out[2].partitions, (std::vector<std::string>{"normal"}));
  const auto again = parse_cluster(cluster_to_toml(reading->cluster), "slurm", catalogue());
  ASSERT_TRUE(again.has_value()) << message_of(again);
  ASSERT_EQ(again->left_out.size(), 3U);
  EXPECT_EQ(again->left_out[0].message(), said[0]);
  const std::vector<std::string> other{"other"};
  EXPECT_TRUE(again->left_out_of(other).empty());
}

TEST(AssembleCluster, KnowsGpusWithoutATypeByFeaturesAndRules) {
  std::vector<NodeRecord> nodes{node("f1", "gpu:4"), node("o1", "gpu:4"), node("s1", "gpu:a100:4"), node("s2", "gpu:4"),
                                node("a1", "gpu:a100-sxm4:4")};
  nodes[0].features = {"gpu", "H100_SXM5"};
  const std::vector<GpuRule> rules{{.gpu = "A100-80", .nodes = {"s*"}},  // of the site: more than what Slurm says
                                   {.gpu = "V100-32", .where_nothing_else_says_it = true}};
  const auto reading = assemble_cluster("x", {}, nodes, catalogue(), rules);
  ASSERT_TRUE(reading.has_value()) << message_of(reading);
  std::map<std::string, std::string> gpu_of;
  for (const NodeGroup& group : reading->cluster.groups)
    for (const std::string& name : group.nodes) gpu_of[name] = group.gpu + " " + group.gres_type;
  EXPECT_EQ(gpu_of, (std::map<std::string, std::string>{{"f1", "H100-80 "},
                                                        {"o1", "V100-32 "},
                                                        {"s1", "A100-80 a100"},
                                                        {"s2", "A100-80 "},
                                                        {"a1", "V100-32 a100-sxm4"}}));
  const auto alone = assemble_cluster("x", {}, nodes, catalogue());
  ASSERT_TRUE(alone.has_value());
  std::string said;
  for (const LeftOutNodes& left : alone->cluster.left_out) said += left.message() + "\n";
  EXPECT_NE(said.find("left out node a1: GPUs of type 'a100-sxm4', which may be A100-40, A100-80; say which with "
                      "--gpu-type NAME"),
            std::string::npos)
      << said;
}

TEST(AssembleCluster, FailsWhenNoNodeIsLeft) {
  EXPECT_EQ(
      message_of(assemble_cluster("x", {}, {node("u1", "gpu:4")}, catalogue())),
      "cluster x has no node that can be planned for: left out node u1: GPUs without a type (Slurm says only 'gpu', "
      "and no feature of the node says more); say which with --gpu-type NAME, or with [[gpu_types]] of the site file");
}

TEST(Printable, MakesOneLineOfUtf8OfAnything) {
  EXPECT_EQ(printable("bad fan\n(see #12)"), "bad fan (see #12)");
  EXPECT_EQ(printable("L\xfc"
                      "fter"),
            "L?fter");
  EXPECT_EQ(printable("L\xc3\xbc"
                      "fter"),
            "L\xc3\xbc"
            "fter");
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");  // a surrogate
  EXPECT_EQ(printable("\xe2\x82"), "??");       // cut short
}

TEST(RequirePartition, NamesTheKnownOnesAndTheClosest) {
  Cluster cluster;
  cluster.partitions = {{.name = "normal", .time_limit = {}, .most_nodes = {}},
                        {.name = "debug", .time_limit = {}, .most_nodes = {}},
                        {.name = "old", .up = false, .time_limit = {}, .most_nodes = {}}};
  EXPECT_TRUE(require_partition(cluster, "debug").has_value());
  EXPECT_EQ(message_of(require_partition(cluster, "gpu")),
            "partition 'gpu' not found (known: debug, normal, old); use --partition NAME");
  EXPECT_EQ(message_of(require_partition(cluster, "norml")),
            "partition 'norml' not found (known: debug, normal, old); did you mean 'normal'? use --partition NAME");
  EXPECT_EQ(message_of(require_partition(cluster, "old")),
            "partition 'old' is down: it starts no jobs; use another one with --partition NAME, or wait for the "
            "administrator to set it up");
}

TEST(RequireReservation, TakesThoseThatAreNotOverAndOpenToTheUser) {
  Cluster cluster;
  cluster.reservations = {
      {.name = "course", .start_unix_s = 100, .end_unix_s = 200, .nodes = {"gh1"}, .users = {"anna", "bob"}},
      {.name = "repair", .start_unix_s = 100, .end_unix_s = 200, .nodes = {"gh2"}, .users = {"-anna"}},
      {.name = "project", .start_unix_s = 100, .end_unix_s = 200, .nodes = {"gh2"}, .accounts = {"g1", "g2"}},
      {.name = "others", .start_unix_s = 100, .end_unix_s = 200, .nodes = {"gh2"}, .accounts = {"-g1"}},
      {.name = "licences", .start_unix_s = 100, .end_unix_s = 200}};
  const auto said = [&](std::string_view name, const std::string& user, const std::string& account, std::int64_t time) {
    const auto reservation = require_reservation(cluster, name, user, split(account, ','), time);
    return reservation ? "took " + reservation->name : message_of(reservation);
  };
  EXPECT_EQ(said("course", "anna", "", 150), "took course");
  EXPECT_EQ(said("course", "anna", "any", 50), "took course");
  EXPECT_EQ(said("course", "carl", "", 150),
            "reservation 'course' takes no jobs of carl (users: anna, bob); leave out --reservation, or ask the "
            "administrator to be let into it");
  EXPECT_EQ(said("course", "anna", "", 200), "reservation 'course' is over since " + format_clock(200) +
                                                 "; leave out --reservation, or use another one");
  EXPECT_EQ(said("repair", "bob", "", 150), "took repair");
  EXPECT_EQ(said("repair", "anna", "", 150).find("reservation 'repair' takes no jobs of anna (users: -anna)"), 0U);
  EXPECT_EQ(said("project", "anna", "g2", 150), "took project");
  EXPECT_EQ(said("project", "anna", "", 150), "took project");  // which account, Slurm decides
  EXPECT_EQ(
      said("project", "anna", "g3", 150),
      "reservation 'project' takes no jobs of account 'g3' (accounts: g1, g2); use another --account, or leave out "
      "--reservation");
  EXPECT_EQ(said("project", "anna", "team,g1,root", 150), "took project");  // an account below g1
  EXPECT_EQ(said("others", "anna", "team,root", 150), "took others");
  EXPECT_EQ(said("others", "anna", "team,g1,root", 150),
            "reservation 'others' takes no jobs of account 'team' (accounts: -g1); use another --account, or leave out "
            "--reservation");
  EXPECT_EQ(said("course,project", "anna", "", 150),
            "'course,project' are several reservations; name one with --reservation: a job gets the whole nodes of one "
            "reservation");
  EXPECT_EQ(said("course\x1b[2J", "anna", "", 150).find('\x1b'), std::string::npos);
  EXPECT_EQ(said("licences", "anna", "", 150), "reservation 'licences' has no nodes; leave out --reservation");
  EXPECT_EQ(
      said("cuorse", "anna", "", 150),
      "reservation 'cuorse' not found (known: course, licences, others, project, repair); did you mean 'course'? use "
      "--reservation NAME");
}

TEST(ControllerAddress, IsReadFromSlurmConf) {
  const auto address = parse_controller_address(
      "# ClusterName=no\n clustername = alps # "
      "here\nSlurmctldHost=ctl1(10.0.0.1)\nSlurmctldHost=ctl2\nSlurmctldPort=6817-6820\n");
  EXPECT_EQ(address.describe(), " of cluster alps at ctl1:6817");
  EXPECT_EQ(parse_controller_address("").describe(), "");
}

TEST(ReadCluster, SaysThatTheConfigurationIsMissing) {
  const auto reading = read_cluster(catalogue(), {.configuration = "/no/such/slurm.conf"});
  ASSERT_FALSE(reading.has_value());
  EXPECT_EQ(reading.error().code, ErrorCode::unavailable);
  EXPECT_EQ(message_of(reading),
            has_libslurm()
                ? "SLURM_CONF names '/no/such/slurm.conf', which does not exist; correct or unset it, or use "
                  "--cluster FILE to plan without Slurm"
                : "this Sailor was built without Slurm; build it with -DSAILOR_SLURM=ON, or use --cluster FILE");
}

// ---- processes

TEST(RunCommand, PassesWordsInputAndOutput) {
  const auto outcome = run_command({.arguments = {"sh", "-c", "cat; echo \"$1\" >&2; exit 3", "sh", "$(id) 'x'"},
                                    .input = "in",
                                    .deadline = Seconds(20)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->output, "in");
  EXPECT_EQ(outcome->errors, "$(id) 'x'\n");
  EXPECT_EQ(outcome->exit_status, 3);
  EXPECT_EQ(outcome->how_it_ended(), "exit status 3");
  EXPECT_FALSE(outcome->succeeded());
}

TEST(RunCommand, MovesMoreThanASocketHolds) {
  const std::string text(5'000'000, 'x');
  const auto outcome = run_command({.arguments = {"cat"}, .input = text, .deadline = Seconds(60)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->output, text);
}

TEST(RunCommand, SurvivesAProgramThatReadsNothing) {
  const auto outcome =
      run_command({.arguments = {"true"}, .input = std::string(5'000'000, 'x'), .deadline = Seconds(20)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->succeeded());
}

TEST(RunCommand, SaysThatThereIsNoSuchProgram) {
  const auto outcome = run_command({.arguments = {"no-such-program-at-all"}, .input = {}, .deadline = Seconds(20)});
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, ErrorCode::not_found);
  EXPECT_EQ(message_of(outcome), "there is no program 'no-such-program-at-all' in PATH");
}

TEST(RunCommand, KillsAtTheDeadline) {
  const auto outcome = run_command({.arguments = {"sleep", "60"}, .input = {}, .deadline = Seconds(0.2)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->timed_out);
  EXPECT_EQ(outcome->how_it_ended(), "no answer within 0.2 s");
}

TEST(RunCommand, KillsWhatAHangingScriptStarted) {
  // The script says who waits with it; signal 0 only asks.
  const auto outcome =
      run_command({.arguments = {"sh", "-c", "sleep 60 & echo $!; wait"}, .input = {}, .deadline = Seconds(0.5)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->timed_out);
  const int child = std::stoi(outcome->output);
  const auto is_there = [&] {
    std::ifstream stat(fmt::format("/proc/{}/stat", child));
    const std::string text((std::istreambuf_iterator<char>(stat)), {});
    return text.find("(sleep)") != std::string::npos && text.find(") Z ") == std::string::npos;
  };
  for (int i = 0; i < 1000 && is_there(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(is_there());
}

TEST(RunCommand, KillsAProgramThatSaysTooMuch) {
  const auto outcome = run_command({.arguments = {"yes"}, .input = {}, .deadline = Seconds(60)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_FALSE(outcome->succeeded());
  EXPECT_FALSE(outcome->timed_out);
  EXPECT_EQ(outcome->how_it_ended(), "its output exceeds the limit");
  EXPECT_LE(outcome->output.size(), (std::size_t{16} << 20U) + 1);
  // One that has ended, but left another behind.
  const auto left = run_command({.arguments = {"sh", "-c", "yes & exit 0"}, .input = {}, .deadline = Seconds(60)});
  ASSERT_TRUE(left.has_value());
  EXPECT_LE(left->output.size(), (std::size_t{16} << 20U) + 1);
}

TEST(RunCommand, PassesOnASignalThatEndsThisProcess) {
  // A process that runs a program and is told to end, as by a terminal's Ctrl-C.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    ::signal(SIGINT, SIG_DFL);
    const std::string say = fmt::format("echo there >/proc/self/fd/{}; exec sleep 600", ends[1]);
    (void)run_command({.arguments = {"sh", "-c", say}, .input = {}, .deadline = Seconds(600)});
    ::_exit(0);
  }
  ::close(ends[1]);
  std::array<char, 32> text{};
  ASSERT_GT(::read(ends[0], text.data(), text.size() - 1), 0);
  ::kill(parent, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(parent, &status, 0), parent);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  // Whoever held the other end has ended.
  pollfd wait{.fd = ends[0], .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&wait, 1, 60'000), 1);
  EXPECT_EQ(::read(ends[0], text.data(), text.size()), 0);
  ::close(ends[0]);
}

TEST(RunCommand, DoesNotWaitForAGrandchildThatKeepsStdout) {
  const auto outcome =
      run_command({.arguments = {"sh", "-c", "sleep 5 & echo done"}, .input = {}, .deadline = Seconds(4)});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->output, "done\n");
  EXPECT_FALSE(outcome->timed_out);
}

TEST(RunInChild, ReturnsWhatTheBodySays) {
  int counter = 0;
  const auto outcome = run_in_child(
      [&] {
        ++counter;
        return std::string("a\0b", 3);
      },
      Seconds(20));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->succeeded());
  EXPECT_EQ(outcome->output, std::string("a\0b", 3));
  EXPECT_EQ(counter, 0);  // it ran in another process
}

TEST(RunInChild, SurvivesABodyThatExitsOrHangsOrThrows) {
  const auto exits = run_in_child(
      []() -> std::string {
        std::fputs("fatal: no\n", stderr);
        std::exit(7);
      },
      Seconds(20));
  ASSERT_TRUE(exits.has_value());
  EXPECT_FALSE(exits->succeeded());
  EXPECT_EQ(exits->errors, "fatal: no\n");
  const auto hangs = run_in_child(
      []() -> std::string {
        ::pause();
        return {};
      },
      Seconds(0.2));
  ASSERT_TRUE(hangs.has_value());
  EXPECT_TRUE(hangs->timed_out);
  const auto throws = run_in_child([]() -> std::string { throw std::runtime_error("oh"); }, Seconds(20));
  ASSERT_TRUE(throws.has_value());
  EXPECT_FALSE(throws->succeeded());
  EXPECT_EQ(throws->errors, "oh\n");
}

// ---- scripts

class SbatchScript : public Test {
 protected:
  static Model tiny() { return find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value(); }
  /// tiny-gpt has 6 layers: `pipelines` of `stages` stages with 2 micro-batches each.
  static Plan plan(int pipelines, std::vector<Stage> stages) {
    Plan plan;
    plan.job = {.model = "tiny-gpt", .global_batch = 2 * pipelines, .sequence_length = 64};
    plan.pipelines = {{.count = pipelines, .micro_batches = 2, .stages = std::move(stages)}};
    return plan;
  }
  static Stage stage(int first, int last, std::string gpu = "GH200-96", int tensor_parallel = 1) {
    return {.layers = {first, last}, .gpu = std::move(gpu), .tensor_parallel = tensor_parallel, .zone = {}};
  }
  static SbatchRequest request(int devices_per_node) {
    SbatchRequest request;
    request.nodes.push_back({.devices_per_node = devices_per_node});
    request.run_directory = "/scratch/run";
    request.plan_path = "/scratch/run/plan.toml";
    request.data = "/data/corpus";
    request.iterations = 100;
    return request;
  }
};

TEST_F(SbatchScript, LetsEveryRankSeeAllGpusOfItsNode) {
  // NCCL has no NVLink to GPUs that a control group hides (NVIDIA/nccl#1066); the placer gives each rank its GPU.
  SbatchRequest placed = request(4);
  for (const Placer placer : {Placer::launcher, Placer::plugin}) {
    placed.placer = placer;
    const auto script = sbatch_script(plan(4, {stage(0, 3), stage(3, 6)}), tiny(), placed);
    ASSERT_TRUE(script.has_value()) << message_of(script);
    EXPECT_TRUE(has_line(*script, "#SBATCH --gpus-per-node=4"));
    EXPECT_FALSE(contains(*script, "--gpus-per-task"));
  }
  placed.one_gpu_per_task = true;
  const auto confined = sbatch_script(plan(4, {stage(0, 3), stage(3, 6)}), tiny(), placed);
  ASSERT_TRUE(confined.has_value());
  EXPECT_TRUE(contains(*confined,
                       "  --gpus-per-task=1                    # each rank sees its own GPU, as the site file says\n"));
}

TEST_F(SbatchScript, AsksForOneGpuPerRank) {
  const auto script = sbatch_script(plan(4, {stage(0, 3), stage(3, 6)}), tiny(), request(4));
  ASSERT_TRUE(script.has_value()) << message_of(script);
  for (const char* line : {"#SBATCH --nodes=2", "#SBATCH --ntasks=8", "#SBATCH --ntasks-per-node=4",
                           "#SBATCH --gpus-per-node=4", "#SBATCH --signal=USR2@60", "set -euo pipefail",
                           "cd -- /scratch/run", "#SBATCH --output=/scratch/run/slurm-%j.out"})
    EXPECT_TRUE(has_line(*script, line)) << line << "\n" << *script;
  EXPECT_TRUE(contains(*script, "--gpus-per-task=1"));
  EXPECT_TRUE(contains(*script, "--kill-on-bad-exit=1"));
  EXPECT_TRUE(contains(*script, "--mpi=pmix"));
  EXPECT_FALSE(contains(*script, "--hint=nomultithread"));
  EXPECT_FALSE(contains(*script, "--partition"));
}

TEST_F(SbatchScript, AsksForOneCorePerRankOfACpuPlan) {
  SbatchRequest cpu = request(64);
  cpu.nodes[0].device_kind = DeviceKind::cpu;
  cpu.nodes[0].memory_per_cpu = Bytes(300.5 * 1048576);
  const auto script = sbatch_script(plan(2, {stage(0, 3, "cpu"), stage(3, 6, "cpu")}), tiny(), cpu);
  ASSERT_TRUE(script.has_value()) << message_of(script);
  for (const char* line :
       {"#SBATCH --nodes=1", "#SBATCH --ntasks=4", "#SBATCH --cpus-per-task=1", "#SBATCH --hint=nomultithread",
        "#SBATCH --mem-per-cpu=301M", "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"})
    EXPECT_TRUE(has_line(*script, line)) << line << "\n" << *script;
  EXPECT_FALSE(contains(*script, "gpus"));
}

TEST_F(SbatchScript, QuotesEveryWordOfTheUser) {
  SbatchRequest nasty = request(4);
  nasty.run_directory = "/scratch/it's $(id)";
  nasty.plan_path = "/scratch/it's $(id)/plan.toml";
  nasty.data = "/data/`id` x";
  nasty.run_file = "/r;un.h5";
  nasty.program = "/opt/my tools/sailor-train";
  nasty.models_folder = "/m\"odels";
  nasty.environment = {{"GREETING", "$HOME\nrm -rf /"}};
  nasty.extra_arguments = {"--note=a $b"};
  nasty.extra_options = {"--comment=a $(id) b", "--exclusive"};
  const auto script = sbatch_script(plan(2, {stage(0, 6)}), tiny(), nasty);
  ASSERT_TRUE(script.has_value()) << message_of(script);
  for (const char* part :
       {"cd -- '/scratch/it'\\''s $(id)'\n", "#SBATCH --output='/scratch/it'\\''s $(id)/slurm-%j.out'\n",
        "--data '/data/`id` x'\n", "--run-file '/r;un.h5'\n", "  '/opt/my tools/sailor-train'\n",
        "--models '/m\"odels'\n", "export GREETING='$HOME\nrm -rf /'\n", "#SBATCH --comment='a $(id) b'\n",
        "#SBATCH --exclusive\n", "  '--note=a $b'\n"})
    EXPECT_TRUE(contains(*script, part)) << part << "\n" << *script;
  const auto syntax = run_command({.arguments = {"bash", "-n"}, .input = *script, .deadline = Seconds(20)});
  ASSERT_TRUE(syntax.has_value());
  EXPECT_TRUE(syntax->succeeded()) << syntax->errors;
}

TEST_F(SbatchScript, EscapesPercentSignsInTheNameOfTheLog) {
  SbatchRequest percent = request(4);
  percent.run_directory = "/scratch/50%j";
  const auto script = sbatch_script(plan(1, {stage(0, 6)}), tiny(), percent);
  ASSERT_TRUE(script.has_value()) << message_of(script);
  EXPECT_TRUE(has_line(*script, "#SBATCH --output=/scratch/50%%j/slurm-%j.out"));
}

/// "2 x 4" for each component, in plan order marked so.
std::string layout_of(const Plan& plan, const std::vector<int>& devices_per_node) {
  const auto layout = lay_out_job(plan, devices_per_node);
  if (!layout) return layout.error().message();
  std::string text = layout->in_plan_order ? "in order:" : "to be placed:";
  for (const JobComponent& component : layout->components)
    text += fmt::format(" {}: {} x {}{}", component.kind, component.nodes, component.tasks_per_node,
                        component.packed ? fmt::format(" packed {}", component.tasks) : "");
  return text;
}

TEST_F(SbatchScript, FillsNodesOneAfterTheOtherWhenRanksDoNotDivide) {
  EXPECT_EQ(layout_of(plan(1, {stage(0, 2), stage(2, 4), stage(4, 5), stage(5, 6), stage(6, 7)}), {4}),
            "in order: 0: 2 x 4 packed 5");
  const auto script = sbatch_script(plan(5, {stage(0, 6)}), tiny(), request(4));
  ASSERT_TRUE(script.has_value());
  EXPECT_TRUE(contains(*script, "  --distribution=plane=4 "));
  EXPECT_TRUE(has_line(*script, "unset SLURM_NTASKS_PER_NODE"));
}

TEST_F(SbatchScript, KeepsTensorParallelGroupsOnOneNode) {
  // Groups of 3 on nodes of 4: one per node, the fourth device stays free.
  EXPECT_EQ(layout_of(plan(3, {stage(0, 6, "GH200-96", 3)}), {4}), "in order: 0: 3 x 3");
  // Groups of 2, 4, 2, 4: both of 2 fill the first node, though the ranks between them are elsewhere.
  EXPECT_EQ(layout_of(plan(2, {stage(0, 3, "GH200-96", 2), stage(3, 6, "GH200-96", 4)}), {4}),
            "to be placed: 0: 3 x 4");
  // Groups of 2 and 4: the second does not fit beside the first. Fuller nodes come first.
  EXPECT_EQ(layout_of(plan(1, {stage(0, 3, "GH200-96", 2), stage(3, 6, "GH200-96", 4)}), {4}),
            "to be placed: 0: 1 x 4 0: 1 x 2");
  EXPECT_EQ(layout_of(plan(1, {stage(0, 6, "GH200-96", 8)}), {4}).find("tensor_parallel 8 needs more"), 0U);
}

TEST_F(SbatchScript, CountsTheRanksThatDivideSequences) {
  Plan divided = plan(2, {stage(0, 6)});
  divided.context_parallel = 4;
  EXPECT_EQ(layout_of(divided, {4}), "in order: 0: 2 x 4");
  EXPECT_EQ(layout_of(divided, {8}), "in order: 0: 1 x 8");
  divided.context_parallel = 8;  // a stage on two nodes
  EXPECT_EQ(layout_of(divided, {4}), "in order: 0: 4 x 4");
}

TEST_F(SbatchScript, MakesAComponentOfEachKindOfNode) {
  Plan zones = plan(2, {stage(0, 3), stage(3, 6)});
  zones.pipelines[0].stages[1].zone = "east";
  EXPECT_EQ(layout_of(zones, {4, 4}), "to be placed: 0: 1 x 2 1: 1 x 2");
  EXPECT_EQ(layout_of(plan(3, {stage(0, 3), stage(3, 6, "A100-40", 2)}), {4, 4}),
            "to be placed: 0: 1 x 3 1: 1 x 4 1: 1 x 2");

  SbatchRequest mixed = request(4);
  mixed.nodes.push_back(mixed.nodes[0]);
  mixed.nodes[0].partition = "normal";
  mixed.nodes[1].partition = "a100";
  mixed.placer = Placer::launcher;
  const Plan two = plan(2, {stage(0, 3), stage(3, 6, "A100-40")});
  const auto script = sbatch_script(two, tiny(), mixed);
  ASSERT_TRUE(script.has_value()) << message_of(script);
  for (const char* line : {"#SBATCH hetjob", "#SBATCH --partition=normal", "#SBATCH --partition=a100",
                           "  \"${launch[@]}\" --het-group=0,1 --cpus-per-task=1 \"${train[@]}\""})
    EXPECT_TRUE(has_line(*script, line)) << line << "\n" << *script;
  EXPECT_TRUE(contains(*script, "  sailor-launch "));
  EXPECT_TRUE(contains(*script, "  --plan /scratch/run/plan.toml\n  --\n"));

  mixed.nodes[1].cpus_per_rank = 16;
  const auto different = sbatch_script(two, tiny(), mixed);
  ASSERT_TRUE(different.has_value());
  EXPECT_TRUE(contains(*different,
                       "\"${launch[@]}\" --het-group=0 --cpus-per-task=1 \"${train[@]}\" : \\\n"
                       "    \"${launch[@]:1}\" --het-group=1 --cpus-per-task=16 \"${train[@]}\"\n"))
      << *different;

  mixed.placer = Placer::slurm;
  EXPECT_EQ(message_of(sbatch_script(two, tiny(), mixed)),
            "the plan's ranks lie on several kinds of nodes: srun alone cannot place them; let sailor-launch or the "
            "plugin place them (--placer)");
}

TEST_F(SbatchScript, SaysWhoChoseTheMemory) {
  SbatchRequest cpu = request(64);
  cpu.nodes[0].device_kind = DeviceKind::cpu;
  cpu.nodes[0].memory_per_cpu = Bytes(300.0 * 1048576);
  const auto comment = [&](MemoryReason reason) {
    cpu.nodes[0].memory_reason = reason;
    const auto script = sbatch_script(plan(2, {stage(0, 6, "cpu")}), tiny(), cpu);
    if (!script) return script.error().message();
    const std::size_t line = script->find("#SBATCH --mem-per-cpu=300M");
    const std::size_t start = script->rfind('\n', line - 2) + 1;
    return script->substr(start, line - start);
  };
  EXPECT_EQ(comment(MemoryReason::given), "# As given on the command line of sailor-submit (--memory-per-cpu)\n");
  EXPECT_EQ(comment(MemoryReason::predicted),
            "# Enough for the predicted peak of a rank; the partition's default may be less\n");
  EXPECT_EQ(comment(MemoryReason::all_there),
            "# All that the nodes have: for the predicted peak of a rank and some to spare they have too little\n");
  SbatchRequest gpu = request(4);
  gpu.nodes[0].memory_per_rank = 84.0 * gib;
  EXPECT_TRUE(has_line(sbatch_script(plan(4, {stage(0, 6)}), tiny(), gpu).value(), "#SBATCH --mem=344064M"));
  gpu.nodes[0].memory_per_rank.reset();
  gpu.nodes[0].memory_per_node = Bytes(0);
  EXPECT_TRUE(has_line(sbatch_script(plan(4, {stage(0, 6)}), tiny(), gpu).value(), "#SBATCH --mem=0"));
  gpu.nodes[0].memory_per_node = 450.0 * gib;
  EXPECT_TRUE(has_line(sbatch_script(plan(4, {stage(0, 6)}), tiny(), gpu).value(), "#SBATCH --mem=460800M"));
}

TEST_F(SbatchScript, RunsEveryComponentInTheReservation) {
  SbatchRequest mixed = request(4);
  mixed.nodes.push_back(mixed.nodes[0]);
  mixed.placer = Placer::launcher;
  mixed.reservation = "course";
  const auto script = sbatch_script(plan(2, {stage(0, 3), stage(3, 6, "A100-40")}), tiny(), mixed);
  ASSERT_TRUE(script.has_value()) << message_of(script);
  const std::size_t first = script->find("#SBATCH --reservation=course\n");
  EXPECT_LT(first, script->find("#SBATCH hetjob"));
  EXPECT_GT(script->find("#SBATCH --reservation=course\n", first + 1), script->find("#SBATCH hetjob"));
  EXPECT_NE(script->find("#SBATCH --reservation=course\n", first + 1), std::string::npos);
}

TEST_F(SbatchScript, NamesThePlanToThePlugin) {
  SbatchRequest plugin = request(4);
  plugin.placer = Placer::plugin;
  const auto script = sbatch_script(plan(2, {stage(0, 6)}), tiny(), plugin);
  ASSERT_TRUE(script.has_value());
  EXPECT_TRUE(has_line(*script, "#SBATCH --sailor-plan=/scratch/run/plan.toml"));
  EXPECT_FALSE(contains(*script, "sailor-launch"));
}

TEST_F(SbatchScript, StartsTheRanksOnceMoreWhenMpiDidNotStart) {
  SbatchRequest job = request(4);
  const std::string condition = "if ((status == 69)); then";
  const auto script = sbatch_script(plan(1, {stage(0, 6)}), tiny(), job);
  ASSERT_TRUE(script.has_value());
  EXPECT_TRUE(has_line(*script, condition)) << *script;
  EXPECT_TRUE(has_line(*script, "export SLURM_PMIX_FENCE=\"${SLURM_PMIX_FENCE:-ring}\"")) << *script;
  job.runs_sailor_train = false;
  job.mpi = "cray_shasta";
  const auto other = sbatch_script(plan(1, {stage(0, 6)}), tiny(), job);
  ASSERT_TRUE(other.has_value());
  EXPECT_FALSE(contains(*other, condition)) << *other;
  EXPECT_FALSE(contains(*other, "PMIX")) << *other;
}

TEST_F(SbatchScript, GoesOnAfterItWasStopped) {
  SbatchRequest job = request(4);
  job.continuation = Continuation::requeue;
  EXPECT_EQ(message_of(sbatch_script(plan(1, {stage(0, 6)}), tiny(), job)),
            "a job without checkpoints cannot go on after it was stopped; keep checkpoints with --checkpoints FOLDER");
  job.checkpoints = "/scratch/it's";
  const auto requeued = sbatch_script(plan(1, {stage(0, 6)}), tiny(), job);
  ASSERT_TRUE(requeued.has_value());
  for (const char* line : {"#SBATCH --requeue", "#SBATCH --signal=USR2@180", "  scontrol requeue \"$SLURM_JOB_ID\"",
                           "  \"${launch[@]}\" \"${train[@]}\"", "start || status=$?", "exit \"$status\""})
    EXPECT_TRUE(has_line(*requeued, line)) << line << "\n" << *requeued;
  EXPECT_TRUE(contains(*requeued, "  --checkpoints '/scratch/it'\\''s'"));
  job.continuation = Continuation::resubmit;
  const auto again = sbatch_script(plan(1, {stage(0, 6)}), tiny(), job);
  ASSERT_TRUE(again.has_value());
  for (const char* line :
       {"#SBATCH --no-requeue", "hand_in() { submit --parsable --dependency=singleton | tail --lines=1; }",
        "  sbatch ${nodes:+\"--exclude=$nodes\"} \"$@\" /scratch/run/job.sbatch", "excluded() { echo \"$left_out\"; }",
        "if ((start_number <= 3)); then", "  if [[ -n $successor ]]; then scancel \"$successor\"; fi"})
    EXPECT_TRUE(has_line(*again, line)) << line << "\n" << *again;
  // It is handed in before anything else can end the job.
  EXPECT_LT(again->find("successor=$(hand_in)"), again->find("\nlaunch=("));
  // Nodes that the user keeps the job from stay out.
  job.extra_options = {"--exclude=gh7,gh[9-10]"};
  job.retries = 0;
  const auto without = sbatch_script(plan(1, {stage(0, 6)}), tiny(), job);
  ASSERT_TRUE(without.has_value());
  EXPECT_TRUE(has_line(*without, "excluded() { echo 'gh7,gh[9-10]'\"${left_out:+,$left_out}\"; }"));
  EXPECT_TRUE(has_line(*without, "if ((start_number <= 0)); then"));
}

TEST_F(SbatchScript, NamesComponentsThatWaitForTheSameJobByThemselves) {
  // With one name each would wait for the others of its own job (--dependency=singleton).
  SbatchRequest mixed = request(4);
  mixed.nodes.push_back(mixed.nodes[0]);
  mixed.placer = Placer::launcher;
  mixed.job_name = "night-1a2b";
  mixed.checkpoints = "/scratch/kept";
  mixed.continuation = Continuation::resubmit;
  const auto script = sbatch_script(plan(2, {stage(0, 3), stage(3, 6, "A100-40")}), tiny(), mixed);
  ASSERT_TRUE(script.has_value()) << message_of(script);
  const std::size_t component = script->find("#SBATCH hetjob");
  EXPECT_LT(script->find("#SBATCH --job-name=night-1a2b\n"), component);
  EXPECT_GT(script->find("#SBATCH --job-name=night-1a2b.1\n"), component);
  EXPECT_NE(script->find("#SBATCH --job-name=night-1a2b.1\n"), std::string::npos);
  mixed.continuation = Continuation::requeue;
  EXPECT_FALSE(
      contains(sbatch_script(plan(2, {stage(0, 3), stage(3, 6, "A100-40")}), tiny(), mixed).value(), "night-1a2b.1"));
}

TEST_F(SbatchScript, ChecksTheNodesBeforeTheyTrain) {
  SbatchRequest job = request(4);
  job.placer = Placer::plugin;
  job.spare_nodes = 2;
  EXPECT_EQ(message_of(sbatch_script(plan(2, {stage(0, 3), stage(3, 6)}), tiny(), job)),
            "spare nodes are for those that a check finds unfit; check them with --check");
  job.check_nodes = true;
  job.checker_arguments = {"--site=it's"};
  const auto script = sbatch_script(plan(3, {stage(0, 3), stage(3, 6)}), tiny(), job);  // 4 ranks, then 2
  ASSERT_TRUE(script.has_value()) << message_of(script);
  for (const char* line : {"#SBATCH --nodes=4", "#SBATCH --ntasks=16", "#SBATCH --ntasks-per-node=4", "  --nodes=2",
                           "  --ntasks=6", "  --nodes=4", "  --ntasks=16", "  '--site=it'\\''s'",
                           "check_and_start || status=$?", "  check_nodes || return $?",
                           "  if ((${#nodes[@]} > 2)); then", "launch+=(--sailor-plan=/scratch/run/plan.toml)",
                           "  \"${check_launch[@]}\" --kill-on-bad-exit=0 \"${check[@]}\""})
    EXPECT_TRUE(has_line(*script, line)) << line << "\n" << *script;
  EXPECT_FALSE(contains(*script, "#SBATCH --sailor-plan"));  // the check has other tasks
  job.spare_nodes = 0;
  const auto none = sbatch_script(plan(3, {stage(0, 3), stage(3, 6)}), tiny(), job);
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(has_line(*none, "  \"${launch[@]}\" --kill-on-bad-exit=0 \"${check[@]}\"")) << *none;
  EXPECT_FALSE(contains(*none, "--spare-nodes"));
}

TEST_F(SbatchScript, TellsTheJobToStopInTime) {
  SbatchRequest job = request(4);
  job.stop_lead = Seconds(600);
  job.stop_lead_reason = "a checkpoint takes long";
  const auto script = sbatch_script(plan(1, {stage(0, 6)}), tiny(), job);
  ASSERT_TRUE(script.has_value());
  EXPECT_TRUE(contains(*script, "# 600 s before the time limit (a checkpoint takes long) the ranks get SIGUSR2"));
  EXPECT_TRUE(has_line(*script, "#SBATCH --signal=USR2@600"));
  job.time_limit = Seconds(600);
  EXPECT_EQ(
      message_of(sbatch_script(plan(1, {stage(0, 6)}), tiny(), job)),
      "the signal would come 600 s before the end of a job of 600 s: it would never train; use a larger --time, or "
      "a smaller --stop-lead");
  job.stop_lead = Seconds(70000);
  EXPECT_EQ(message_of(sbatch_script(plan(1, {stage(0, 6)}), tiny(), job)),
            "a signal 70000 s before the time limit is impossible; Slurm takes 1 to 65535 s");
}

TEST_F(SbatchScript, MakesAnArrayOfSeveralPlans) {
  SbatchRequest sweep = request(4);
  sweep.placer = Placer::launcher;
  sweep.plan_path = "plan.toml";
  sweep.array = {{.directory = "/scratch/run/a b", .plan = "1 pipeline of 1 stage"},
                 {.directory = "/scratch/run/c", .plan = "2 pipelines\nrm -rf /"}};
  sweep.checkpoints = "kept";
  sweep.continuation = Continuation::resubmit;
  const auto script = sbatch_script(plan(1, {stage(0, 6)}), tiny(), sweep);
  ASSERT_TRUE(script.has_value()) << message_of(script);
  for (const char* line :
       {"#SBATCH --array=0-1", "#SBATCH --output=/scratch/run/slurm-%A_%a.out", "  '/scratch/run/a b'",
        "cd -- \"${runs[SLURM_ARRAY_TASK_ID]}\"", "  --plan plan.toml", "#   0 a b: 1 pipeline of 1 stage",
        "#   1 c: 2 pipelines rm -rf /",
        "hand_in() { submit --parsable --dependency=\"afterany:$SLURM_JOB_ID\" | tail --lines=1; }",
        "  sbatch --array=\"$SLURM_ARRAY_TASK_ID\" ${nodes:+\"--exclude=$nodes\"} \"$@\" /scratch/run/job.sbatch"})
    EXPECT_TRUE(has_line(*script, line)) << line << "\n" << *script;
  sweep.checkpoints = "/kept";
  EXPECT_EQ(message_of(sbatch_script(plan(1, {stage(0, 6)}), tiny(), sweep)),
            "the tasks of an array would all write into '/kept'; name a folder relative to the run directories");
  sweep.placer = Placer::plugin;
  EXPECT_EQ(message_of(sbatch_script(plan(1, {stage(0, 6)}), tiny(), sweep)),
            "the plugin takes one plan for a job, and an array has several; let sailor-launch place the ranks");
}

TEST_F(SbatchScript, SaysWhatTheSiteWants) {
  SbatchRequest site = request(4);
  site.exclusive = true;
  site.constraint = "thp_never&nvidia_vboost_enabled";
  site.srun_options = {"--uenv=prgenv-gnu/24.11:v1", "--network=disable_rdzv_get", "--x=$(id)"};
  site.nodes[0].memory_nodes = {0, 1, 2, 3};
  const auto script = sbatch_script(plan(1, {stage(0, 6)}), tiny(), site);
  ASSERT_TRUE(script.has_value());
  for (const char* line : {"#SBATCH --exclusive", "#SBATCH --constraint='thp_never&nvidia_vboost_enabled'",
                           "  --uenv=prgenv-gnu/24.11:v1", "  '--x=$(id)'"})
    EXPECT_TRUE(has_line(*script, line)) << line << "\n" << *script;
  EXPECT_TRUE(contains(*script, "  --memory-nodes '0,1,2,3' "));
}

TEST_F(SbatchScript, RefusesAPlanForAnotherModel) {
  EXPECT_EQ(message_of(sbatch_script(plan(1, {stage(0, 5)}), tiny(), request(4))),
            "pipeline 0 holds layers [0, 5) but model tiny-gpt has 6 layers; is the plan for another model, or is a "
            "stage missing?");
}

TEST_F(SbatchScript, RefusesImpossibleRequests) {
  const auto refused = [](auto change) {
    SbatchRequest request = SbatchScript::request(4);
    change(request);
    return message_of(sbatch_script(plan(1, {stage(0, 6)}), tiny(), request));
  };
  EXPECT_EQ(refused([](SbatchRequest& r) { r.job_name = "a\nb"; }).find("job name "), 0U);
  EXPECT_EQ(refused([](SbatchRequest& r) { r.nodes[0].partition = "x;y"; }).find("partition 'x;y' has characters"), 0U);
  EXPECT_EQ(refused([](SbatchRequest& r) { r.account = "x y"; }).find("account 'x y' has characters"), 0U);
  EXPECT_EQ(refused([](SbatchRequest& r) { r.reservation = "x,y"; }).find("'x,y' are several reservations"), 0U);
  EXPECT_EQ(
      refused([](SbatchRequest& r) { r.run_directory = "/a\n#SBATCH --uid=0"; }),
      "run directory '/a #SBATCH --uid=0' holds a newline, a tab or another control character, which cannot stand "
      "in the name of the job's log; choose another one with --run-directory DIR");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.mpi = "x y"; }).find("MPI type 'x y' has characters"), 0U);
  EXPECT_EQ(refused([](SbatchRequest& r) { r.nodes[0].gres_type = "x y"; }).find("GPU type 'x y' has characters"), 0U);
  EXPECT_EQ(refused([](SbatchRequest& r) { r.nodes[0].devices_per_node = 0; }), "0 devices per node are too few");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.iterations = 0; }), "0 iterations are nothing to run");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.run_directory = "run"; }),
            "run directory 'run' is not absolute; the job starts in another directory");
  EXPECT_EQ(
      refused([](SbatchRequest& r) { r.run_directory = "/a\\b"; }),
      "path '/a\\b' holds a backslash; Slurm gives it a meaning of its own in file names; choose another directory");
  EXPECT_EQ(
      refused([](SbatchRequest& r) { r.log_path = "/a\n#SBATCH --uid=0"; }),
      "output holds a control character, which an #SBATCH line cannot hold; use a value without newlines and tabs");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.extra_options = {"--ntasks=5"}; }),
            "--ntasks is decided by the plan; leave it out, or make another plan");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.extra_options = {"--arr=0-2"}; }),
            "--arr is decided by the plan; leave it out, or make another plan");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.extra_options = {"qos=high"}; }),
            "'qos=high' is no option of sbatch; write --NAME=VALUE");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.extra_options = {"--a --b"}; }),
            "'--a --b' is no option of sbatch; write --NAME=VALUE, one option each");
  EXPECT_EQ(
      refused([](SbatchRequest& r) { r.extra_options = {"--comment=a\nrm"}; }),
      "comment holds a control character, which an #SBATCH line cannot hold; use a value without newlines and tabs");
  EXPECT_EQ(refused([](SbatchRequest& r) {
              r.environment = {{"A B", "x"}};
            }),
            "'A B' is no name of an environment variable");
  EXPECT_EQ(refused([](SbatchRequest& r) { r.learning_rate = -1; }), "learning rate -1 is below 0");
}

TEST_F(SbatchScript, DoesNotLetAPlansWordsOutOfItsComment) {
  const auto script = sbatch_script(plan(1, {stage(0, 6, "x\n#SBATCH --uid=0\nrm -rf /")}), tiny(), request(4));
  ASSERT_TRUE(script.has_value());
  EXPECT_FALSE(has_line(*script, "#SBATCH --uid=0"));
  EXPECT_FALSE(contains(*script, "\nrm -rf /"));
}

// ---- jobs

constexpr const char* scontrol_line =
    "JobId=12 JobName=sailor-tiny UserId=root(0) JobState=%STATE% Reason=NonZeroExitCode Dependency=(null) Requeue=1 "
    "ExitCode=%EXIT% "
    "AllocNode:Sid=login:1 ReqNodeList=(null) ExcNodeList=(null) NodeList=gh[1-2] BatchHost=gh1 WorkDir=/tmp "
    "StdErr=/tmp/my run/slurm-12.out "
    "StdIn=/dev/null StdOut=/tmp/my run/slurm-12.out Power= TresPerNode=gres:gpu:4 ";

std::string scontrol_says(std::string state, std::string exit) {
  std::string line = scontrol_line;
  line.replace(line.find("%STATE%"), 7, state);
  line.replace(line.find("%EXIT%"), 6, exit);
  return line;
}

TEST(ParseScontrolJob, ReadsStateReasonExitCodeNodesAndLog) {
  const auto status = parse_scontrol_job(scontrol_says("FAILED", "2:15"));
  ASSERT_TRUE(status.has_value()) << message_of(status);
  EXPECT_EQ(status->phase, JobPhase::failed);
  EXPECT_TRUE(status->ended());
  EXPECT_EQ(status->exit_code, 2);
  EXPECT_EQ(status->exit_signal, 15);
  EXPECT_EQ(status->nodes, "gh[1-2]");
  EXPECT_EQ(status->log, "/tmp/my run/slurm-12.out");
  EXPECT_EQ(status->describe(), "FAILED, exit code 2, signal 15 (NonZeroExitCode)");
}

TEST(ParseScontrolJob, ReadsTheLogBehindTheWordsOfSubmissionInSlurm2605) {
  // As 26.05.5 writes it, where sbatch was called with --wrap "cat StdOut=x JobState=y".
  const auto status = parse_scontrol_job(
      "JobId=3 JobName=wrap JobState=RUNNING Reason=None Dependency=(null) ExitCode=0:0 NodeList=gh[1-2] BatchHost=gh1 "
      "OverSubscribe=NO Exclusive=NO LicensesAlloc=(null) Network=(null) Command=(null) SubmitLine=sbatch --wrap cat "
      "StdOut=x JobState=y WorkDir=/srv StdErr= StdIn=/dev/null StdOut=/srv/slurm-3.out TresPerNode=gres/gpu:gh200:2");
  ASSERT_TRUE(status.has_value()) << message_of(status);
  EXPECT_EQ(status->phase, JobPhase::running);
  EXPECT_EQ(status->log, "/srv/slurm-3.out");
}

TEST(MostArrayTasks, IsTheSmallerOfTwoLimits) {
  EXPECT_EQ(parse_most_array_tasks("MaxArraySize            = 1001\nMaxArraySizes = 1\n"), 1001U);
  EXPECT_EQ(parse_most_array_tasks("MaxArraySize            = 1001\nSchedulerParameters     = "
                                   "defer,max_array_tasks=30,bf_interval=1\n"),
            30U);
  EXPECT_EQ(parse_most_array_tasks("SchedulerParameters     = (null)\n"), std::nullopt);
}

TEST(OverridingVariables, AreThoseOfWhatTheScriptDecides) {
  SbatchRequest request;
  request.nodes = {{.device_kind = DeviceKind::gpu, .devices_per_node = 4}};
  const std::map<std::string, std::string> environment{
      {"SBATCH_PARTITION", "x"},    {"SBATCH_TIMELIMIT", "1"}, {"SBATCH_ACCOUNT", "x"}, {"SBATCH_QOS", "x"},
      {"SBATCH_MEM_PER_NODE", "1"}, {"SBATCH_COMMENT", "x"},   {"PATH", "/bin"},        {"SBATCH_CONSTRAINT", "x"}};
  using Names = std::vector<std::string>;
  EXPECT_EQ(overriding_variables(request, environment), (Names{"SBATCH_PARTITION", "SBATCH_TIMELIMIT"}));
  request.account = "ml";
  request.constraint = "nvme";
  request.extra_options = {"--qos=high"};
  request.nodes[0].memory_per_cpu = Bytes(1e9);
  EXPECT_EQ(overriding_variables(request, environment),
            (Names{"SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_CONSTRAINT",
                   "SBATCH_MEM_PER_NODE"}));
}

TEST(ParseScontrolJob, KnowsEveryStateOfSlurm) {
  const std::vector<std::pair<std::string, JobPhase>> states{
      {"PENDING", JobPhase::pending},    {"REQUEUED", JobPhase::pending},  {"RUNNING", JobPhase::running},
      {"COMPLETING", JobPhase::running}, {"SUSPENDED", JobPhase::running}, {"COMPLETED", JobPhase::succeeded},
      {"TIMEOUT", JobPhase::failed},     {"NODE_FAIL", JobPhase::failed},  {"OUT_OF_MEMORY", JobPhase::failed},
      {"CANCELLED", JobPhase::failed},   {"PREEMPTED", JobPhase::failed},  {"LAUNCH_FAILED", JobPhase::failed},
      {"EXPEDITING", JobPhase::pending}};
  for (const auto& [state, phase] : states) {
    const auto status = parse_scontrol_job(scontrol_says(state, "0:0"));
    ASSERT_TRUE(status.has_value()) << state;
    EXPECT_EQ(status->phase, phase) << state;
  }
  EXPECT_EQ(message_of(parse_scontrol_job(scontrol_says("DANCING", "0:0"))),
            "Slurm says the job is 'DANCING', which is no state known here");
  EXPECT_FALSE(parse_scontrol_job("").has_value());
  EXPECT_FALSE(parse_scontrol_job("No jobs in the system").has_value());
}

TEST(ParseSacctJob, ReadsACancelledJob) {
  const auto status = parse_sacct_job("CANCELLED by 1000|0:15|gh1");
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->phase, JobPhase::failed);
  EXPECT_EQ(status->exit_signal, 15);
  EXPECT_FALSE(parse_sacct_job("").has_value());
}

TEST(LastLines, AreTheLastOnes) {
  const auto path = std::filesystem::temp_directory_path() / ("sailor_log_" + std::to_string(::getpid()));
  {
    std::ofstream log(path);
    for (int i = 0; i < 5000; ++i) log << "line " << i << "\n";
    log << "no newline";
  }
  EXPECT_EQ(last_lines(path, 2), (std::vector<std::string>{"line 4999", "no newline"}));
  EXPECT_EQ(last_lines(path, 100).size(), 100U);
  std::filesystem::remove(path);
  EXPECT_TRUE(last_lines(path, 2).empty());
}

}  // namespace
}  // namespace sailor::slurm::slurm_test
