#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/descriptor.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "core/parse.hpp"
#include "core/statistics.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "core/units.hpp"

namespace sailor::core_test {
namespace {

std::string error_of(std::string_view text, void (*read)(const TomlTable&)) {
  auto document = TomlDocument::parse(text, "f.toml");
  if (!document) return document.error().message();
  read(document->root());
  auto finished = document->finish();
  return finished ? "" : finished.error().message();
}

TEST(Log, KeepsWhatATerminalWouldObeyOutOfMessages) {
  start_logging("sailor-x", false);
  ::testing::internal::CaptureStderr();
  log_warning("node '{}'", "gh1\x1b[2J\b");
  EXPECT_EQ(report("sailor-x", Error{ErrorCode::failure, "no file 'a\x1b]0;b\x07'", "log:\n\tline"}), 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "sailor-x: warning: node 'gh1?[2J?'\nsailor-x: error: no file 'a?]0;b?'; log:\n\tline\n");
}

TEST(Log, DebugIsShownOnlyIfAskedFor) {
  for (const bool verbose : {false, true}) {
    start_logging("sailor-x", verbose);
    ::testing::internal::CaptureStderr();
    log_debug("epoch {}", 3);
    log_info("job {} {{}}", 7);  // a message is formatted once
    EXPECT_EQ(::testing::internal::GetCapturedStderr(),
              std::string(verbose ? "sailor-x: debug: epoch 3\n" : "") + "sailor-x: info: job 7 {}\n");
  }
}

TEST(Units, TimeIsAmountOverRate) {
  EXPECT_DOUBLE_EQ((gigabyte / BytesPerSecond(2e9)).value(), 0.5);
  EXPECT_DOUBLE_EQ((UsdPerHour(3.6) * Seconds(10.0)).value(), 0.01);
}

TEST(Toml, AFileOfAnotherKindIsNamed) {
  const auto error = [](std::string_view text) {
    const auto document = TomlDocument::parse(text, "x.toml");
    if (!document) return document.error().message();
    document->require_schema_version(2, TomlKind::plan);
    return document->finish().error().message();
  };
  EXPECT_EQ(error("schema_version = 1\nname = \"a\"\n[[nodes]]\ncount = 1\n"),
            "x.toml:1:1: this is a cluster (cluster.toml), not a plan (plan.toml); --cluster takes it");
  EXPECT_EQ(error("blocks = 2\nhidden = 8\n"), "x.toml:1:1: this is a model, not a plan (plan.toml); --model takes it");
  EXPECT_EQ(error(""), "x.toml:1:1: the file is empty; it must be a plan (plan.toml)");
  EXPECT_EQ(error("schema_version = 1\n[job]\n[[pipelines]]\n"),
            "x.toml:1:18: schema_version is 1 but this Sailor reads 2; write the file anew with this Sailor");
  EXPECT_EQ(error("\x89HDF\r\n\x1a\n").substr(0, 38), "x.toml: this is an HDF5 file, not TOML");
}

TEST(Toml, MissingKeyNamesFileLineAndKey) {
  EXPECT_EQ(error_of("\n[a]\nx = 1\n", [](const TomlTable& t) { (void)t.table("a").integer("y"); }),
            "f.toml:2:1: key 'a.y' is missing");
}

TEST(Toml, UnknownKeyIsAnError) {
  EXPECT_EQ(error_of("x = 1\nhiden = 2\n", [](const TomlTable& t) { (void)t.integer("x"); }),
            "f.toml:2:9: unknown key 'hiden'; check the spelling or remove it");
}

TEST(Toml, WrongTypeIsNotConverted) {
  EXPECT_EQ(error_of("x = 1.5\n", [](const TomlTable& t) { (void)t.integer("x"); }),
            "f.toml:1:5: 'x' must be an integer, not a number");
  EXPECT_EQ(error_of("x = \"4\"\n", [](const TomlTable& t) { (void)t.number("x"); }),
            "f.toml:1:5: 'x' must be a number, not a string");
}

TEST(Toml, ValueOutOfRangeSaysTheBound) {
  EXPECT_EQ(error_of("x = 0\n", [](const TomlTable& t) { (void)t.integer("x", {.minimum = 1}); }),
            "f.toml:1:5: 'x' is 0 but must be at least 1");
  EXPECT_EQ(error_of("x = inf\n", [](const TomlTable& t) { (void)t.number("x"); }),
            "f.toml:1:5: 'x' is inf but must be finite");
}

TEST(Toml, SyntaxErrorHasLineAndColumn) {
  EXPECT_TRUE(error_of("x = 1\ny = = 2\n", [](const TomlTable&) {}).starts_with("f.toml:2:"));
}

TEST(Toml, FirstErrorWins) {
  EXPECT_EQ(error_of("x = 0\n",
                     [](const TomlTable& t) {
                       (void)t.integer("a");
                       (void)t.integer("b");
                     }),
            "f.toml:1:1: key 'a' is missing");
}

TEST(Toml, QuotedTextReadsBack) {
  const std::string nasty = "a\"b\\c\nd\te\x01\x7f $(rm) 'x'";
  auto document = TomlDocument::parse("x = " + toml_quote(nasty) + "\n", "f.toml");
  ASSERT_TRUE(document.has_value());
  EXPECT_EQ(document->root().text("x"), nasty);
}

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("sailor_files_" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(FilesTest, AtomicWriteReplacesAndLeavesNoTemporary) {
  const auto path = folder_ / "a";
  ASSERT_TRUE(write_file_atomically(path, "one"));
  ASSERT_TRUE(write_file_atomically(path, "two"));
  EXPECT_EQ(read_text_file(path).value(), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(FilesTest, FailedWriterKeepsTheOldFile) {
  const auto path = folder_ / "a";
  ASSERT_TRUE(write_file_atomically(path, "one"));
  auto failing = [](const std::filesystem::path& temporary) -> Result<void> {
    std::ofstream(temporary) << "half";
    return fail(ErrorCode::failure, "no");
  };
  EXPECT_FALSE(write_file_atomically(path, failing));
  EXPECT_EQ(read_text_file(path).value(), "one");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(FilesTest, NamesOfTemporaryFilesCannotBeForeseen) {
  std::set<std::string> names;
  for (int i = 0; i < 8; ++i) {
    const auto look = [&](const std::filesystem::path&) -> Result<void> {
      for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(".")) continue;
        EXPECT_TRUE(name.starts_with(".a.") && is_temporary_name(name)) << name;
        names.insert(name);
      }
      return {};
    };
    ASSERT_TRUE(i % 2 == 0
                    ? write_file_atomically(folder_ / "a", look).has_value()
                    : create_file_atomically(folder_ / ("b" + std::to_string(i)), [](const auto&) -> Result<void> {
                        return {};
                      }).has_value());
  }
  EXPECT_EQ(names.size(), 4U);
}

// Who writes where others write must not be led to files of his own: a name of the version before was the user's name
// for the file, host and process.
TEST_F(FilesTest, LinksThatOthersHavePlacedAreNotFollowed) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::ofstream(folder_ / "victim") << "mine";
  for (const char* ending : {"tmp", "new"})
    std::filesystem::create_symlink(folder_ / "victim", folder_ / (".a." + std::string(host.data()).substr(0, 64) +
                                                                   "." + std::to_string(::getpid()) + "." + ending));
  ASSERT_TRUE(write_file_atomically(folder_ / "a", "new"));
  std::filesystem::remove(folder_ / "a");
  ASSERT_TRUE(create_file_atomically(folder_ / "a", "new"));
  EXPECT_EQ(read_text_file(folder_ / "victim").value(), "mine");
}

TEST_F(FilesTest, TheNextWriterRemovesWhatKilledWritersLeftAndNothingElse) {
  const std::string left = ".a.0123456789abcdef.tmp";
  const std::string locked = ".a.1123456789abcdef.tmp";
  const std::string young = ".a.2123456789abcdef.tmp";
  const std::string folder = ".a.3123456789abcdef.tmp";
  const std::string link = ".a.4123456789abcdef.tmp";
  const std::vector<std::string> others{".b.0123456789abcdef.tmp", ".a.0123456789abcdeg.tmp", ".a.123456789abcdef.tmp",
                                        "a.0123456789abcdef.tmp",  ".a.0123456789abcdef.new", ".a.tmp"};
  const auto make = [&](const std::string& name, int hours) {
    std::ofstream(folder_ / name) << "half";
    std::filesystem::last_write_time(folder_ / name,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  for (const std::string& name : {left, locked}) make(name, 25);
  for (const std::string& name : others) make(name, 25);
  make(young, 23);
  std::filesystem::create_directory(folder_ / folder);
  std::filesystem::create_symlink(folder_ / "victim", folder_ / link);
  make("victim", 25);
  const Descriptor lock(::open((folder_ / locked).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  ASSERT_TRUE(write_file_atomically(folder_ / "a", "whole"));
  std::set<std::string> expected{"a", "victim", locked, young, folder, link};
  expected.insert(others.begin(), others.end());
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) found.insert(entry.path().filename().string());
  EXPECT_EQ(found, expected);
}

TEST_F(FilesTest, OfAnotherUserNothingIsRemoved) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const auto left = folder_ / ".a.0123456789abcdef.tmp";
  std::ofstream(left) << "half";
  std::filesystem::last_write_time(left, std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  ASSERT_EQ(::chown(left.c_str(), 1, 1), 0);
  ASSERT_TRUE(write_file_atomically(folder_ / "a", "whole"));
  EXPECT_TRUE(std::filesystem::exists(left));
}

TEST_F(FilesTest, ErrorsNameTheFileThatTheUserNamed) {
  const auto writer = [&](const std::filesystem::path& given) -> Result<void> {
    return fail(ErrorCode::io, "cannot write '" + given.string() + "': no room", "make room for " + given.string());
  };
  const std::string path = (folder_ / "a").string();
  for (const Error& error : {write_file_atomically(path, writer).error(), create_file_atomically(path, writer).error()})
    EXPECT_EQ(error.message(), "cannot write '" + path + "': no room; make room for " + path);
}

TEST_F(FilesTest, ReadingDoesNotWaitForTheKernel) {
  EXPECT_NE(read_text_file("/proc/kmsg").error().message().find("/proc/kmsg"), std::string::npos);
  EXPECT_NE(read_text_file("/proc/self/maps").error().what.find("is not a regular file but an answer of the kernel"),
            std::string::npos);
  EXPECT_TRUE(read_kernel_file("/proc/self/maps", 1 << 24));
  std::ofstream(folder_ / "a") << "text";
  const Descriptor open(::open((folder_ / "a").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(read_text_file("/proc/self/fd/" + std::to_string(open.get())).value_or(""), "text");
}

TEST_F(FilesTest, ReadingSaysWhatIsWrong) {
  EXPECT_EQ(read_text_file(folder_ / "none").error().code, ErrorCode::not_found);
  EXPECT_NE(read_text_file(folder_).error().what.find("is not a regular file"), std::string::npos);
  ASSERT_TRUE(write_file_atomically(folder_ / "big", std::string(100, 'x')));
  EXPECT_NE(read_text_file(folder_ / "big", 10).error().what.find("has 100 bytes; the limit is 10"), std::string::npos);
}

TEST(Terminal, QuantitiesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(format_time(Seconds(1.2345)), "1.23 s");
  EXPECT_EQ(format_time(Seconds(0.0456)), "45.6 ms");
  EXPECT_EQ(format_time(Seconds(7.891e-6)), "7.89 us");
  EXPECT_EQ(format_time(Seconds(0.9999)), "1.00 s");
  EXPECT_EQ(format_bytes(1.5 * gib), "1.50 GiB");
  EXPECT_EQ(format_bytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(format_bandwidth(BytesPerSecond(12.34e9)), "12.3 GB/s");
  EXPECT_EQ(format_usd(Usd(12.345)), "$12.35");
  EXPECT_EQ(format_usd(Usd(0.000123)), "$0.000123");
}

TEST(Terminal, TableAlignsColumns) {
  Table table({{"name", Align::left}, {"n"}});
  table.add_row({"a", "1"});
  table.add_row({"long", "22"});
  EXPECT_EQ(table.to_string(), "name   n\n--------\na      1\nlong  22\n");
}

TEST(Terminal, ColumnsThatSayNothingFoldIntoACaption) {
  Table table({{"gpu", Align::left}, {"n"}, {"ranks"}});
  table.add_row({"cpu", "1", "2"});
  table.add_row({"cpu", "2", "2"});
  EXPECT_EQ(table.fold_constant_columns({"gpu", "n", "ranks"}), "gpu cpu, ranks 2");
  EXPECT_EQ(table.to_string(), "n\n-\n1\n2\n");
}

/// The table of two rows in so many columns; 0: as many as it takes.
std::string table_in(std::size_t columns) {
  Table table({{"#"}, {"time"}, {"headroom"}, {"devices"}, {"plan", Align::left}});
  table.add_row({"1", "10 ms", "85%", "16", "2 x [A100 tp4: 14 12 | V100 tp2: 6 6] b8 n4"});
  table.add_row({"2", "9.0 ms", "7%", "8", "4 x [A100 tp1]"});
  fit_output({columns, "--format json", {"headroom"}, {"time"}});
  std::string text = table.to_string();
  fit_output({});
  return text;
}

TEST(Terminal, NarrowTablesFoldTheLastColumnBeforeTheyLoseOthers) {
  EXPECT_EQ(table_in(60),
            "#    time  headroom  devices  plan\n"
            "------------------------------------------------------------\n"
            "1   10 ms       85%       16  2 x [A100 tp4: 14 12 | V100\n"
            "                              tp2: 6 6] b8 n4\n"
            "2  9.0 ms        7%        8  4 x [A100 tp1]\n");
  EXPECT_EQ(table_in(80), table_in(0));
}

TEST(Terminal, NarrowerTablesLoseDetailsFirstAndNameThem) {
  EXPECT_EQ(table_in(50),
            "#    time  devices  plan\n"
            "--------------------------------------------------\n"
            "1   10 ms       16  2 x [A100 tp4: 14 12 | V100\n"
            "                    tp2: 6 6] b8 n4\n"
            "2  9.0 ms        8  4 x [A100 tp1]\n"
            "left out in 50 columns: headroom (to see it:\n"
            "  --format json or a wider terminal)\n");
  const std::string least = table_in(30);
  EXPECT_NE(least.find("1  2 x ["), std::string::npos) << least;  // a key column goes last
  EXPECT_NE(table_in(40).find("1   10 ms  2 x ["), std::string::npos) << table_in(40);
  EXPECT_NE(least.find("columns: time,\n  headroom, devices ("), std::string::npos) << least;
}

TEST(Terminal, ProseIsBrokenBetweenWordsOnly) {
  fit_output({.columns = 24});
  EXPECT_EQ(fitted("one two three four five six seven\n\nshort\n"), "one two three four five\n  six seven\n\nshort\n");
  EXPECT_EQ(fitted("added /a/path/that/is/longer/than/that.h5 today"),
            "added\n  /a/path/that/is/longer/than/that.h5\n  today");
  EXPECT_EQ(fitted("  - one two three four five\n"), "  - one two three four\n    five\n");
  EXPECT_EQ(fitted("cost  one two three four five\n"), "cost  one two three four\n      five\n");
  EXPECT_EQ(fitted("±±±±±±±±±± ±±±±±±±±±±"), "±±±±±±±±±± ±±±±±±±±±±");  // 21 columns in 41 bytes
  fit_output({});
  EXPECT_EQ(fitted(std::string(300, 'x') + " y"), std::string(300, 'x') + " y");
}

TEST(Statistics, QuantileInterpolates) {
  const double values[] = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(quantile(values, 1.0), 4.0);
  EXPECT_EQ(summarize(values).samples, 4);
}

TEST(Parse, CountsAreWholeNumbersWithNothingBeside) {
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("4096"), 4096);
  for (const char* wrong : {"", "-1", "+1", " 4", "4 ", "4x", "1e3", "99999999999"})
    EXPECT_EQ(parse_count(wrong), std::nullopt) << wrong;
}
TEST(Parse, BlanksAtTheEndsGo) {
  EXPECT_EQ(trimmed(" \ta b\r"), "a b");
  EXPECT_EQ(trimmed(" \t"), "");
  EXPECT_EQ(trimmed("\"ctl1\" ", " \""), "ctl1");
}

TEST(Text, RangesAreJoinedAsTheyArePrinted) {
  EXPECT_EQ(join(std::vector<std::string>{"a", "", "a"}, ", "), "a, , a");
  EXPECT_EQ(join(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(join_or_none(std::vector<std::string>{}), "none");
  EXPECT_EQ(join_or_none(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(join(std::set<std::string>{"b", "a"}, ""), "ab");
  EXPECT_EQ(join(std::array<std::string_view, 2>{"x", "y"}, "-"), "x-y");
  EXPECT_EQ(join(std::vector<int>{3, -1}, ","), "3,-1");
  EXPECT_EQ(join(std::vector<double>{0.5, 1e-9, 2.0}, " "), "0.5 1e-09 2");
  std::string text = "at";
  append(text, " {:.1f} {}", 2.0, std::string("s"));
  EXPECT_EQ(text, "at 2.0 s");
}

TEST(Text, ClosestNameIsSuggestedOnlyWhenClose) {
  EXPECT_EQ(closest("normel", {"debug", "normal"}), "normal");
  EXPECT_EQ(closest("modle", {"mode-x", "model"}), "model");
  EXPECT_EQ(closest("zzz", {"debug", "normal"}), std::nullopt);
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "b"}));
}

TEST(Errors, ExitStatusFollowsTheCode) {
  EXPECT_EQ(exit_status(ErrorCode::usage), 2);
  EXPECT_EQ(exit_status(ErrorCode::infeasible), 3);
  EXPECT_EQ(exit_status(ErrorCode::io), 1);
}

}  // namespace
}  // namespace sailor::core_test
