#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "apps/options.hpp"
#include "apps/stop_requests.hpp"
#include "core/toml_reader.hpp"

namespace sailor::apps::apps_test {
namespace {

struct SampleOptions : CommonOptions {
  OptionValue<std::string> plan, model, partition, format;
  OptionValue<std::vector<std::string>> files;
  OptionValue<int> nodes, micro_batch;
  OptionValue<std::vector<int>> micro_batches;
  OptionValue<std::int64_t> tokens;
  OptionValue<double> price;
  OptionValue<bool> overlap;
};

CommandLine sample(SampleOptions& options) {
  return {.program = "sailor-sample",
          .purpose = "shows what the option table does",
          .positionals = {positional(options.plan, {.name = "PLAN", .help = "the plan (plan.toml)"}),
                          positional(options.files, {.name = "FILES", .help = "more files", .required = false})},
          .options = {option(options.model, shared::model()), option(options.partition, shared::partition()),
                      option(options.nodes, shared::nodes()),
                      option(options.micro_batch, {.name = "micro-batch",
                                                   .value_name = "N",
                                                   .help = "micro-batch, sequences",
                                                   .default_value = "4",
                                                   .minimum = 1,
                                                   .maximum = 64}),
                      option(options.micro_batches, {.name = "micro-batches",
                                                     .value_name = "N",
                                                     .help = "micro-batches to try, sequences",
                                                     .default_value = "1,2,4"}),
                      option(options.tokens, {.name = "tokens", .value_name = "N", .help = "tokens in all"}),
                      option(options.price, {.name = "price", .value_name = "USD", .help = "USD per GPU-hour"}),
                      option(options.overlap, {.name = "overlap", .help = "overlap communication and computation"}),
                      option(options.format, shared::format())},
          .examples = {{.command = "sailor-sample plan.toml", .comment = "The usual"}},
          .notes = ""};
}

/// A command line of the sample, parsed.
struct Parsed {
  SampleOptions options;
  Result<bool> goes_on;

  explicit Parsed(const std::vector<std::string>& arguments, const Environment& environment = {}) {
    CommandLine line = sample(options);
    line.common = &options;
    goes_on = parse_options(line, arguments, environment);
  }
};

std::unique_ptr<Parsed> parsed(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  auto parsed = std::make_unique<Parsed>(arguments, environment);
  if (!parsed->goes_on || !*parsed->goes_on)
    ADD_FAILURE() << (parsed->goes_on ? "no options" : parsed->goes_on.error().message());
  return parsed;
}

std::string error_of(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  const Parsed parsed(arguments, environment);
  if (parsed.goes_on) return "no error";
  EXPECT_EQ(parsed.goes_on.error().code, ErrorCode::usage);
  return parsed.goes_on.error().message();
}

struct WritingOptions : CommonOptions {
  OptionValue<std::string> input, name, cluster, data, output, save;
};

CommandLine writing(WritingOptions& options) {
  return {
      .program = "sailor-write",
      .positionals = {positional(options.input, {.name = "INPUT", .help = "read"})},
      .options = {option(options.name, {.name = "name", .value_name = "NAME", .help = "a name"}),
                  option(options.cluster, {.name = "cluster", .value_name = "FILE", .help = "read"}),
                  option(options.data, {.name = "data", .value_name = "PREFIX", .help = "read"}),
                  option(options.output, {.name = "output", .value_name = "FILE", .help = "written", .writes = true}),
                  option(options.save, {.name = "save", .value_name = "FILE", .help = "written", .writes = true})}};
}

TEST(Options, OutputsDoNotReplaceOtherFilesOfTheCommand) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("sailor-options-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const auto in = [&](const std::string& name) { return (folder / name).string(); };
  for (const char* name : {"plan.toml", "cluster.toml", "corpus.bin", "earlier", "config.toml"})
    std::ofstream(in(name));
  fs::create_symlink("plan.toml", folder / "link.toml");
  const auto refused = [&](const std::vector<std::string>& more) {
    WritingOptions options;
    CommandLine line = writing(options);
    line.common = &options;
    std::vector<std::string> arguments{in("plan.toml"), "--cluster", in("cluster.toml"), "--data", in("corpus")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto parsed = parse_options(line, arguments, {});
    if (parsed) return false;
    EXPECT_EQ(parsed.error().code, ErrorCode::usage);
    EXPECT_NE(parsed.error().what.find("would replace another file of this command"), std::string::npos)
        << parsed.error().what;
    return true;
  };
  EXPECT_TRUE(refused({"--output", in("plan.toml")}));
  EXPECT_TRUE(refused({"--output", in("link.toml")}));
  EXPECT_TRUE(refused({"--save", in("./cluster.toml")}));
  EXPECT_TRUE(refused({"--output", in("corpus.bin")}));
  EXPECT_TRUE(refused({"--output", in("config.toml"), "--config", in("config.toml")}));
  EXPECT_TRUE(refused({"--output", in("new.toml"), "--save", in("new.toml")}));
  EXPECT_FALSE(refused({"--output", in("new.toml"), "--save", in("other.toml")}));
  EXPECT_FALSE(refused({"--output", in("earlier")}));
  EXPECT_FALSE(refused({"--output", in("earlier"), "--name", in("earlier")}));  // a name is no file
  EXPECT_FALSE(refused({"--output", "/dev/null", "--save", "/dev/null"}));
  fs::remove_all(folder);
}

/// A file that lives as long as the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content)
      : path_(std::filesystem::temp_directory_path() / ("sailor-apps-test-" + std::to_string(::getpid()) + ".toml")) {
    std::ofstream(path_) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Version, NamesTheOptionalPartsOfThisBuild) {
  const std::string text = version_text("sailor-sample", {"--version"}, {}, nullptr);
  EXPECT_TRUE(text.starts_with("sailor-sample " + std::string(version()) + " (")) << text;
  EXPECT_NE(text.find("with "), std::string::npos) << text;
  EXPECT_EQ(text.back(), '\n');
  const std::string json = version_text("sailor-sample", {"--version", "--format", "json"}, {}, nullptr);
  EXPECT_NE(json.find("\"commit\": \""), std::string::npos) << json;
  EXPECT_NE(json.find("\"features\": ["), std::string::npos) << json;
}

TEST(Options, DefaultsHoldWhenNothingIsSaid) {
  const auto options_parsed = parsed({"plan.toml"});
  const SampleOptions& options = options_parsed->options;
  EXPECT_EQ(*options.micro_batch, 4);
  EXPECT_EQ(*options.micro_batches, (std::vector{1, 2, 4}));
  EXPECT_EQ(*options.format, "table");
  EXPECT_FALSE(options.model.has());
  EXPECT_FALSE(options.micro_batch.given());
  EXPECT_FALSE(*options.overlap);
  EXPECT_EQ(*options.model, "");
  EXPECT_EQ(std::vector{*options.plan}, std::vector<std::string>{"plan.toml"});
  EXPECT_TRUE(options.files->empty());
}

TEST(Options, CommandLineBeatsEnvironmentBeatsConfigBeatsDefault) {
  const TemporaryFile config("micro_batch = 8\n");
  const Environment environment{{"SAILOR_MICRO_BATCH", "16"}};
  EXPECT_EQ(*parsed({"p", "--config", config.path()})->options.micro_batch, 8);
  EXPECT_EQ(*parsed({"p", "--config", config.path()}, environment)->options.micro_batch, 16);
  EXPECT_EQ(*parsed({"p", "--config", config.path(), "--micro-batch", "32"}, environment)->options.micro_batch, 32);
  EXPECT_EQ(*parsed({"p"}, {{"SAILOR_CONFIG", config.path()}})->options.micro_batch, 8);
}

TEST(Options, PrintConfigIsTomlThatSaysWhoSetWhat) {
  const TemporaryFile config("price = 1.5\nmicro_batches = [3, 5]\noverlap = true\n");
  const auto options_parsed =
      parsed({"p", "--config", config.path(), "-N", "3", "--model", "a \"b\""}, {{"SAILOR_PARTITION", "debug"}});
  const SampleOptions& options = options_parsed->options;
  const std::string text = options.effective_values;
  auto document = TomlDocument::parse(text, "printed");
  ASSERT_TRUE(document) << document.error().message() << "\n" << text;
  const TomlTable root = document->root();
  EXPECT_EQ(root.integer("nodes"), 3);
  EXPECT_EQ(root.text("model"), "a \"b\"");
  EXPECT_EQ(root.text("partition"), "debug");
  EXPECT_EQ(root.number("price"), 1.5);
  EXPECT_EQ(root.integers("micro_batches"), (std::vector<std::int64_t>{3, 5}));
  EXPECT_TRUE(root.boolean("overlap"));
  EXPECT_NE(text.find("nodes = 3  # command line\n"), std::string::npos) << text;
  EXPECT_NE(text.find("partition = \"debug\"  # environment SAILOR_PARTITION\n"), std::string::npos) << text;
  EXPECT_NE(text.find("price = 1.5  # config file " + config.path() + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find("format = \"table\"  # default\n"), std::string::npos) << text;
}

TEST(Options, PrintedConfigReadsBackAsConfig) {
  const TemporaryFile config(parsed({"p", "-N", "7", "--micro-batches", "2,6", "--overlap"})->options.effective_values);
  const auto again_parsed = parsed({"p", "--config", config.path()});
  const SampleOptions& again = again_parsed->options;
  EXPECT_EQ(*again.nodes, 7);
  EXPECT_EQ(*again.micro_batches, (std::vector{2, 6}));
  EXPECT_TRUE(*again.overlap);
}

TEST(Options, PrintConfigNeedsNoPositionals) {
  const Parsed parsed({"--print-config"});
  ASSERT_TRUE(parsed.goes_on) << parsed.goes_on.error().message();
  EXPECT_FALSE(*parsed.goes_on);
}

TEST(Options, ListsComeFromCommasAndFromRepetition) {
  EXPECT_EQ(*parsed({"p", "--micro-batches", "1,2", "--micro-batches=8"})->options.micro_batches,
            (std::vector{1, 2, 8}));
}

TEST(Options, PositionalsAreTakenInOrderAndAfterDoubleDash) {
  const auto options_parsed = parsed({"--model", "m", "--", "--odd-name", "b", "c"});
  const SampleOptions& options = options_parsed->options;
  EXPECT_EQ(std::vector{*options.plan}, std::vector<std::string>{"--odd-name"});
  EXPECT_EQ(*options.files, (std::vector<std::string>{"b", "c"}));
}

TEST(Options, FlagInEnvironmentIsOnOrOff) {
  EXPECT_TRUE(*parsed({"p"}, {{"SAILOR_OVERLAP", "1"}})->options.overlap);
  EXPECT_FALSE(*parsed({"p"}, {{"SAILOR_OVERLAP", "no"}})->options.overlap);
  EXPECT_EQ(error_of({"p"}, {{"SAILOR_OVERLAP", "perhaps"}}),
            "environment variable SAILOR_OVERLAP: 'perhaps' is neither 1 nor 0; see sailor-sample --help");
}

TEST(Options, UnknownOptionNamesTheNearestOne) {
  EXPECT_EQ(error_of({"p", "--partiton", "debug"}),
            "unknown option '--partiton'; did you mean '--partition'? (see sailor-sample --help)");
  EXPECT_EQ(error_of({"p", "--partiton=debug"}),
            "unknown option '--partiton'; did you mean '--partition'? (see sailor-sample --help)");
  EXPECT_EQ(error_of({"p", "-Z"}), "unknown option '-Z'; see sailor-sample --help");
}

TEST(Options, AbbreviationsAreNotGuessed) {
  EXPECT_EQ(error_of({"p", "--part", "debug"}), "unknown option '--part'; see sailor-sample --help");
}

TEST(Options, MissingValueIsAnError) {
  EXPECT_EQ(error_of({"p", "--model"}), "option '--model' needs a value (NAME); see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "-p"}), "option '--partition' needs a value (NAME); see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--model", "--overlap"}), "option '--model' needs a value (NAME); see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--model="}), "option '--model' needs a value (NAME); see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--model", ""}), "--model: the value is empty; see sailor-sample --help");
}

TEST(Options, FlagTakesNoValue) {
  EXPECT_EQ(error_of({"p", "--overlap=yes"}), "option '--overlap' takes no value; see sailor-sample --help");
}

TEST(Options, BadNumbersAreRefused) {
  EXPECT_EQ(error_of({"p", "--micro-batch", "x"}), "--micro-batch: 'x' is no integer; see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--micro-batch", "4.5"}), "--micro-batch: '4.5' is no integer; see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--micro-batch", "4k"}), "--micro-batch: '4k' is no integer; see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--price", "nan"}), "--price: 'nan' is no number; see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--price", "1,5"}), "--price: '1,5' is no number; see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--micro-batches", "1,y"}), "--micro-batches: 'y' is no integer; see sailor-sample --help");
  EXPECT_EQ(error_of({"p", "--micro-batches", "1,3000000000"}),
            "--micro-batches: '3000000000' is too large; see sailor-sample --help");
  EXPECT_EQ(*parsed({"p", "--tokens", "3000000000"})->options.tokens, 3'000'000'000);
  EXPECT_EQ(error_of({"p", "--micro-batch", "99999999999999999999"}),
            "--micro-batch: '99999999999999999999' is too large; see sailor-sample --help");
}

TEST(Options, NegativeNumbersAreValuesNotOptions) { EXPECT_EQ(*parsed({"p", "--price", "-2.5"})->options.price, -2.5); }

TEST(Options, ValuesOutOfRangeSayTheRange) {
  EXPECT_EQ(error_of({"p", "--micro-batch", "0"}),
            "--micro-batch: '0' is out of range: it must be between 1 and 64; see sailor-sample --help");
  EXPECT_EQ(error_of({"p"}, {{"SAILOR_MICRO_BATCH", "65"}}),
            "environment variable SAILOR_MICRO_BATCH: '65' is out of range: it must be between 1 and 64; "
            "see sailor-sample --help");
}

TEST(Options, BadChoiceListsTheChoices) {
  EXPECT_EQ(error_of({"p", "--format", "xml"}),
            "--format: 'xml' is not one of: table, json, toml; see sailor-sample --help");
}

TEST(Options, OptionGivenTwiceIsRefused) {
  EXPECT_EQ(error_of({"p", "--model", "a", "--model", "b"}),
            "--model is given 2 times: 'a', 'b'; give it once (see sailor-sample --help)");
}

TEST(Options, MissingAndSurplusPositionalsAreErrors) {
  EXPECT_EQ(error_of({}), "PLAN is missing: the plan (plan.toml); see sailor-sample --help");
  SampleOptions options;
  CommandLine line = sample(options);
  line.common = &options;
  line.positionals.pop_back();
  auto surplus = parse_options(line, {"a", "b"}, {});
  ASSERT_FALSE(surplus);
  EXPECT_EQ(surplus.error().message(), "unexpected argument 'b' after PLAN; see sailor-sample --help");
  line.positionals.clear();
  surplus = parse_options(line, {"a"}, {});
  ASSERT_FALSE(surplus);
  EXPECT_EQ(surplus.error().message(),
            "unexpected argument 'a'; sailor-sample takes options only (see sailor-sample --help)");
}

TEST(Options, ConfigErrorsNameFileLineAndColumn) {
  const TemporaryFile config("price = 2.0\nmicro_batch = 100\n");
  EXPECT_EQ(error_of({"p", "--config", config.path()}),
            config.path() +
                ":2:15: micro_batch: '100' is out of range: it must be between 1 and 64; "
                "see sailor-sample --help");
}

TEST(Options, UnknownConfigKeyIsRefused) {
  const TemporaryFile config("micro_bach = 1\n");
  EXPECT_EQ(error_of({"p", "--config", config.path()}),
            config.path() + ":1:14: unknown key 'micro_bach'; did you mean 'micro_batch'? (see sailor-sample --help)");
}

TEST(Options, MissingConfigFileIsAnError) {
  EXPECT_EQ(error_of({"p", "--config", "/nowhere/x.toml"}),
            "--config: file '/nowhere/x.toml' does not exist; see sailor-sample --help");
}

TEST(Options, HelpComesBeforeErrors) {
  const Parsed parsed({"--no-such-option", "--help"});
  ASSERT_TRUE(parsed.goes_on) << parsed.goes_on.error().message();
  EXPECT_FALSE(*parsed.goes_on);
}

TEST(Help, ShowsPurposeUsageDefaultsUnitsAndExamples) {
  SampleOptions options;
  const CommandLine line = sample(options);
  const std::string text = help_text(line);
  EXPECT_TRUE(
      text.starts_with("sailor-sample: shows what the option table does\n\n"
                       "Usage: sailor-sample [options] PLAN [FILES...]\n"))
      << text;
  EXPECT_NE(text.find("      --micro-batch N        micro-batch, sequences [default: 4]\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  -p, --partition NAME       Slurm partition\n"), std::string::npos) << text;
  EXPECT_NE(text.find("[default: table]"), std::string::npos) << text;
  EXPECT_NE(text.find("SAILOR_MODEL for --model"), std::string::npos) << text;
  EXPECT_NE(text.find("  # The usual\n  sailor-sample plan.toml\n"), std::string::npos) << text;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 96U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(ProfilesFolder, EnvironmentComesFirst) {
  EXPECT_EQ(profiles_folder({{"SAILOR_PROFILES", "/some/where"}}), "/some/where");
  // This test is no installed program, so it uses the source tree.
  EXPECT_EQ(profiles_folder({}), std::string(SAILOR_SOURCE_DIR) + "/profiles");
}

// run_program() writes to the process's own stdout and stderr: each case is a forked child.
Result<void> succeed(const SampleOptions&, const Environment&) {
  std::puts("data");
  return {};
}
Result<void> find_no_plan(const SampleOptions&, const Environment&) {
  return fail(ErrorCode::infeasible, "no plan fits", "add nodes");
}
Result<void> throw_something(const SampleOptions&, const Environment&) { throw std::runtime_error("broken"); }

int run(const std::vector<std::string>& arguments, Result<void> (*body)(const SampleOptions&, const Environment&)) {
  std::vector<std::string> storage{"sailor-sample"};
  storage.insert(storage.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : storage) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return run_program(static_cast<int>(storage.size()), argv.data(), command(sample, body));
}

TEST(RunProgramDeathTest, StatusFollowsTheError) {
  EXPECT_EXIT(std::exit(run({"p"}, succeed)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(run({"p"}, find_no_plan)), testing::ExitedWithCode(3),
              "sailor-sample: error: no plan fits; add nodes");
  EXPECT_EXIT(std::exit(run({"p"}, throw_something)), testing::ExitedWithCode(1),
              "sailor-sample: error: unexpected: broken");
  EXPECT_EXIT(std::exit(run({}, succeed)), testing::ExitedWithCode(2), "sailor-sample: error: PLAN is missing");
}

TEST(RunProgramDeathTest, FullDiskBehindStdoutIsAFailure) {
  auto write_to_full_device = [] {
    if (std::freopen("/dev/full", "w", stdout) == nullptr) std::exit(99);
    std::exit(run({"p"}, succeed));
  };
  EXPECT_EXIT(write_to_full_device(), testing::ExitedWithCode(1),
              "sailor-sample: error: cannot write to standard output: No space left on device");
}

// ---- Signals that ask to stop

/// A child that goes on for ever; it writes to the pipe when it catches signals.
pid_t child_that_notes(int pipe_end) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  catch_stop_requests("program", {SIGTERM, SIGINT, SIGUSR2});
  const char ready = 'r';
  (void)!::write(pipe_end, &ready, 1);
  while (true) ::usleep(1000);
}

TEST(StopRequests, ASecondOneLaterThanFiveSecondsEndsTheProgram) {
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    children.push_back(child_that_notes(ends[1]));
    char c = 0;
    ASSERT_EQ(::read(ends[0], &c, 1), 1);
  }
  // Twice within a moment, by Slurm or mpirun.
  for (const pid_t child : children) ::kill(child, child == children[1] ? SIGUSR2 : SIGTERM);
  for (const pid_t child : children) ::kill(child, child == children[1] ? SIGUSR2 : SIGTERM);
  ::usleep(5'300'000);
  int status = 0;
  for (const pid_t child : children) EXPECT_EQ(::waitpid(child, &status, WNOHANG), 0);
  ::kill(children[0], SIGTERM);
  ::kill(children[1], SIGTERM);  // its first one
  ::kill(children[2], SIGINT);
  ASSERT_EQ(::waitpid(children[0], &status, 0), children[0]);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  ASSERT_EQ(::waitpid(children[2], &status, 0), children[2]);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  ::usleep(100'000);
  EXPECT_EQ(::waitpid(children[1], &status, WNOHANG), 0);
  ::kill(children[1], SIGKILL);
  ::waitpid(children[1], &status, 0);
}

}  // namespace
}  // namespace sailor::apps::apps_test
