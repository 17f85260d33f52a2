// Bugs found by attacking the programs' inputs and surroundings: each crashed, lost data or answered wrongly once.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "core/files.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "plan/plan.hpp"
#include "profile/store.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;

std::string cluster_of(int nodes, int devices) {
  return fmt::format(
      "schema_version = 1\nname = \"c\"\n[[partitions]]\nname = \"normal\"\n[[nodes]]\ncount = {}\ngpu = \"cpu\"\n"
      "gpus_per_node = {}\nmemory_per_node_bytes = 1e12\npartitions = [\"normal\"]\n",
      nodes, devices);
}

std::string plan_text(std::string_view gpu, std::int64_t global_batch, std::int64_t micro_batch,
                      std::string_view counts) {
  return fmt::format(
      "schema_version = 1\nmicro_batch = {}\nschedule = \"1f1b\"\n[job]\nmodel = \"tiny-gpt\"\nglobal_batch = {}\n"
      "sequence_length = 64\nprecision = \"fp32\"\noptimizer = \"adamw\"\n[[pipelines]]\n{}\n[[pipelines.stages]]\n"
      "layers = [0, 6]\ngpu = \"{}\"\n",
      micro_batch, global_batch, counts, gpu);
}

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sailor_hostile_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::current_path(folder_);
    // Containers run tests as root.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    write("cluster.toml", cluster_of(4, 1));
    ASSERT_TRUE(save_profile(testing::round_numbers_profile(), folder_ / "store.h5").has_value());
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(folder_);
  }
  void write(const std::string& name, std::string_view text) const {
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }
  /// A shell command; programs are found in $bin.
  static ProcessOutcome shell(const std::string& command) {
    auto outcome = run_command(
        {.arguments = {"bash", "-c", "bin=" SAILOR_BIN_DIR "; " + command}, .input = {}, .deadline = Seconds(60)});
    EXPECT_TRUE(outcome.has_value());
    return outcome.value_or(ProcessOutcome{});
  }
  static std::string plan(const std::string& more) {
    return "$bin/sailor-plan --model tiny-gpt --global-batch 8 --sequence-length 64 --profile store.h5 " + more;
  }
  static bool have(const std::string& program) { return fs::exists(SAILOR_BIN_DIR "/" + program); }
  void make_corpus() const {
    write("text", std::string(5000, 'a'));
    ASSERT_EQ(shell("$bin/sailor-data bytes -o corpus text").exit_status, 0);
  }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  fs::path folder_;
};

// fmt::print threw while an exception's own message was printed.
TEST_F(Hostile, ClosedOrFullStderrIsNoCrash) {
  EXPECT_EQ(shell(plan("--bogus 2>&-")).exit_status, 2);
  EXPECT_EQ(shell(plan("--bogus 2>/dev/full")).exit_status, 2);
  EXPECT_EQ(shell(plan("--cluster cluster.toml --partition none 2>&-")).exit_status, 1);
  EXPECT_EQ(shell(plan("--cluster cluster.toml -o plan.toml <&- >&- 2>&-")).exit_status, 1);
  EXPECT_TRUE(load_plan("plan.toml").has_value());
}

// toml++ limits the depth of values, not of keys, and destroys tables recursively.
TEST_F(Hostile, AKeyOfManyPartsIsRefusedBeforeItOverflowsTheStack) {
  std::string key;
  for (int i = 0; i < 200000; ++i) key += "a.";
  for (const std::string& text : {"\n" + key + "b = 1\n", "\n[" + key + "b]\n", "\nx = {" + key + "b = 1}\n"}) {
    const auto document = TomlDocument::parse(text, "f.toml");
    ASSERT_FALSE(document.has_value());
    EXPECT_EQ(document.error().message(), "f.toml:2: a key has more than 32 parts");
  }
  const std::string dots(100, '.');
  EXPECT_TRUE(TomlDocument::parse("a = \"" + dots + "\\\"" + dots + "\" # " + dots + "\nb = '" + dots +
                                      "'\nc = \"\"\"\n" + dots + "\"\n" + dots + "\"\"\"\nd = [1.5, 2.5]\n",
                                  "f.toml")
                  .has_value());
  write("deep.toml", key + "b = 1\n");
  EXPECT_EQ(shell(plan("--cluster deep.toml")).exit_status, 1);
}

// std::stod throws for a number that is not normalised.
TEST_F(Hostile, ATinyNumberIsANumber) {
  EXPECT_EQ(shell(plan("--cluster cluster.toml --memory-margin 1e-320")).exit_status, 0);
  const auto outcome = shell(plan("--cluster cluster.toml --memory-margin 1e999"));
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_NE(outcome.errors.find("'1e999' is too large or too small for a number"), std::string::npos) << outcome.errors;
}

// As root, -o /dev/null replaced the device by a plan; a link was replaced by a file.
TEST_F(Hostile, DevicesArePreservedAndLinksAreFollowed) {
  ASSERT_EQ(::mkfifo("fifo", 0600), 0);
  const auto outcome = shell(plan("--cluster cluster.toml -o fifo"));
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.errors.find("cannot write 'fifo': it is a device, pipe or socket; name a file"), std::string::npos)
      << outcome.errors;
  EXPECT_TRUE(fs::is_fifo("fifo"));
  fs::create_directory("elsewhere");
  fs::create_symlink("elsewhere/real.toml", "link.toml");
  EXPECT_EQ(shell(plan("--cluster cluster.toml -o link.toml")).exit_status, 0);
  EXPECT_TRUE(fs::is_symlink("link.toml"));
  EXPECT_TRUE(load_plan("elsewhere/real.toml").has_value());
  fs::create_symlink("circle", "circle");
  EXPECT_NE(check_can_write("circle").error().what.find("Too many levels of symbolic links"), std::string::npos);
  EXPECT_NE(read_text_file("circle").error().what.find("Too many levels of symbolic links"), std::string::npos);
}

TEST_F(Hostile, LongFileNamesCanBeWritten) {
  const std::string name(255, 'n');
  EXPECT_TRUE(write_file_atomically(name, "x").has_value());
  EXPECT_EQ(read_text_file(name).value_or(""), "x");
}

TEST_F(Hostile, SignalsRemoveTheTemporaryFile) {
  const std::size_t before = files();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      (void)write_file_atomically("out", [&](const fs::path& temporary) -> Result<void> {
        const int file = ::open(temporary.c_str(), O_CREAT | O_WRONLY, 0600);
        ::raise(number);
        ::close(file);
        return {};
      });
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number);
    EXPECT_EQ(files(), before);
  }
}

TEST_F(Hostile, OfManyThatCreateAFileOneDoes) {
  int created = 0;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto done = create_file_atomically("one", std::to_string(i));
      ::_exit(!done ? 2 : *done ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    created += WEXITSTATUS(status);  // 1 from the one that created it
  }
  EXPECT_EQ(created, 1);
  EXPECT_EQ(read_text_file("one").value_or("").size(), 1U);
}

// The product of micro-batches and their size wrapped around 2^64 and met global_batch.
TEST_F(Hostile, BatchesThatDoNotFitIntoAnIntegerAreRefused) {
  const auto plan =
      parse_plan(plan_text("cpu", 1 << 23, 1 << 20, "count = 1048575\nmicro_batches = 16777216") +
                     "[[pipelines]]\nmicro_batches = 16777216\n[[pipelines.stages]]\nlayers = [0, 6]\ngpu = \"cpu\"\n",
                 "plan.toml");
  ASSERT_FALSE(plan.has_value());
  EXPECT_NE(plan.error().what.find("17592186044416 micro-batches of 1048576 are more than the 8388608 sequences"),
            std::string::npos)
      << plan.error().what;
}

// 2^20 nodes of 4096 devices were 0 devices, and the global batch was blamed.
TEST_F(Hostile, AHugeClusterIsNotEmpty) {
  write("huge.toml", cluster_of(1 << 20, 4096));
  const auto outcome = shell(plan("--cluster huge.toml --top 1"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.errors;
  EXPECT_NE(outcome.output.find(": 4294967296 cpu;"), std::string::npos) << outcome.output;
}

// The plan named the store's path as it was, which is no TOML: nobody could read it.
TEST_F(Hostile, APlanFromAPathThatIsNoUtf8CanBeRead) {
  EXPECT_EQ(valid_utf8("a\xff z\xc3\xa4\xe2\x82\xac\xed\xa0\x80\xc0\xaf\xf0\x9f"),
            "a\uFFFD z\u00e4\u20ac\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  fs::copy_file("store.h5", "st\xff.h5");
  ASSERT_EQ(shell("$bin/sailor-plan --model tiny-gpt --global-batch 8 --sequence-length 64 --cluster cluster.toml "
                  "--profile $'st\\xff.h5' -o plan.toml")
                .exit_status,
            0);
  const auto plan = load_plan("plan.toml");
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_EQ(plan->origin.profile_store, "st\uFFFD.h5");
}

TEST_F(Hostile, SubmitRefusesATrainOptionThatItSetsItself) {
  write("plan.toml", plan_text("cpu", 8, 1, "micro_batches = 8"));
  const auto outcome = shell(
      "$bin/sailor-submit plan.toml --data c --iterations 3 --devices-per-node 1 --dry-run "
      "--train-option=--iterations=9");
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_NE(outcome.errors.find("--train-option: sailor-submit itself sets --iterations"), std::string::npos)
      << outcome.errors;
}

TEST_F(Hostile, DataNeverReplacesItsOwnTexts) {
  if (!have("sailor-data")) GTEST_SKIP() << "built without the runtime";
  write("c.bin", "text");
  const auto outcome = shell("$bin/sailor-data bytes -o c c.bin");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.errors.find("'c.bin' is a text and would be replaced"), std::string::npos) << outcome.errors;
  EXPECT_EQ(read_text_file("c.bin").value_or(""), "text");
  EXPECT_EQ(shell("$bin/sailor-data bytes -o ./ c.bin").exit_status, 1);
  // A pipe without a writer held the program up for ever.
  ASSERT_EQ(::mkfifo("fifo", 0600), 0);
  const auto pipe = shell("timeout 20 $bin/sailor-data bytes -o d fifo");
  EXPECT_EQ(pipe.exit_status, 1);
  EXPECT_NE(pipe.errors.find("cannot read 'fifo': it is not a regular file"), std::string::npos) << pipe.errors;
  // An index that cannot be written is found before the tokens are.
  fs::create_directory("d.idx");
  EXPECT_EQ(shell("$bin/sailor-data bytes -o d c.bin").exit_status, 1);
  EXPECT_FALSE(fs::exists("d.bin"));
}

// SIGXFSZ ended the programs without a word.
TEST_F(Hostile, AFileOverTheLimitIsAnErrorThatNamesIt) {
  const std::size_t before = files();
  const auto planned = shell("ulimit -f 0; " + plan("--cluster cluster.toml -o plan.toml"));
  EXPECT_EQ(planned.exit_status, 1) << planned.errors;
  EXPECT_NE(planned.errors.find("cannot write 'plan.toml': File too large"), std::string::npos) << planned.errors;
  const auto stored = shell("ulimit -f 1; $bin/sailor-profile merge store.h5 -o merged.h5");
  EXPECT_EQ(stored.exit_status, 1) << stored.errors;
  EXPECT_NE(stored.errors.find("cannot write 'merged.h5': "), std::string::npos) << stored.errors;
  EXPECT_EQ(stored.errors.find(".tmp"), std::string::npos) << stored.errors;
  EXPECT_EQ(stored.errors.find("/proc"), std::string::npos) << stored.errors;
  EXPECT_EQ(files(), before);
}

// A file of the kernel that is a regular one by name and has something to read only now and then.
TEST_F(Hostile, ProgramsDoNotWaitForTheKernel) {
  const std::string refused = "'/proc/kmsg' is not a regular file but an answer of the kernel";
  fs::create_symlink("/proc/kmsg", "corpus.idx");
  fs::create_symlink("/proc/kmsg", "corpus.bin");
  write("plan.toml", plan_text("cpu", 1, 1, "micro_batches = 1"));
  for (const char* command :
       {"sailor-simulate /proc/kmsg", "sailor-profile show /proc/kmsg", "sailor-plan --config /proc/kmsg",
        "sailor-plan --model tiny-gpt --global-batch 8 --profile store.h5 --cluster /proc/kmsg",
        "sailor-launch --plan /proc/kmsg -- true", "sailor-data bytes -o d /proc/kmsg",
        "sailor-train /proc/kmsg --data c", "sailor-check --plan /proc/kmsg"}) {
    if (!have(std::string(command).substr(0, std::string(command).find(' ')))) continue;
    const auto outcome = shell(std::string("timeout 20 $bin/") + command);
    EXPECT_NE(outcome.exit_status, 0) << command;
    EXPECT_NE(outcome.errors.find(::geteuid() == 0 ? refused : "/proc/kmsg'"), std::string::npos)
        << command << ": " << outcome.errors;
  }
  if (!have("sailor-train")) return;
  const auto data = shell("timeout 20 $bin/sailor-train plan.toml --data corpus --iterations 1");
  EXPECT_EQ(data.exit_status, 1) << data.errors;
  EXPECT_NE(data.errors.find("corpus.idx'"), std::string::npos) << data.errors;
}

// Their bytes came back in an exception of the JSON library.
TEST_F(Hostile, ATraceThatIsNotUtf8IsRefusedWithItsLine) {
  write("trace.csv", "Timestamp,H200-141_a\n0,4\n10,\xff\n");
  for (const char* format : {"table", "json"}) {
    const auto outcome = shell(plan(fmt::format("--availability-trace trace.csv --format {}", format)));
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_NE(outcome.errors.find("trace.csv:3: the line is not UTF-8; save the file as UTF-8"), std::string::npos)
        << outcome.errors;
  }
}

// OpenBLAS asked for memory again and again, and SIGTERM was only noted.
TEST_F(Hostile, TrainingWithoutMemoryForProductsIsAnErrorAtItsStart) {
  if (!have("sailor-train")) GTEST_SKIP() << "built without MPI";
  make_corpus();
  write("plan.toml", plan_text("cpu", 1, 1, "micro_batches = 1"));
  for (const int mebibytes : {300, 330, 360}) {  // with less MPI does not start
    const auto outcome =
        shell(fmt::format("ulimit -v {}; exec timeout -k 1 20 $bin/sailor-train plan.toml --data corpus --iterations 2",
                          mebibytes * 1024));
    EXPECT_EQ(outcome.exit_status, 1) << outcome.errors;
    EXPECT_NE(
        outcome.errors.find("sailor-train: error: there is not enough memory to multiply matrices: OpenBLAS takes"),
        std::string::npos)
        << outcome.errors;
    EXPECT_NE(outcome.errors.find(fmt::format("and a limit of {} MiB is on the process (ulimit -v)", mebibytes)),
              std::string::npos)
        << outcome.errors;
  }
}

TEST_F(Hostile, TrainRefusesWhatItWouldOnlyFindAfterTraining) {
  if (!have("sailor-train")) GTEST_SKIP() << "built without MPI";
  make_corpus();
  write("plan.toml", plan_text("cpu", 1, 1, "micro_batches = 1"));
  const std::string train = "$bin/sailor-train plan.toml --data corpus --iterations 2 ";
  for (const auto& [file, status, message] :
       {std::tuple(".", 1, "--run-file: cannot write '.': it is a directory"),
        std::tuple("no/run.h5", 1, "--run-file: cannot write 'no/run.h5': there is no folder 'no'"),
        std::tuple("plan.toml", 2, "--run-file 'plan.toml' is an input of this run"),
        std::tuple("corpus.idx", 2, "--run-file 'corpus.idx' is an input of this run")}) {
    const auto outcome = shell(train + "--run-file " + file);
    EXPECT_EQ(outcome.exit_status, status) << outcome.errors;
    EXPECT_NE(outcome.errors.find(message), std::string::npos) << outcome.errors;
    EXPECT_EQ(outcome.output, "");
  }
}

// It went on to the end with a loss of nan and exit status 0.
TEST_F(Hostile, TrainingThatDivergesIsAFailureWithARunFile) {
  if (!have("sailor-train")) GTEST_SKIP() << "built without MPI";
  make_corpus();
  write("plan.toml", plan_text("cpu", 1, 1, "micro_batches = 1"));
  const std::string train = "$bin/sailor-train plan.toml --data corpus --iterations 100000 --run-file run.h5 ";
  const auto outcome = shell(train + "--learning-rate 1e6");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.errors.find("sailor-train: error: training diverged: the loss of iteration "), std::string::npos)
      << outcome.errors;
  EXPECT_TRUE(fs::exists("run.h5"));
  // As a float this would be infinite.
  EXPECT_EQ(shell(train + "--learning-rate 1e300").exit_status, 2);
}

// It trained a plan for GPUs on the CPU and kept the times as theirs.
TEST_F(Hostile, APlanForGpusIsNotTrainedOnTheCpu) {
  if (!have("sailor-train")) GTEST_SKIP() << "built without MPI";
  make_corpus();
  ::setenv("SAILOR_GPU_MODULE", "/none", 1);  // as in a build without CUDA
  for (const auto& [gpu, message] :
       {std::pair("H200-141", "no usable GPU: /none: cannot open shared object file"),
        std::pair("MI300X", "plan.toml: pipeline 0, stage 0: gpu = \"MI300X\": sailor-train computes on CPUs and on"),
        std::pair("abacus", "plan.toml: pipeline 0, stage 0: GPU type 'abacus' is not in the catalogue")}) {
    write("plan.toml", plan_text(gpu, 1, 1, "micro_batches = 1"));
    const auto outcome = shell("$bin/sailor-train plan.toml --data corpus --iterations 1");
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_NE(outcome.errors.find(message), std::string::npos) << outcome.errors;
  }
}

}  // namespace
}  // namespace sailor
