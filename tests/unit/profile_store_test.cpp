// The profile store: written data is read back, and no content of a store makes a reader crash.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "profile/hdf5_file.hpp"
#include "profile/run_file.hpp"
#include "tests/unit/profile_samples.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

// HDF5 1.10 forgets memory when it refuses a damaged file. LeakSanitizer asks for this function by name.
extern "C" const char* __lsan_default_suppressions();                            // NOLINT
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }  // NOLINT

namespace sailor::profile_store_test {
namespace {

namespace fs = std::filesystem;

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
  data.sessions[0].provenance.command = std::string(200000, 'x');
  ASSERT_TRUE(save_profile(data, file("a.h5")));
  auto again = load_profile(file("a.h5"));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(again->sessions[0].provenance.command.ends_with("x [cut]"));
}

TEST_F(ProfileStore, AddsOneFilePerSessionAndCreatesTheFolder) {
  const fs::path store = folder_ / "deep" / "store";
  ProfileData data = sample();
  data.sessions[0].id.clear();  // the store gives a new one
  auto first = add_to_store(store, data);
  auto second = add_to_store(store, data);
  ASSERT_TRUE(first) << first.error().message();
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_NE(*first, *second);
  EXPECT_TRUE(first->filename().string().starts_with("20260102T030405Z-")) << *first;
  auto loaded = load_profile(store);
  ASSERT_TRUE(loaded) << loaded.error().message();
  ASSERT_EQ(loaded->sessions.size(), 2U);
  EXPECT_NE(loaded->sessions[0].id, loaded->sessions[1].id);
  EXPECT_EQ(loaded->sessions[1].id + ".h5", std::max(*first, *second).filename());
  EXPECT_EQ(loaded->layer_times.size(), sample().layer_times.size());  // the same keys
}

TEST_F(ProfileStore, DatesAFileThatHasNoDate) {
  ProfileData undated = sample();
  undated.sessions[0].provenance.date.clear();
  ASSERT_TRUE(add_to_store(folder_, undated));
  auto data = load_profile(folder_);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->sessions[0].provenance.date.size(), std::string("2026-01-02T03:04:05.678Z").size());
}

TEST_F(ProfileStore, NewestMeasurementOfAKeyWinsAndOthersAreKept) {
  ProfileData newer = sample();
  newer.sessions[0].provenance.date = "2026-03-01T00:00:00Z";
  newer.sessions[0].provenance.host = "newer";
  newer.sessions[0].id = "newer";
  newer.layer_times = {layer(1, LayerKind::block, 0.5)};
  newer.links = {link(LinkOperation::send_receive, 2, 1024, 9e-6)};
  newer.processes.front().base_memory = Bytes(6e7);
  // The newer one has the name that sorts first: dates decide, not names.
  ASSERT_TRUE(save_profile(newer, file("a.h5")));
  ASSERT_TRUE(save_profile(sample(), file("b.h5")));
  auto data = load_profile(folder_);
  ASSERT_TRUE(data) << data.error().message();
  ASSERT_EQ(data->sessions.size(), 2U);
  EXPECT_EQ(data->sessions[1].provenance.host, "newer");
  ASSERT_EQ(data->layer_times.size(), 3U);
  // Rows of the older session first.
  EXPECT_EQ(data->layer_times[0].forward.median, Seconds(0.0018));
  EXPECT_EQ(data->layer_times[2].forward.median, Seconds(0.5));
  ASSERT_EQ(data->links.size(), 3U);
  EXPECT_EQ(data->links[2].time.median, Seconds(9e-6));
  ASSERT_EQ(data->processes.size(), 1U);
  EXPECT_EQ(data->processes[0].base_memory, Bytes(6e7));
}

TEST_F(ProfileStore, OfOneDateTheLaterIdWins) {
  ProfileData other = sample();
  other.sessions[0].id = "tample";
  other.layer_times = {layer(1, LayerKind::block, 0.5)};
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  ASSERT_TRUE(save_profile(other, file("b.h5")));
  EXPECT_EQ(load_profile(folder_)->layer_times[2].forward.median, Seconds(0.5));
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

TEST_F(ProfileStore, FormatsWithoutChecksumsAreRefused) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  std::string content = content_of(file("a.h5"));
  content[8] = 0;  // version of the superblock
  put(file("a.h5"), content);
  EXPECT_EQ(error_of(file("a.h5")), "file '" + file("a.h5").string() +
                                        "': its metadata have no checksums (file format of HDF5 before 1.8); write it "
                                        "with the format of HDF5 1.10 (libver bounds, h5repack)");
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
  EXPECT_EQ(error_with([](ProfileData& data) { data.layer_times[1].forward.median = Seconds(std::nan("")); }),
            "row 1 of table 'layer_times', field 'forward_median_s': nan is not finite");
  EXPECT_EQ(error_with([](ProfileData& data) { data.links[0].message = Bytes(-1.0); }),
            "row 0 of table 'links', field 'message_bytes': -1 is negative");
  EXPECT_EQ(error_with([](ProfileData& data) { data.processes[0].gpu.clear(); }),
            "row 0 of table 'processes', field 'gpu': the text is empty");
  EXPECT_EQ(error_with([](ProfileData& data) { data.layer_times[0].key.micro_batch = 0; }),
            "row 0 of table 'layer_times', field 'micro_batch': 0 is out of range");
}

TEST_F(ProfileStore, FailedWriterLeavesTheOldFile) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  ProfileData bad = sample();
  bad.layer_memory[0].parameters = -1;
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

TEST_F(ProfileStore, AddingNeverReplacesAFile) {
  ProfileData data = sample();
  ASSERT_EQ(add_to_store(folder_, data), file("sample.h5"));
  ASSERT_EQ(add_to_store(folder_, data), file("sample.h5"));  // there already
  const std::string before = content_of(file("sample.h5"));
  data.layer_times = {layer(16, LayerKind::block, 0.5)};  // more of the same session
  const auto more = add_to_store(folder_, data);
  ASSERT_TRUE(more) << more.error().message();
  EXPECT_NE(*more, file("sample.h5"));
  EXPECT_EQ(content_of(file("sample.h5")), before);
  EXPECT_EQ(load_profile(folder_)->layer_times.size(), 4U);
  EXPECT_EQ(load_profile(folder_)->sessions.size(), 1U);
  // Ids that no file can be named after: all are kept, none is hidden.
  for (const char* id : {"a/b", "a b", "ab", "..", "///", ".hidden"}) {
    data.sessions[0].id = id;
    ASSERT_TRUE(add_to_store(folder_, data));
  }
  EXPECT_EQ(load_profile(folder_)->sessions.size(), 7U);
}

TEST_F(ProfileStore, LargeTablesOfLongTextsReadBack) {
  // Rows of more than 32 kB, and enough rows for several blocks.
  ProfileData data = sample();
  for (int i = 0; i < 40; ++i) {
    data.sessions.push_back(session("session" + std::to_string(i), "2026-02-01"));
    data.sessions.back().provenance.host = std::string(20000, 'n');
  }
  for (int i = 0; i < 5000; ++i) data.layer_times.push_back(layer(100 + i, LayerKind::block, 0.001 * i));
  ASSERT_TRUE(save_profile(data, file("a.h5")));
  const auto again = load_store_files(file("a.h5"));
  ASSERT_TRUE(again) << again.error().message();
  expect_equal(again->front().data, data);
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
  static void header(hdf5::FileWriter& writer, std::int64_t version = 2) {
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
  EXPECT_EQ(error_about([](auto& writer) { header(writer, 3); }),
            "its schema_version is 3 but this Sailor reads 2; use a newer Sailor");
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
  EXPECT_EQ(error_about([](auto& writer) { header(writer); }), "dataset '/sessions' is missing");
}

TEST_F(ForeignFile, WithADatasetThatIsNoTableIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) {
              header(writer);
              (void)writer.text("sessions", "none");
            }),
            "dataset '/sessions' is no table (compound type)");
}

TEST_F(ForeignFile, WithoutAFieldIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) {
              header(writer);
              empty_table(writer, "sessions");
            }),
            "dataset '/sessions' has no field 'id'");
}

TEST_F(ForeignFile, WithAFieldOfAnotherTypeIsRefused) {
  EXPECT_EQ(error_about([](auto& writer) {
              header(writer);
              (void)writer.table("sessions", {{"id", hdf5::ColumnType::number, "1"}}, 1,
                                 [](std::size_t, std::size_t) -> hdf5::Cell { return 1.0; });
            }),
            "field 'id' of dataset '/sessions' is no fixed-length string");
}

using Fields = std::vector<std::pair<hdf5::ColumnInfo, hdf5::Cell>>;

/// A table with one row (or none), whose cell `field` is `value`.
void write_table(hdf5::FileWriter& writer, const std::string& name, const Fields& fields, std::size_t rows,
                 const std::string& field = {}, const hdf5::Cell& value = {}) {
  std::vector<hdf5::ColumnInfo> columns;
  for (const auto& [column, cell] : fields) columns.push_back(column);
  (void)writer.table(name, columns, rows, [&](std::size_t, std::size_t column) {
    return columns[column].name == field ? value : fields[column].second;
  });
}

Fields text_fields(const std::vector<std::string>& names) {
  Fields fields;
  for (const std::string& name : names) fields.push_back({{name, hdf5::ColumnType::text, "1"}, "x"});
  return fields;
}
Fields number_fields(const std::vector<std::string>& names) {
  Fields fields;
  for (const std::string& name : names) fields.push_back({{name, hdf5::ColumnType::number, "1"}, 1.0});
  return fields;
}
Fields integer_fields(const std::vector<std::string>& names) {
  Fields fields;
  for (const std::string& name : names) fields.push_back({{name, hdf5::ColumnType::integer, "1"}, std::int64_t{0}});
  return fields;
}
Fields time_fields(const std::string& name) {
  Fields fields = integer_fields({name + "_samples"});
  for (const char* part : {"_median_s", "_p10_s", "_p90_s", "_low_s", "_high_s"})
    fields.push_back({{name + part, hdf5::ColumnType::number, "s"}, 1.0});
  return fields;
}
Fields all_of(const std::vector<Fields>& groups) {
  Fields all;
  for (const Fields& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

/// A profile as profiles/README.md describes it, with a session and a link; cell `field` of the link is `value`.
void one_link(hdf5::FileWriter& writer, const std::string& field, const hdf5::Cell& value) {
  write_table(writer, "sessions",
              all_of({text_fields({"id", "tool", "command", "host", "device", "versions", "date", "source"}),
                      number_fields({"lowest_clock_hz", "highest_clock_hz", "slowdown"})}),
              1);
  const Fields layer_key =
      all_of({text_fields({"model", "gpu", "precision", "recompute", "layer_kind"}),
              integer_fields({"tensor_parallel", "micro_batch", "sequence_length", "busy_ranks", "first_layer"})});
  const Fields of_session = integer_fields({"session"});
  write_table(
      writer, "layer_times",
      all_of({layer_key, time_fields("forward"), time_fields("backward"), time_fields("update"),
              time_fields("cold_forward"), time_fields("cold_backward"), text_fields({"update_scope"}), of_session}),
      0);
  write_table(
      writer, "layer_memory",
      all_of({layer_key, integer_fields({"parameters"}),
              number_fields({"activation_bytes", "output_bytes", "input_bytes", "workspace_bytes"}), of_session}),
      0);
  write_table(writer, "out_of_memory",
              all_of({layer_key, number_fields({"needed_bytes", "available_bytes"}), of_session}), 0);
  Fields link_key = all_of({text_fields({"from_gpu", "from_zone", "to_gpu", "to_zone", "scope", "operation"}),
                            integer_fields({"from_ranks", "to_ranks", "ranks"})});
  for (auto& [column, cell] : link_key) {
    if (column.name == "scope") cell = "intra_node";
    if (column.name == "operation") cell = "send_receive";
    if (column.type == hdf5::ColumnType::integer) cell = std::int64_t{2};
  }
  write_table(writer, "links", all_of({link_key, number_fields({"message_bytes"}), time_fields("time"), of_session}), 1,
              field, value);
  write_table(writer, "link_fits",
              all_of({link_key,
                      number_fields({"quadratic_gb_per_s", "linear_gb_per_s", "constant_gb_per_s",
                                     "largest_bandwidth_bytes_per_s", "smallest_message_bytes", "largest_message_bytes",
                                     "latency_s", "median_error", "largest_error"}),
                      integer_fields({"points"}), of_session}),
              0);
  write_table(writer, "processes",
              all_of({text_fields({"gpu", "framework"}), number_fields({"base_memory_bytes"}), of_session}), 0);
}

TEST_F(ForeignFile, WithImpossibleValuesIsRefusedByRowAndField) {
  auto error_with = [&](const std::string& field, const hdf5::Cell& value) {
    return error_about([&](auto& writer) {
      header(writer);
      one_link(writer, field, value);
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
  EXPECT_EQ(error_with("session", std::int64_t{1}), "a row of table 'links' is of session 1 but there are 1");
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
                          .low = Seconds(amount()),
                          .high = Seconds(amount()),
                          .samples = *rc::gen::inRange<std::int64_t>(0, 1 << 20)};
  };
  ProfileData data;
  data.sessions.push_back({.id = name()});
  data.sessions[0].provenance.tool = name();
  data.sessions[0].provenance.date = name();
  auto any_key = [&](int micro_batch) {
    return LayerKey{
        .model = name(),
        .gpu = name(),
        .precision = *rc::gen::elementOf(all_precisions),
        .recompute = *rc::gen::element(Recompute::none, Recompute::selective, Recompute::full),
        .tensor_parallel = *rc::gen::inRange(1, 1000),
        .micro_batch = micro_batch,
        .sequence_length = *rc::gen::inRange(1, 1 << 20),
        .busy_ranks = *rc::gen::inRange(1, 1000),
        .kind = *rc::gen::element(LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head),
        .first_layer = *rc::gen::inRange(0, 100)};
  };
  // All keys differ, so that none replaces another.
  const int layers = *rc::gen::inRange(0, 6);
  for (int i = 0; i < layers; ++i) {
    data.layer_times.push_back({.key = any_key(i + 1),
                                .forward = any_times(),
                                .backward = any_times(),
                                .update = any_times(),
                                .cold_forward = any_times(),
                                .cold_backward = any_times()});
    data.layer_memory.push_back({.key = any_key(i + 1),
                                 .parameters = *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 50),
                                 .activation = Bytes(amount()),
                                 .output = Bytes(amount()),
                                 .input = Bytes(amount()),
                                 .workspace = Bytes(amount())});
    data.out_of_memory.push_back({.key = any_key(i + 1), .needed = Bytes(amount()), .available = Bytes(amount())});
  }
  auto any_end = [&] { return LinkEnd{.gpu = name(), .zone = name(), .ranks = *rc::gen::inRange(1, 9)}; };
  const int links = *rc::gen::inRange(0, 6);
  for (int i = 0; i < links; ++i) {
    const LinkKey key{.from = any_end(),
                      .to = any_end(),
                      .scope = *rc::gen::element(LinkScope::intra_node, LinkScope::inter_node),
                      .operation = *rc::gen::element(LinkOperation::send_receive, LinkOperation::all_reduce,
                                                     LinkOperation::all_gather, LinkOperation::reduce_scatter),
                      .ranks = i + 2};
    data.links.push_back({.key = key, .message = Bytes(amount()), .time = any_times()});
    data.fits.push_back({.key = key,
                         .curve = {.quadratic = -amount(),
                                   .linear = amount(),
                                   .constant = amount(),
                                   .largest_bandwidth = BytesPerSecond(amount()),
                                   .smallest_message = Bytes(amount()),
                                   .largest_message = Bytes(amount()),
                                   .latency = Seconds(amount())},
                         .median_error = amount(),
                         .largest_error = amount(),
                         .points = i});
  }
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

#endif

}  // namespace
}  // namespace sailor::profile_store_test
