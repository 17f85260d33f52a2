// The text form of stores, the import of published measurements, and the measurements in the repository.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files.hpp"
#include "profile/import.hpp"
#include "profile/store.hpp"
#include "profile/tables.hpp"
#include "profile/text.hpp"
#include "tests/fakes/round_numbers.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor::profile_text_test {
namespace {

namespace fs = std::filesystem;

const fs::path profiles = fs::path(SAILOR_SOURCE_DIR) / "profiles";

const std::vector<Model>& all_models() {
  static const std::vector<Model> models = load_models(profiles / "models").value();
  return models;
}
const GpuCatalogue& all_gpus() {
  static const GpuCatalogue gpus = GpuCatalogue::load(profiles / "gpus.toml").value();
  return gpus;
}
ImportOptions importing() { return {.models = all_models(), .gpus = all_gpus()}; }

const Model& model_of(const std::string& name) {
  for (const Model& model : all_models())
    if (model.name == name) return model;
  ADD_FAILURE() << name << " is no model";
  return all_models().front();
}

std::string error_of(const std::string& text) {
  const auto data = parse_profile_toml(text, "x.toml");
  return data ? "no error" : data.error().message();
}

const std::string small_store = R"(schema_version = 2
kind = "sailor-profile-text"

[[sessions]]
id = "a"

[[layer_times]]
model = "tiny"
gpu = "cpu"
precision = "fp32"
tensor_parallel = 1
sequence_length = 128
columns = ["micro_batch", "layer_kind", "forward_s", "backward_s", "update_s"]
rows = [
  [1, "block", 0.1, 0.25, 3e-07],
  [2, "head", 0.2, 0.5, 0],
]
)";

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(ProfileText, WhatIsConstantStandsOnceAndTimesWithoutSpreadAreOneColumn) {
  const auto data = parse_profile_toml(small_store, "x.toml");
  ASSERT_TRUE(data) << data.error().message();
  ASSERT_EQ(data->layer_times.size(), 2U);
  EXPECT_EQ(data->layer_times[0].key.model, "tiny");
  EXPECT_EQ(data->layer_times[1].key.micro_batch, 2);
  EXPECT_EQ(data->layer_times[0].update, TimeStatistics::single(Seconds(3e-07)));
  EXPECT_EQ(to_toml(*data), small_store);
}

TEST(ProfileText, RefusesWhatIsWrongWithFileLineAndReason) {
  EXPECT_EQ(error_of(small_store), "no error");
  const auto expect = [](const std::string& what, const std::string& with, const std::string& message) {
    const std::string error = error_of(replaced(small_store, what, with));
    EXPECT_NE(error.find(message), std::string::npos) << error;
    EXPECT_TRUE(error.starts_with("x.toml:")) << error;
  };
  expect("\"forward_s\"", "\"foward_s\"", "has no column 'foward_s'; did you mean 'forward_s'?");
  expect("precision =", "precison =", "has no column 'precison'; did you mean 'precision'?");
  expect("[[layer_times]]", "[[layer_time]]", "unknown key 'layer_time'");
  expect("[1, \"block\", 0.1, 0.25, 3e-07]", "[1, \"block\", 0.1, 0.25]",
         "x.toml:15:3: the row has 4 values but there");
  expect("0.1,", "-0.1,", "x.toml:15:3: 'forward_s': -0.1 is negative");
  expect("0.1,", "nan,", "'forward_s': nan is not finite");
  expect("0.1,", "\"0.1\",", "'forward_s' must be a number, not a string");
  expect("0.1,", "true,", "'layer_times[0].rows' must be a number or a string, not a boolean");
  expect("[1, \"block\"", "[1.5, \"block\"", "'micro_batch' must be an integer, not a number");
  expect("[1, \"block\"", "[0, \"block\"", "'micro_batch': 0 is out of range");
  expect("\"block\", 0.1", "\"blok\", 0.1", "'layer_kind': 'blok' is not one of: embedding, block, final_norm, head");
  expect("gpu = \"cpu\"\n", "", "table 'layer_times' lacks the column 'gpu'");
  expect("tensor_parallel = 1", "tensor_parallel = 1\nmicro_batch = 1", "'micro_batch' is given twice");
  expect("tensor_parallel = 1", "tensor_parallel = 1\nforward_median_s = 1.0", "'forward_median_s' is given twice");
  expect("tensor_parallel = 1", "tensor_parallel = 1\nsession = 1", "is of session 1 but there are 1");
  expect("schema_version = 2", "schema_version = 3", "schema_version is 3 but this Sailor reads 2");
  expect("sailor-profile-text", "sailor-profile", "'kind' is 'sailor-profile'");
}

TEST(ProfileText, CsvQuotesWhatNeedsIt) {
  ProfileData data;
  data.sessions.push_back({.id = "a", .provenance = {.command = "say \"hi\", twice\n"}});
  const auto files = to_csv(data);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].first, "sessions");
  EXPECT_EQ(files[0].second,
            "id,tool,command,host,device,versions,date,source,lowest_clock_hz,highest_clock_hz,slowdown,notes\r\n"
            "a,,\"say \"\"hi\"\", twice\n\",,,,,,0,0,0,\r\n");
}

TEST(ProfileText, AMeasuredStoreReadsBackAsItWas) {
  const ProfileData data = testing::round_numbers_profile();
  const auto read = parse_profile_toml(to_toml(data, "two\nlines"), "x.toml");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, data);
}

#ifdef SAILOR_HAVE_RAPIDCHECK

/// A cell that the column takes: names of all enumerations are among the texts.
template <class Row>
void fill(const hdf5::Table<Row>& table, Row& row) {
  for (const auto& column : table.columns()) {
    if (column.info.name == "session") continue;
    for (int attempt = 0;; ++attempt) {
      RC_ASSERT(attempt < 1000);
      hdf5::Cell cell;
      switch (column.info.type) {
        case hdf5::ColumnType::integer:
          cell = *rc::gen::inRange<std::int64_t>(0, 100);
          break;
        case hdf5::ColumnType::number:
          cell = *rc::gen::oneOf(rc::gen::element(0.0, 1.0, 3e-7, 0.1, 1e17, -0.5, -0.0),
                                 rc::gen::map(rc::gen::arbitrary<double>(), [](double x) { return x * 1e-3; }));
          break;
        case hdf5::ColumnType::text:
          cell = std::string(*rc::gen::element<const char*>(
              "a", "two words", "\"quoted\", \\ and\tü", "fp32", "tf32", "bf16", "fp16", "none", "selective", "full",
              "embedding", "block", "final_norm", "head", "intra_node", "inter_node", "send_receive", "all_reduce",
              "all_gather", "reduce_scatter", "layer", "profiled_model"));
          break;
      }
      if (!column.set(&row, cell)) break;
    }
  }
}

RC_GTEST_PROP(ProfileText, AnyStoreGoesThroughTextAndHdf5WithoutLoss, ()) {
  ProfileData data;
  for (int i = 0; i < 2; ++i) {
    Session& session = data.sessions.emplace_back();
    fill(session_table(), session);
    session.id = fmt::format("session {}", i);
    session.provenance.date = fmt::format("2026-01-0{}T00:00:00.000Z", i + 1);
  }
  RC_ASSERT(for_each_table(data, [](const auto& table, auto& rows) -> Result<void> {
              rows.resize(*rc::gen::inRange<std::size_t>(0, 4));
              for (auto& row : rows) {
                fill(table, row);
                row.session = *rc::gen::inRange(0, 2);
              }
              return {};
            }).has_value());
  for (LayerTime& row : data.layer_times)
    if (*rc::gen::arbitrary<bool>()) row.forward = TimeStatistics::single(row.forward.median);
  data = merge_profiles({data});  // no row twice

  const std::string text = to_toml(data);
  const auto read = parse_profile_toml(text, "x.toml");
  if (!read) RC_FAIL(read.error().message() + "\n" + text);
  RC_ASSERT(*read == data);
  const fs::path path = fs::temp_directory_path() / fmt::format("sailor_text_{}.h5", ::getpid());
  RC_ASSERT(save_profile(*read, path).has_value());
  const auto stored = load_profile(path);
  fs::remove(path);
  RC_ASSERT(stored.has_value());
  RC_ASSERT(to_toml(*stored) == text);
}

#endif

// ---- Import

std::string import_error(const std::string& json, const ImportOptions& options = importing()) {
  const auto data = import_profile(json, "x.json", options);
  return data ? "no error" : data.error().message();
}

/// Times of all layers of opt-350m-sailor, forward = 1, but block `odd` = 2; none when negative.
std::string times_of_26_layers(int odd) {
  std::vector<std::string> layers;
  for (int i = 0; i < 26; ++i) layers.push_back(fmt::format("\"{}\": [{}, 0.5, 0.25]", i, i == odd ? 2.0 : 1.0));
  return fmt::format("{{{}}}", fmt::join(layers, ", "));
}

TEST(Import, EqualBlocksShareARowAndNamesBecomeOurs) {
  const std::string json = R"({"OPT-350": {"GH-96": {"4": {"2": )" + times_of_26_layers(1) + "}}}}";
  const auto data = import_profile(json, "x.json", importing());
  ASSERT_TRUE(data) << data.error().message();
  // embedding; block 1; blocks 2 to 24; head
  ASSERT_EQ(data->layer_times.size(), 4U);
  EXPECT_EQ(data->layer_times[0].key.model, "opt-350m-sailor");
  EXPECT_EQ(data->layer_times[0].key.gpu, "GH200-96");
  EXPECT_EQ(data->layer_times[0].key.sequence_length, 2048);
  EXPECT_EQ(data->layer_times[0].key.precision, Precision::tf32);
  EXPECT_EQ(data->layer_times[1].key.first_layer, 0);
  EXPECT_EQ(data->layer_times[1].forward.median, Seconds(2.0));
  EXPECT_EQ(data->layer_times[2].key.first_layer, 2);
  EXPECT_EQ(data->layer_times[2].key.kind, LayerKind::block);
  EXPECT_EQ(data->layer_times[3].key.kind, LayerKind::head);
}

TEST(Import, AFileOfOneModelAndGpuNeedsTheirNames) {
  const std::string json = R"({"4": {"2": )" + times_of_26_layers(-1) + "}}";
  EXPECT_NE(import_error(json).find("the file says neither model nor GPU; name them with --model and --gpu"),
            std::string::npos);
  ImportOptions named = importing();
  named.model = "OPT-350";
  named.gpu = "A100-40";
  EXPECT_EQ(import_error(json, named), "no error");
  // The upstream file of GPT-Neo on GH-96 is in truth that of OPT-350: 26 layers instead of 34.
  named.model = "GPT-Neo-2.7";
  EXPECT_NE(import_error(json, named).find("4 > 2: layer 26 is missing: gpt-neo-2.7b-sailor has 34 layers"),
            std::string::npos)
      << import_error(json, named);
}

TEST(Import, RefusesWhatItCannotRead) {
  const auto expect = [](const std::string& json, const std::string& message) {
    const std::string error = import_error(json);
    EXPECT_NE(error.find(message), std::string::npos) << error;
    EXPECT_TRUE(error.starts_with("x.json:")) << error;
  };
  const std::string times = times_of_26_layers(-1);
  expect(R"({"OPT-9": {"GH-96": {"4": {"2": )" + times + "}}}}",
         "model 'OPT-9' is not known; describe it in a file of");
  expect(R"({"OPT-350": {"TPU": {"4": {"2": )" + times + "}}}}", "'TPU'");
  expect(R"({"OPT-350": {"GH-96": {"four": {"2": )" + times + "}}}}", "'four' is no micro-batch");
  expect(R"({"OPT-350": {"GH-96": {"4": {"0": )" + times + "}}}}", "'0' is no number of tensor-parallel ranks");
  expect(R"({"OPT-350": {"GH-96": {"4": {"2": )" + replaced(times, "0.25", "-1") + "}}}}",
         "the update time: -1 is negative");
  expect(R"({"OPT-350": {"GH-96": {"4": {"2": )" + replaced(times, ", 0.25", "") + "}}}}",
         "OPT-350 > GH-96 > 4 > 2: the times of a layer are not [forward, backward, update]");
  expect(R"({"A100-40": {"2": [[1, 2, 3], 4]}, "A100-40": {}})", "the key 'A100-40' stands twice");
  expect(R"({"A100-40": {"3": [[1, 2, 3], 4]}})", "an odd number of GPUs cannot be half senders");
  expect(R"({"A100-40": {"2": [[1, 2], 4]}})", "a link is not [[a, b, c], bytes/s]");
  expect(R"({"a": {"b": 1}})", "has the form of no file that can be imported");
  expect(R"({"a": )", "line 1, column");
}

TEST(Import, InsideANodeHalfOfTheGpusSend) {
  const auto data = import_profile(R"({"A100-40": {"4": [[1, 2, 3], 4e9]}})", "x.json", importing());
  ASSERT_TRUE(data) << data.error().message();
  ASSERT_EQ(data->fits.size(), 1U);
  EXPECT_EQ(data->fits[0].key.from.ranks, 2);
  EXPECT_EQ(data->fits[0].key.to.ranks, 2);
  EXPECT_EQ(data->fits[0].key.scope, LinkScope::intra_node);
  // 1 MB: x = 0, the constant, 3 GB/s for two messages at once
  EXPECT_DOUBLE_EQ(data->fits[0].curve.time(Bytes(1e6), 2).value(), 2e6 / 3e9);
}

TEST(Import, LinksWithoutZonesThatRepeatOneInAZoneGo) {
  ProfileData data;
  const LinkEnd anywhere{.gpu = "A100-40", .ranks = 2};
  const LinkEnd here{.gpu = "A100-40", .zone = "z", .ranks = 2};
  LinkFit in_zone{.key = {.from = here, .to = here, .scope = LinkScope::inter_node}};
  in_zone.curve.constant = 3.0;
  LinkFit repeated = in_zone;
  repeated.key.from = repeated.key.to = anywhere;
  LinkFit different = repeated;
  different.key.from.ranks = different.key.to.ranks = 4;
  data.fits = {in_zone, repeated, different};
  EXPECT_EQ(remove_repeated_links(data), 1);
  EXPECT_EQ(data.fits, (std::vector<LinkFit>{in_zone, different}));
}

// ---- The figures that the repository carries

TEST(PublishedModels, HaveTheParametersThatWerePublished) {
  // params_floats at tensor parallel 1 of eth-easl/sailor, commit 16eebd4
  const std::map<std::string, std::map<LayerKind, std::int64_t>> published{
      {"opt-350m-sailor",
       {{LayerKind::embedding, 53608448}, {LayerKind::block, 12596224}, {LayerKind::head, 51513344}}},
      {"opt-30b-sailor",
       {{LayerKind::embedding, 375259136}, {LayerKind::block, 616655872}, {LayerKind::head, 360593408}}},
      {"gpt-neo-2.7b-sailor",
       {{LayerKind::embedding, 134021120}, {LayerKind::block, 78676480}, {LayerKind::head, 5120}}},
      {"llama-3-8b-sailor",
       {{LayerKind::embedding, 206045184},
        {LayerKind::block, 268496896},
        {LayerKind::final_norm, 4096},
        {LayerKind::head, 4096}}}};
  for (const auto& [name, kinds] : published)
    for (const auto& [kind, parameters] : kinds)
      EXPECT_EQ(model_of(name).parameters(kind), parameters) << name << " " << to_string(kind);
  EXPECT_EQ(model_of("llama-3-8b-sailor").layers(), 35);
  EXPECT_EQ(model_of("llama-3-8b-sailor").layer_kind(33), LayerKind::final_norm);
}

ProfileData published_text() {
  std::vector<ProfileData> parts;
  for (const char* folder : {"layers", "networks"})
    for (const auto& entry : fs::directory_iterator(profiles / folder)) {
      auto part = load_profile_text(entry.path());
      if (part)
        parts.push_back(*std::move(part));
      else
        ADD_FAILURE() << part.error().message();
    }
  return merge_profiles(std::move(parts));
}

std::string upstream_model(const std::string& name) { return model_of(name).aliases.front(); }
std::string upstream_gpu(const std::string& name) { return name == "GH200-96" ? "GH-96" : name; }

/// Every bit of a number.
std::string bits(double value) { return fmt::format("{:016x}", std::bit_cast<std::uint64_t>(value)); }
std::string bits(const LinkCurve& curve) {
  return fmt::format("{}|{}|{}|{}", bits(curve.quadratic), bits(curve.linear), bits(curve.constant),
                     bits(curve.largest_bandwidth.value()));
}

using Lines = std::set<std::string>;

/// The rows of all layers of each model: "what|layer" -> row.
template <class Row, class Name>
std::map<std::string, Row> unfolded(const std::vector<Row>& rows, Name name) {
  std::map<std::string, Row> layers;
  std::vector<Row> ascending = rows;
  std::stable_sort(ascending.begin(), ascending.end(),
                   [](const Row& a, const Row& b) { return a.key.first_layer < b.key.first_layer; });
  for (const Row& row : ascending) {
    const Model& model = model_of(row.key.model);
    for (int i = row.key.first_layer; i < model.layers(); ++i)
      if (model.layer_kind(i) == row.key.kind) layers.insert_or_assign(fmt::format("{}|{}", name(row.key), i), row);
  }
  return layers;
}

Lines time_lines(const ProfileData& data) {
  Lines lines;
  const auto name = [](const LayerKey& key) {
    return fmt::format("{}|{}|{}|{}", upstream_model(key.model), upstream_gpu(key.gpu), key.micro_batch,
                       key.tensor_parallel);
  };
  for (const auto& [layer, row] : unfolded(data.layer_times, name))
    lines.insert(fmt::format("{}|{}|{}|{}", layer, bits(row.forward.median.value()), bits(row.backward.median.value()),
                             bits(row.update.median.value())));
  return lines;
}

/// Values in the input of a layer; the file counts them beside the bytes. The embedding's input are token and position
/// numbers of 8 bytes each and an attention mask of sequence x sequence 1-byte values; the head's input has, besides
/// values of 4 bytes, one label of 8 bytes per token.
double input_values(const LayerMemory& row) {
  const double sequence = row.key.sequence_length;
  if (row.key.kind == LayerKind::embedding) return row.input.value() - 2 * sequence * 7;
  if (row.key.kind == LayerKind::head) return row.input.value() / 4 - sequence;
  return row.input.value() / 4;
}

Lines memory_lines(const ProfileData& data) {
  Lines lines;
  const auto name = [](const LayerKey& key) {
    return fmt::format("{}|{}", upstream_model(key.model), key.tensor_parallel);
  };
  for (const auto& [layer, row] : unfolded(data.layer_memory, name))
    lines.insert(fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}", layer, row.parameters, row.output.value() / 4,
                             input_values(row), row.activation.value() / 4, row.parameters * 4, row.output.value(),
                             row.input.value(), row.activation.value()));
  return lines;
}

Lines link_lines(const ProfileData& data) {
  Lines lines;
  for (const LinkFit& fit : data.fits) {
    const LinkEnd& from = fit.key.from;
    const LinkEnd& to = fit.key.to;
    const std::string gpu = upstream_gpu(from.gpu);
    if (fit.key.scope == LinkScope::intra_node) {
      // The same in intra_node and in homogeneous.
      lines.insert(fmt::format("intra|{}|{}|{}", gpu, from.ranks + to.ranks, bits(fit.curve)));
      lines.insert(fmt::format("homogeneous|intra|{}|{}|{}", gpu, from.ranks + to.ranks, bits(fit.curve)));
      continue;
    }
    if (!from.zone.empty())
      lines.insert(fmt::format("inter|{}|{}|{}|{}|{}|{}|{}", from.zone, gpu, from.ranks, to.zone, upstream_gpu(to.gpu),
                               to.ranks, bits(fit.curve)));
    // homogeneous has the links inside one zone, and those that are known without a zone.
    const bool in_first_zone =
        from.zone == "us-central1-a" && to.zone == from.zone && to.gpu == from.gpu && to.ranks == from.ranks;
    if (in_first_zone || from.zone.empty())
      lines.insert(fmt::format("homogeneous|inter|{}|{}|{}", gpu, from.ranks, bits(fit.curve)));
  }
  return lines;
}

std::string checksum(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return content_hash(text);
}

// The checksums were computed from the published files by another program.
TEST(PublishedFigures, EveryNumberStandsInTheText) {
  const ProfileData data = published_text();
  EXPECT_EQ(time_lines(data).size(), 6493U);
  EXPECT_EQ(checksum(time_lines(data)), "9ec3112ddbb774dc");
  EXPECT_EQ(memory_lines(data).size(), 461U);
  EXPECT_EQ(checksum(memory_lines(data)), "24f87ec42169cced");
  EXPECT_EQ(checksum(link_lines(data)), "62162b58cf5312e3");
  for (const Session& session : data.sessions) EXPECT_FALSE(session.provenance.source.empty());
}

using Json = nlohmann::json;

std::string bits_of_curve(const Json& curve) {
  return fmt::format("{}|{}|{}|{}", bits(curve[0][0]), bits(curve[0][1]), bits(curve[0][2]), bits(curve[1]));
}

void expect_equal(const Lines& ours, const Lines& published) {
  std::vector<std::string> different;
  std::set_symmetric_difference(ours.begin(), ours.end(), published.begin(), published.end(),
                                std::back_inserter(different));
  EXPECT_FALSE(published.empty());
  EXPECT_TRUE(different.empty()) << different.size() << " lines, the first: " << different.front();
}

TEST(PublishedFigures, AreThoseOfThePublishedFiles) {
  const char* folder = std::getenv("SAILOR_PUBLISHED_DIR");
  if (folder == nullptr) GTEST_SKIP() << "SAILOR_PUBLISHED_DIR does not name the published files";
  const auto load = [&](const char* file) { return Json::parse(read_text_file(fs::path(folder) / file).value()); };
  const ProfileData data = published_text();

  const Json time_file = load("profiles/layer_times.json");
  const Json memory_file = load("profiles/layer_memory.json");
  const Json inter_file = load("networks/inter_node.json");
  const Json intra_file = load("networks/intra_node.json");
  const Json homogeneous_file = load("networks/homogeneous.json");
  Lines times;
  for (const auto& [model, gpus] : time_file.items())
    for (const auto& [gpu, micro_batches] : gpus.items())
      for (const auto& [micro_batch, degrees] : micro_batches.items())
        for (const auto& [degree, layers] : degrees.items())
          for (const auto& [layer, t] : layers.items())
            times.insert(fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", model, gpu, micro_batch, degree, layer, bits(t[0]),
                                     bits(t[1]), bits(t[2])));
  expect_equal(time_lines(data), times);

  Lines memory;
  for (const auto& [model, degrees] : memory_file.items())
    for (const auto& [degree, layers] : degrees.items())
      for (const auto& [layer, m] : layers.items()) {
        std::string line = fmt::format("{}|{}|{}", model, degree, layer);
        for (const char* unit : {"floats", "bytes"})
          for (const char* what : {"params", "act_output", "act_input", "act_mem"})
            line += fmt::format("|{}", m.at(fmt::format("{}_{}", what, unit)).get<std::int64_t>());
        memory.insert(line);
      }
  expect_equal(memory_lines(data), memory);

  Lines links;
  for (const auto& [zone, gpus] : inter_file.items())
    for (const auto& [gpu, counts] : gpus.items())
      for (const auto& [count, zones] : counts.items())
        for (const auto& [to_zone, to_gpus] : zones.items())
          for (const auto& [to_gpu, to_counts] : to_gpus.items())
            for (const auto& [to_count, curve] : to_counts.items())
              links.insert(fmt::format("inter|{}|{}|{}|{}|{}|{}|{}", zone, gpu, count, to_zone, to_gpu, to_count,
                                       bits_of_curve(curve)));
  for (const auto& [gpu, counts] : intra_file.items())
    for (const auto& [count, curve] : counts.items())
      links.insert(fmt::format("intra|{}|{}|{}", gpu, count, bits_of_curve(curve)));
  for (const auto& [scope, gpus] : homogeneous_file.items())
    for (const auto& [gpu, counts] : gpus.items())
      for (const auto& [count, curve] : counts.items())
        links.insert(fmt::format("homogeneous|{}|{}|{}|{}", scope, gpu, count, bits_of_curve(curve)));
  expect_equal(link_lines(data), links);
}

}  // namespace
}  // namespace sailor::profile_text_test
