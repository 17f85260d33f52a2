// The profile store: what is written is read back, and nothing that lies in a store makes a reader crash.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "core/files.hpp"
#include "profile/hdf5_file.hpp"
#include "profile/profile.hpp"
#include "profile/run_file.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

// HDF5 1.10 forgets memory when it refuses a damaged file. LeakSanitizer asks for this function by name.
extern "C" const char* __lsan_default_suppressions();                            // NOLINT
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }  // NOLINT

namespace sailor {
namespace {

namespace fs = std::filesystem;

/// A folder that lives as long as the test.
class ProfileStore : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sailor-profile-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] fs::path file(const std::string& name) const { return folder_ / name; }
  fs::path folder_;
};

TimeStatistics times(double median) {
  return {.median = Seconds(median), .p10 = Seconds(median * 0.9), .p90 = Seconds(median * 1.2), .samples = 20};
}

LayerMeasurement layer(int micro_batch, LayerKind kind, double forward) {
  return {.key = {.model = "tiny-gpt",
                  .gpu = "cpu",
                  .tensor_parallel = 1,
                  .micro_batch = micro_batch,
                  .sequence_length = 64,
                  .busy_ranks = 2,
                  .kind = kind},
          .forward = times(forward),
          .backward = times(2 * forward),
          .update = times(1e-4),
          .parameters = 198272,
          .activation = Bytes(1234.0),
          .output = Bytes(32768.0 * micro_batch),
          .workspace = Bytes(777.0)};
}

LinkMeasurement link(LinkOperation operation, int ranks, double bytes, double seconds) {
  return {.from_gpu = "cpu",
          .to_gpu = "cpu",
          .scope = LinkScope::intra_node,
          .operation = operation,
          .ranks = ranks,
          .message = Bytes(bytes),
          .time = times(seconds)};
}

ProfileData sample() {
  return {.provenance = {.tool = "sailor-profile 0.1.0",
                         .command = "sailor-profile layers --model tiny-gpt",
                         .host = "nid001,nid002",
                         .device = "AMD EPYC 7763",
                         .versions = "OpenBLAS 0.3.21",
                         .date = "2026-01-02T03:04:05Z",
                         .source = "Müller et al. 2025"},
          .layers = {layer(1, LayerKind::block, 0.001), layer(2, LayerKind::block, 0.0018),
                     layer(1, LayerKind::head, 0.003)},
          .links = {link(LinkOperation::send_receive, 2, 1024, 1e-6), link(LinkOperation::send_receive, 2, 16384, 4e-6),
                    link(LinkOperation::all_reduce, 4, 1024, 8e-6)},
          .processes = {{.gpu = "cpu", .framework = "sailor", .base_memory = Bytes(5e7)}}};
}

void expect_equal(const TimeStatistics& a, const TimeStatistics& b) {
  EXPECT_EQ(a.median, b.median);
  EXPECT_EQ(a.p10, b.p10);
  EXPECT_EQ(a.p90, b.p90);
  EXPECT_EQ(a.samples, b.samples);
}

void expect_equal(const ProfileData& a, const ProfileData& b) {
  EXPECT_EQ(a.provenance.tool, b.provenance.tool);
  EXPECT_EQ(a.provenance.command, b.provenance.command);
  EXPECT_EQ(a.provenance.host, b.provenance.host);
  EXPECT_EQ(a.provenance.device, b.provenance.device);
  EXPECT_EQ(a.provenance.versions, b.provenance.versions);
  EXPECT_EQ(a.provenance.date, b.provenance.date);
  EXPECT_EQ(a.provenance.source, b.provenance.source);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].key, b.layers[i].key);
    expect_equal(a.layers[i].forward, b.layers[i].forward);
    expect_equal(a.layers[i].backward, b.layers[i].backward);
    expect_equal(a.layers[i].update, b.layers[i].update);
    EXPECT_EQ(a.layers[i].parameters, b.layers[i].parameters);
    EXPECT_EQ(a.layers[i].activation, b.layers[i].activation);
    EXPECT_EQ(a.layers[i].output, b.layers[i].output);
    EXPECT_EQ(a.layers[i].workspace, b.layers[i].workspace);
  }
  ASSERT_EQ(a.links.size(), b.links.size());
  for (std::size_t i = 0; i < a.links.size(); ++i) {
    EXPECT_EQ(a.links[i].from_gpu, b.links[i].from_gpu);
    EXPECT_EQ(a.links[i].to_gpu, b.links[i].to_gpu);
    EXPECT_EQ(a.links[i].scope, b.links[i].scope);
    EXPECT_EQ(a.links[i].operation, b.links[i].operation);
    EXPECT_EQ(a.links[i].ranks, b.links[i].ranks);
    EXPECT_EQ(a.links[i].message, b.links[i].message);
    expect_equal(a.links[i].time, b.links[i].time);
  }
  ASSERT_EQ(a.processes.size(), b.processes.size());
  for (std::size_t i = 0; i < a.processes.size(); ++i) {
    EXPECT_EQ(a.processes[i].gpu, b.processes[i].gpu);
    EXPECT_EQ(a.processes[i].framework, b.processes[i].framework);
    EXPECT_EQ(a.processes[i].base_memory, b.processes[i].base_memory);
  }
}

std::string error_of(const fs::path& path) {
  auto data = load_profile(path);
  return data ? "no error" : data.error().message();
}

std::string content_of(const fs::path& path) { return *read_text_file(path); }
void put(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

TEST_F(ProfileStore, ReadsBackWhatWasWritten) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  auto data = load_profile(file("a.h5"));
  ASSERT_TRUE(data) << data.error().message();
  expect_equal(*data, sample());
}

TEST_F(ProfileStore, EmptyTablesAndTextsReadBack) {
  ASSERT_TRUE(save_profile({}, file("a.h5")));
  auto data = load_profile(file("a.h5"));
  ASSERT_TRUE(data) << data.error().message();
  expect_equal(*data, {});
}

TEST_F(ProfileStore, LongCommandLinesAreCutNotRefused) {
  ProfileData data = sample();
  data.provenance.command = std::string(200000, 'x');
  ASSERT_TRUE(save_profile(data, file("a.h5")));
  auto again = load_profile(file("a.h5"));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(again->provenance.command.ends_with("x [cut]"));
}

TEST_F(ProfileStore, AddsOneFilePerSessionAndCreatesTheFolder) {
  const fs::path store = folder_ / "deep" / "store";
  auto first = add_to_store(store, sample());
  auto second = add_to_store(store, sample());
  ASSERT_TRUE(first) << first.error().message();
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_NE(*first, *second);
  EXPECT_TRUE(first->filename().string().starts_with("20260102T030405Z-")) << *first;
  auto data = load_profile(store);
  ASSERT_TRUE(data) << data.error().message();
  expect_equal(*data, sample());
}

TEST_F(ProfileStore, DatesAFileThatHasNoDate) {
  ProfileData undated = sample();
  undated.provenance.date.clear();
  ASSERT_TRUE(add_to_store(folder_, undated));
  auto data = load_profile(folder_);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->provenance.date.size(), std::string("2026-01-02T03:04:05.678Z").size());
}

TEST_F(ProfileStore, NewestMeasurementOfAKeyWinsAndOthersAreKept) {
  ProfileData newer = sample();
  newer.provenance.date = "2026-03-01T00:00:00Z";
  newer.provenance.host = "newer";
  newer.layers = {layer(1, LayerKind::block, 0.5)};
  newer.links = {link(LinkOperation::send_receive, 2, 1024, 9e-6)};
  newer.processes.front().base_memory = Bytes(6e7);
  // The newer one has the name that sorts first: dates decide, not names.
  ASSERT_TRUE(save_profile(newer, file("a.h5")));
  ASSERT_TRUE(save_profile(sample(), file("b.h5")));
  auto data = load_profile(folder_);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->provenance.host, "newer");
  ASSERT_EQ(data->layers.size(), 3U);
  EXPECT_EQ(data->layers[0].forward.median, Seconds(0.5));
  EXPECT_EQ(data->layers[1].forward.median, Seconds(0.0018));
  ASSERT_EQ(data->links.size(), 3U);
  EXPECT_EQ(data->links[0].time.median, Seconds(9e-6));
  ASSERT_EQ(data->processes.size(), 1U);
  EXPECT_EQ(data->processes[0].base_memory, Bytes(6e7));
}

TEST_F(ProfileStore, OfOneDateTheLaterNameWins) {
  ProfileData other = sample();
  other.layers = {layer(1, LayerKind::block, 0.5)};
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  ASSERT_TRUE(save_profile(other, file("b.h5")));
  EXPECT_EQ(load_profile(folder_)->layers[0].forward.median, Seconds(0.5));
}

TEST_F(ProfileStore, MissingAndEmptyStoresAreNotFound) {
  EXPECT_EQ(error_of(folder_ / "none"), "profile store '" + (folder_ / "none").string() +
                                            "' does not exist; measure one with sailor-profile, or name another");
  EXPECT_EQ(error_of(folder_),
            "profile store '" + folder_.string() + "' holds no profile (*.h5); measure one with sailor-profile");
}

TEST_F(ProfileStore, SkipsOtherFilesTemporaryFilesAndRuns) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  ASSERT_TRUE(save_run({}, file("run.h5")));
  put(file("README.md"), "text");
  put(file(".b.h5.host.12.tmp"), "half a file");
  put(file(".hidden.h5"), "half a file");
  auto data = load_profile(folder_);
  ASSERT_TRUE(data) << data.error().message();
  expect_equal(*data, sample());
}

TEST_F(ProfileStore, TextFileIsNamedAndRefused) {
  put(file("a.h5"), "layers: 12\n");
  const std::string expected = "file '" + file("a.h5").string() + "': it is not an HDF5 file";
  EXPECT_EQ(error_of(file("a.h5")), expected);
  EXPECT_EQ(error_of(folder_), expected);
  put(file("a.h5"), "");
  EXPECT_EQ(error_of(file("a.h5")), expected);
}

TEST_F(ProfileStore, FolderInPlaceOfAFileIsRefused) {
  fs::create_directory(file("a.h5"));
  EXPECT_EQ(error_of(folder_), "'" + file("a.h5").string() + "' is not a regular file");
}

TEST_F(ProfileStore, TruncatedFilesAreRefusedAtEveryLength) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  const std::string content = content_of(file("a.h5"));
  for (std::size_t length = 0; length < content.size(); length += 1 + content.size() / 100) {
    put(file("a.h5"), content.substr(0, length));
    const std::string error = error_of(file("a.h5"));
    EXPECT_TRUE(error.find("not an HDF5 file") != std::string::npos || error.find("truncated") != std::string::npos)
        << length << ": " << error;
    EXPECT_NE(error.find(file("a.h5").string()), std::string::npos) << error;
  }
}

TEST_F(ProfileStore, FlippedBitsAreFoundOrHarmless) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  const std::string content = content_of(file("a.h5"));
  std::mt19937 random(7);  // NOLINT: the same flips in every run
  int unnoticed = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string damaged = content;
    const int flips = 1 + round % 3;
    for (int flip = 0; flip < flips; ++flip)
      damaged[random() % damaged.size()] ^= static_cast<char>(1U << (random() % 8));
    put(file("a.h5"), damaged);
    auto data = load_profile(file("a.h5"));
    if (data) {
      // Checksums leave only flips in unused space: what is read is right.
      expect_equal(*data, sample());
      ++unnoticed;
    }
  }
  EXPECT_LT(unnoticed, 1500);
}

TEST_F(ProfileStore, RandomBytesAfterTheSignatureAreRefused) {
  std::mt19937 random(11);  // NOLINT
  for (int round = 0; round < 200; ++round) {
    std::string content = "\x89HDF\r\n\x1a\n";
    content += static_cast<char>(round % 4);  // superblock versions 0 to 3
    for (int i = 0; i < 400; ++i) content += static_cast<char>(random());
    put(file("a.h5"), content);
    EXPECT_FALSE(load_profile(file("a.h5")));
  }
}

TEST_F(ProfileStore, RefusesToWriteWhatItCouldNotRead) {
  auto error_with = [&](auto change) {
    ProfileData data = sample();
    change(data);
    auto saved = save_profile(data, file("a.h5"));
    EXPECT_FALSE(fs::exists(file("a.h5")));
    return saved ? "no error" : saved.error().message();
  };
  EXPECT_EQ(error_with([](ProfileData& data) { data.layers[1].forward.median = Seconds(std::nan("")); }),
            "row 1 of table 'layers', field 'forward_median_s': nan is not finite");
  EXPECT_EQ(error_with([](ProfileData& data) { data.links[0].message = Bytes(-1.0); }),
            "row 0 of table 'links', field 'message_bytes': -1 is negative");
  EXPECT_EQ(error_with([](ProfileData& data) { data.processes[0].gpu.clear(); }),
            "row 0 of table 'processes', field 'gpu': the text is empty");
  EXPECT_EQ(error_with([](ProfileData& data) { data.layers[0].key.micro_batch = 0; }),
            "row 0 of table 'layers', field 'micro_batch': 0 is out of range");
}

TEST_F(ProfileStore, FailedWriterLeavesTheOldFile) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  ProfileData bad = sample();
  bad.layers[0].parameters = -1;
  EXPECT_FALSE(save_profile(bad, file("a.h5")));
  auto data = load_profile(file("a.h5"));
  ASSERT_TRUE(data);
  expect_equal(*data, sample());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(ProfileStore, StoreThatIsAFileCannotBeAddedTo) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  auto added = add_to_store(file("a.h5"), sample());
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::io);
}

TEST_F(ProfileStore, KilledWriterNeverHarmsTheStore) {
  const fs::path fixed = file("fixed.h5");
  ASSERT_TRUE(save_profile(sample(), fixed));
  ProfileData large = sample();
  for (int i = 0; i < 2000; ++i) large.layers.push_back(layer(3 + i, LayerKind::block, 0.001));
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) {  // until killed; one file that is replaced, and new ones
        (void)save_profile(large, fixed);
        (void)add_to_store(folder_, sample());
      }
    }
    ::usleep(static_cast<useconds_t>(3000 + 1700 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    auto data = load_profile(folder_);
    ASSERT_TRUE(data) << "after kill " << round << ": " << data.error().message();
    EXPECT_GE(data->layers.size(), 3U);
  }
}

// ---- Foreign and future files, written with the store's own HDF5 layer.

class ForeignFile : public ProfileStore {
 protected:
  /// What load_profile() says of a file that `fill` writes, without the name of the file.
  std::string error_about(const std::function<void(hdf5::FileWriter&)>& fill) {
    auto writer = hdf5::FileWriter::create(file("a.h5"));
    if (!writer) return writer.error().message();
    fill(*writer);
    if (auto closed = writer->close(); !closed) return closed.error().message();
    const std::string error = error_of(file("a.h5"));
    const std::string prefix = "file '" + file("a.h5").string() + "': ";
    return error.starts_with(prefix) ? error.substr(prefix.size()) : "without file name: " + error;
  }
  static void header(hdf5::FileWriter& writer, std::int64_t version = 1) {
    (void)writer.attribute("schema_version", version);
    (void)writer.attribute("kind", std::string("sailor-profile"));
    for (const char* name : {"tool", "command", "host", "device", "versions", "date", "source"})
      (void)writer.attribute(name, std::string("x"));
  }
  static void empty_table(hdf5::FileWriter& writer, const std::string& name) {
    (void)writer.table(name, {{"unused", hdf5::ColumnType::integer, "1"}}, 0, {});
  }
};

TEST_F(ForeignFile, WithoutKindIsNotOurs) {
  EXPECT_EQ(error_about([](auto&) {}), "it is no file of Sailor's: it has no attribute 'kind'");
  EXPECT_EQ(error_about([](auto& writer) { (void)writer.attribute("kind", std::string("keras")); }),
            "it is no file of Sailor's: its kind is 'keras'");
}

TEST_F(ForeignFile, OfALaterSchemaAsksForANewerSailor) {
  EXPECT_EQ(error_about([](auto& writer) { header(writer, 2); }),
            "its schema_version is 2 but this Sailor reads 1; use a newer Sailor");
}

TEST_F(ForeignFile, WithoutSchemaVersionOrWithAnotherTypeIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) { (void)writer.attribute("kind", std::string("sailor-profile")); }),
            "attribute 'schema_version' is missing");
  EXPECT_EQ(error_about([](auto& writer) {
              (void)writer.attribute("kind", std::string("sailor-profile"));
              (void)writer.attribute("schema_version", std::string("1"));
            }),
            "attribute 'schema_version' is no integer");
}

TEST_F(ForeignFile, WithoutADatasetIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) { header(writer); }), "dataset '/layers' is missing");
}

TEST_F(ForeignFile, WithADatasetThatIsNoTableIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) {
              header(writer);
              (void)writer.text("layers", "none");
            }),
            "dataset '/layers' is no table (compound type)");
}

TEST_F(ForeignFile, WithoutAFieldIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) {
              header(writer);
              empty_table(writer, "layers");
            }),
            "dataset '/layers' has no field 'model'");
}

TEST_F(ForeignFile, WithAFieldOfAnotherTypeIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) {
              header(writer);
              (void)writer.table("layers", {{"model", hdf5::ColumnType::number, "1"}}, 1,
                                 [](std::size_t, std::size_t) -> hdf5::Cell { return 1.0; });
            }),
            "field 'model' of dataset '/layers' is no fixed-length string");
}

/// A links table with one row, whose cell `field` is `value`.
void one_link(hdf5::FileWriter& writer, const std::string& field, const hdf5::Cell& value) {
  using enum hdf5::ColumnType;
  const std::vector<hdf5::ColumnInfo> columns{{"from_gpu", text, "1"},        {"to_gpu", text, "1"},
                                              {"scope", text, "1"},           {"operation", text, "1"},
                                              {"ranks", integer, "1"},        {"message_bytes", number, "byte"},
                                              {"time_median_s", number, "s"}, {"time_p10_s", number, "s"},
                                              {"time_p90_s", number, "s"},    {"time_samples", integer, "1"}};
  const std::vector<hdf5::Cell> cells{"cpu", "cpu", "intra_node", "send_receive", std::int64_t{2}, 1.0,
                                      1.0,   1.0,   1.0,          std::int64_t{9}};
  (void)writer.table("links", columns, 1, [&](std::size_t, std::size_t column) {
    return columns[column].name == field ? value : cells[column];
  });
}

TEST_F(ForeignFile, WithImpossibleValuesIsRefusedByRowAndField) {
  // The layers come first; without rows they are right.
  auto error_with = [&](const std::string& field, const hdf5::Cell& value) {
    return error_about([&](auto& writer) {
      header(writer);
      using enum hdf5::ColumnType;
      std::vector<hdf5::ColumnInfo> columns;
      for (const char* name : {"model", "gpu", "precision", "recompute", "layer_kind"})
        columns.push_back({name, text, "1"});
      for (const char* name : {"tensor_parallel", "micro_batch", "sequence_length", "busy_ranks", "forward_samples",
                               "backward_samples", "update_samples", "parameters"})
        columns.push_back({name, integer, "1"});
      for (const char* pass : {"forward", "backward", "update"})
        for (const char* what : {"_median_s", "_p10_s", "_p90_s"})
          columns.push_back({std::string(pass) + what, number, "s"});
      for (const char* name : {"activation_bytes", "output_bytes", "workspace_bytes"})
        columns.push_back({name, number, "byte"});
      (void)writer.table("layers", columns, 0, {});
      one_link(writer, field, value);
      (void)writer.table("processes",
                         {{"gpu", text, "1"}, {"framework", text, "1"}, {"base_memory_bytes", number, "byte"}}, 0, {});
    });
  };
  EXPECT_EQ(error_with("none", 0.0), "without file name: no error");
  EXPECT_EQ(error_with("time_median_s", std::nan("")),
            "dataset '/links', row 0, field 'time_median_s': nan is not finite");
  EXPECT_EQ(error_with("message_bytes", -5.0), "dataset '/links', row 0, field 'message_bytes': -5 is negative");
  EXPECT_EQ(error_with("message_bytes", 1e30),
            "dataset '/links', row 0, field 'message_bytes': 1e+30 is absurdly large");
  EXPECT_EQ(error_with("ranks", std::int64_t{1}), "dataset '/links', row 0, field 'ranks': 1 is out of range");
  EXPECT_EQ(error_with("ranks", std::int64_t{1} << 40),
            "dataset '/links', row 0, field 'ranks': 1099511627776 is out of range");
  EXPECT_EQ(error_with("scope", "galactic"),
            "dataset '/links', row 0, field 'scope': 'galactic' is not one of: intra_node, inter_node");
  EXPECT_EQ(error_with("to_gpu", "\x1b[2J"),
            "dataset '/links', row 0, field 'to_gpu': the text has control characters");
}

TEST_F(ProfileStore, RunFileIsNoProfileAndTheOtherWayRound) {
  ASSERT_TRUE(save_run({}, file("run.h5")));
  EXPECT_EQ(error_of(file("run.h5")),
            "file '" + file("run.h5").string() + "': it holds a run of sailor-train, no profile");
  ASSERT_TRUE(save_profile({}, file("profile.h5")));
  auto run = load_run(file("profile.h5"));
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().message(),
            "file '" + file("profile.h5").string() + "': it holds a profile, no run of sailor-train");
}

// ---- Runs

RunRecord sample_run() {
  RunRecord run;
  run.provenance = sample().provenance;
  run.plan_toml = "schema_version = 1\n# ünïcode\n";
  run.warm_up_iterations = 2;
  for (int i = 0; i < 5; ++i) run.iterations.push_back({.iteration = i, .loss = 5.0 - i, .time = Seconds(1.0 + i)});
  for (int i = 0; i < 3; ++i)
    run.ranks.push_back({.rank = i,
                         .pipeline = 0,
                         .stage = i,
                         .tensor_parallel_index = 0,
                         .host = "nid00" + std::to_string(i),
                         .peak_tensor_memory = Bytes(1000.0 + i),
                         .peak_resident_memory = Bytes(9000.0 - i)});
  return run;
}

TEST_F(ProfileStore, RunReadsBack) {
  ASSERT_TRUE(save_run(sample_run(), file("run.h5")));
  auto run = load_run(file("run.h5"));
  ASSERT_TRUE(run) << run.error().message();
  EXPECT_EQ(run->plan_toml, sample_run().plan_toml);
  EXPECT_EQ(run->warm_up_iterations, 2);
  ASSERT_EQ(run->iterations.size(), 5U);
  EXPECT_EQ(run->iterations[4].iteration, 4);
  EXPECT_EQ(run->iterations[4].loss, 1.0);
  EXPECT_EQ(run->iterations[4].time, Seconds(5.0));
  ASSERT_EQ(run->ranks.size(), 3U);
  EXPECT_EQ(run->ranks[2].host, "nid002");
  EXPECT_EQ(run->ranks[2].stage, 2);
  EXPECT_EQ(run->ranks[2].peak_tensor_memory, Bytes(1002.0));
  EXPECT_EQ(run->provenance.host, "nid001,nid002");
  // Iterations 2, 3, 4 took 3, 4, 5 s.
  EXPECT_EQ(run->iteration_time().median, Seconds(4.0));
  EXPECT_EQ(run->iteration_time().samples, 3);
  EXPECT_EQ(run->peak_resident_memory(), Bytes(9000.0));
}

TEST_F(ProfileStore, RunThatDivergedIsKept) {
  RunRecord run = sample_run();
  run.iterations[4].loss = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(save_run(run, file("run.h5")));
  auto again = load_run(file("run.h5"));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(std::isinf(again->iterations[4].loss));
}

TEST_F(ProfileStore, DamagedRunsAreRefused) {
  ASSERT_TRUE(save_run(sample_run(), file("run.h5")));
  const std::string content = content_of(file("run.h5"));
  put(file("run.h5"), content.substr(0, content.size() / 2));
  EXPECT_FALSE(load_run(file("run.h5")));
  EXPECT_FALSE(load_run(file("none.h5")));
}

TEST(RunRecord, FewerIterationsThanWarmUpHaveNoTime) {
  RunRecord run = sample_run();
  run.warm_up_iterations = 9;
  EXPECT_EQ(run.iteration_time().samples, 0);
  EXPECT_EQ(run.iteration_time().median, Seconds(0.0));
}

// ---- Look-ups

LayerKey block_key(int micro_batch) { return layer(micro_batch, LayerKind::block, 0).key; }

TEST(ProfileLookup, FindsALayerByItsKey) {
  const Profile profile(sample());
  auto found = profile.layer(block_key(2));
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->forward.median, Seconds(0.0018));
}

TEST(ProfileLookup, TakesTheNearestBusyRanksAtOrAboveElseBelow) {
  ProfileData data;
  for (const int busy : {1, 2, 4}) {
    LayerMeasurement row = layer(1, LayerKind::block, 0.001 * busy);
    row.key.busy_ranks = busy;
    data.layers.push_back(row);
    row.key.kind = LayerKind::head;
    row.forward = times(1.0);
    data.layers.push_back(row);
  }
  const Profile profile(data);
  auto forward = [&](int busy) {
    LayerKey key = block_key(1);
    key.busy_ranks = busy;
    return profile.layer(key)->forward.median.value();
  };
  EXPECT_DOUBLE_EQ(forward(1), 0.001);
  EXPECT_DOUBLE_EQ(forward(2), 0.002);
  EXPECT_DOUBLE_EQ(forward(3), 0.004);
  EXPECT_DOUBLE_EQ(forward(16), 0.004);
}

TEST(ProfileLookup, MissingLayerSaysWhatIsThere) {
  const Profile profile(sample());
  auto message = [&](auto change) {
    LayerKey key = block_key(1);
    change(key);
    return profile.layer(key).error().message();
  };
  EXPECT_EQ(
      message([](LayerKey& key) { key.micro_batch = 3; }),
      "the profile has no layers of micro-batch 3 for model tiny-gpt, GPU cpu, precision fp32, recompute none, "
      "tensor parallel 1, sequence length 64 (micro-batches there: 1, 2); measure them with sailor-profile layers");
  EXPECT_EQ(
      message([](LayerKey& key) { key.model = "opt-30b"; }),
      "the profile has no layers of model opt-30b (models there: tiny-gpt); measure them with sailor-profile layers");
  EXPECT_EQ(message([](LayerKey& key) { key.kind = LayerKind::embedding; }),
            "the profile has no layers of layer kind embedding for model tiny-gpt, GPU cpu, precision fp32, recompute "
            "none, tensor parallel 1, sequence length 64, micro-batch 1 (layer kinds there: block, head); measure them "
            "with sailor-profile layers");
  EXPECT_EQ(Profile(ProfileData{}).layer(block_key(1)).error().message(),
            "the profile has no layer measurements; run sailor-profile layers");
}

TEST(ProfileLookup, MessageTimeIsInterpolatedInLogarithms) {
  // 1 us at 1 KiB, 4 us at 16 KiB: a slope of log 4 / log 16 = 1/2, so 4 KiB takes 1 us * 4^(1/2) = 2 us.
  const Profile profile(sample());
  auto time = [&](double bytes) {
    return profile.send_time("cpu", "cpu", LinkScope::intra_node, Bytes(bytes))->value();
  };
  EXPECT_NEAR(time(4096), 2e-6, 1e-15);
  EXPECT_NEAR(time(1024), 1e-6, 1e-15);
  EXPECT_NEAR(time(16384), 4e-6, 1e-15);
}

TEST(ProfileLookup, MessageTimeIsClampedOutsideTheMeasuredSizes) {
  const Profile profile(sample());
  auto time = [&](double bytes) {
    return profile.send_time("cpu", "cpu", LinkScope::intra_node, Bytes(bytes))->value();
  };
  EXPECT_DOUBLE_EQ(time(1), 1e-6);  // the smallest message's time
  EXPECT_DOUBLE_EQ(time(0), 1e-6);
  EXPECT_DOUBLE_EQ(time(16384.0 * 8), 32e-6);  // the largest message's bandwidth
}

TEST(ProfileLookup, LinkIsUsedInBothDirections) {
  ProfileData data;
  data.links = {link(LinkOperation::send_receive, 2, 1024, 1e-6)};
  data.links[0].to_gpu = "A100-40";
  const Profile profile(data);
  EXPECT_TRUE(profile.send_time("cpu", "A100-40", LinkScope::intra_node, kib));
  EXPECT_TRUE(profile.send_time("A100-40", "cpu", LinkScope::intra_node, kib));
  EXPECT_EQ(profile.send_time("cpu", "cpu", LinkScope::inter_node, kib).error().message(),
            "the profile has no send_receive between cpu and cpu, inter_node (there: cpu - A100-40 intra_node); "
            "measure it with sailor-profile links");
}

TEST(ProfileLookup, AllReduceOverOtherRankCountsFollowsTheRing) {
  // Measured over 4 ranks: 8 us. The ring moves 2(n-1)/n of the message: 1.5 for 4 ranks, 1 for 2, 1.75 for 8.
  const Profile profile(sample());
  auto time = [&](int ranks) { return profile.all_reduce_time("cpu", LinkScope::intra_node, ranks, kib)->value(); };
  EXPECT_DOUBLE_EQ(time(4), 8e-6);
  EXPECT_DOUBLE_EQ(time(2), 8e-6 / 1.5);
  EXPECT_DOUBLE_EQ(time(8), 8e-6 / 1.5 * 1.75);
  EXPECT_DOUBLE_EQ(time(1), 0.0);
  EXPECT_EQ(profile.all_reduce_time("cpu", LinkScope::inter_node, 2, kib).error().message(),
            "the profile has no all_reduce between cpu, inter_node (there: cpu intra_node over 4 ranks); "
            "measure it with sailor-profile links");
}

TEST(ProfileLookup, MeasuredValuesAreListedAscending) {
  const Profile profile(sample());
  EXPECT_EQ(profile.micro_batches("tiny-gpt", "cpu", Precision::fp32, 1, 64), (std::vector{1, 2}));
  EXPECT_EQ(profile.tensor_parallel_degrees("tiny-gpt", "cpu", Precision::fp32, 64), (std::vector{1}));
  EXPECT_EQ(profile.sequence_lengths("tiny-gpt", "cpu"), (std::vector{64}));
  EXPECT_TRUE(profile.micro_batches("tiny-gpt", "cpu", Precision::bf16, 1, 64).empty());
}

TEST(ProfileLookup, BaseMemoryIsKnownPerFramework) {
  const Profile profile(sample());
  EXPECT_EQ(profile.base_memory("cpu", "sailor"), Bytes(5e7));
  EXPECT_EQ(profile.base_memory("cpu", "megatron-deepspeed"), std::nullopt);
}

#ifdef SAILOR_HAVE_RAPIDCHECK

/// Any profile that may be written.
ProfileData any_profile() {
  auto amount = [] { return std::abs(static_cast<double>(*rc::gen::arbitrary<std::int32_t>())) * 1.25e-7; };
  auto name = [] { return *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '~'))); };
  auto any_times = [&] {
    return TimeStatistics{.median = Seconds(amount()),
                          .p10 = Seconds(amount()),
                          .p90 = Seconds(amount()),
                          .samples = *rc::gen::inRange<std::int64_t>(0, 1 << 20)};
  };
  ProfileData data;
  data.provenance.tool = name();
  data.provenance.date = name();
  const int layers = *rc::gen::inRange(0, 6);
  for (int i = 0; i < layers; ++i)
    data.layers.push_back(
        {.key = {.model = name(),
                 .gpu = name(),
                 .precision = *rc::gen::element(Precision::fp32, Precision::tf32, Precision::bf16),
                 .recompute = *rc::gen::element(Recompute::none, Recompute::selective, Recompute::full),
                 .tensor_parallel = *rc::gen::inRange(1, 1000),
                 .micro_batch = i + 1,  // all keys differ, so that none replaces another
                 .sequence_length = *rc::gen::inRange(1, 1 << 20),
                 .busy_ranks = *rc::gen::inRange(1, 1000),
                 .kind =
                     *rc::gen::element(LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head)},
         .forward = any_times(),
         .backward = any_times(),
         .update = any_times(),
         .parameters = *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 50),
         .activation = Bytes(amount()),
         .output = Bytes(amount()),
         .workspace = Bytes(amount())});
  const int links = *rc::gen::inRange(0, 6);
  for (int i = 0; i < links; ++i)
    data.links.push_back({.from_gpu = name(),
                          .to_gpu = name(),
                          .scope = *rc::gen::element(LinkScope::intra_node, LinkScope::inter_node),
                          .operation = *rc::gen::element(LinkOperation::send_receive, LinkOperation::all_reduce),
                          .ranks = i + 2,
                          .message = Bytes(amount()),
                          .time = any_times()});
  return data;
}

RC_GTEST_FIXTURE_PROP(ProfileStore, AnyProfileReadsBack, ()) {
  const ProfileData data = any_profile();
  RC_ASSERT(save_profile(data, file("a.h5")).has_value());
  auto again = load_profile(file("a.h5"));
  RC_ASSERT(again.has_value());
  expect_equal(*again, data);
  RC_ASSERT(!HasFailure());
}

RC_GTEST_PROP(ProfileLookup, LongerMessagesNeverTakeLess, ()) {
  ProfileData data;
  double seconds = 1e-6;
  double bytes = 64;
  const int points = *rc::gen::inRange(1, 8);
  for (int i = 0; i < points; ++i) {
    data.links.push_back(link(LinkOperation::send_receive, 2, bytes, seconds));
    bytes *= *rc::gen::inRange(2, 9);
    seconds *= 1.0 + *rc::gen::inRange(0, 100) / 10.0;
  }
  const Profile profile(data);
  const double small = *rc::gen::inRange(0, 1 << 24);
  const double large = small + *rc::gen::inRange(0, 1 << 24);
  const double small_time = profile.send_time("cpu", "cpu", LinkScope::intra_node, Bytes(small))->value();
  const double large_time = profile.send_time("cpu", "cpu", LinkScope::intra_node, Bytes(large))->value();
  RC_ASSERT(small_time <= large_time * (1.0 + 1e-12));
}

#endif

}  // namespace
}  // namespace sailor
