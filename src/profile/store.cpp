// The profile store on disk. Files are immutable and appear by rename, so reading needs no lock and a killed
// writer leaves at most a hidden temporary file, which readers skip.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <tuple>

#include "core/files.hpp"
#include "profile/profile.hpp"
#include "profile/provenance.hpp"
#include "profile/table.hpp"

namespace sailor {

namespace fs = std::filesystem;

namespace {

using hdf5::Column;
using hdf5::FileReader;
using hdf5::FileWriter;
using hdf5::IntegerLimits;
using hdf5::Table;

constexpr IntegerLimits count{.minimum = 1, .maximum = std::numeric_limits<int>::max()};

template <class Row, class Member>
void add_times(std::vector<Column<Row>>& columns, const std::string& name, Member member) {
  const std::string prefix = name + "_";
  columns.push_back(hdf5::quantity<Row>(
      prefix + "median_s", "s", [member](auto& row) -> auto& { return member(row).median; }));
  columns.push_back(hdf5::quantity<Row>(
      prefix + "p10_s", "s", [member](auto& row) -> auto& { return member(row).p10; }));
  columns.push_back(hdf5::quantity<Row>(
      prefix + "p90_s", "s", [member](auto& row) -> auto& { return member(row).p90; }));
  columns.push_back(
      hdf5::integer<Row>(prefix + "samples", [member](auto& row) -> auto& { return member(row).samples; }, {}));
}

const Table<LayerMeasurement>& layer_table() {
  static const Table<LayerMeasurement> table = [] {
    using Row = LayerMeasurement;
    std::vector<Column<Row>> columns{hdf5::text<Row>("model", SAILOR_MEMBER(key.model)),
                                     hdf5::text<Row>("gpu", SAILOR_MEMBER(key.gpu)),
                                     hdf5::choice<Row>("precision", SAILOR_MEMBER(key.precision), Precision::bf16),
                                     hdf5::choice<Row>("recompute", SAILOR_MEMBER(key.recompute), Recompute::full),
                                     hdf5::integer<Row>("tensor_parallel", SAILOR_MEMBER(key.tensor_parallel), count),
                                     hdf5::integer<Row>("micro_batch", SAILOR_MEMBER(key.micro_batch), count),
                                     hdf5::integer<Row>("sequence_length", SAILOR_MEMBER(key.sequence_length), count),
                                     hdf5::integer<Row>("busy_ranks", SAILOR_MEMBER(key.busy_ranks), count),
                                     hdf5::choice<Row>("layer_kind", SAILOR_MEMBER(key.kind), LayerKind::head)};
    add_times<Row>(columns, "forward", SAILOR_MEMBER(forward));
    add_times<Row>(columns, "backward", SAILOR_MEMBER(backward));
    add_times<Row>(columns, "update", SAILOR_MEMBER(update));
    columns.push_back(hdf5::integer<Row>("parameters", SAILOR_MEMBER(parameters), {}));
    columns.push_back(hdf5::quantity<Row>("activation_bytes", "byte", SAILOR_MEMBER(activation)));
    columns.push_back(hdf5::quantity<Row>("output_bytes", "byte", SAILOR_MEMBER(output)));
    columns.push_back(hdf5::quantity<Row>("workspace_bytes", "byte", SAILOR_MEMBER(workspace)));
    return Table<Row>("layers", std::move(columns));
  }();
  return table;
}

const Table<LinkMeasurement>& link_table() {
  static const Table<LinkMeasurement> table = [] {
    using Row = LinkMeasurement;
    std::vector<Column<Row>> columns{
        hdf5::text<Row>("from_gpu", SAILOR_MEMBER(from_gpu)),
        hdf5::text<Row>("to_gpu", SAILOR_MEMBER(to_gpu)),
        hdf5::choice<Row>("scope", SAILOR_MEMBER(scope), LinkScope::inter_node),
        hdf5::choice<Row>("operation", SAILOR_MEMBER(operation), LinkOperation::all_reduce),
        hdf5::integer<Row>("ranks", SAILOR_MEMBER(ranks), {.minimum = 2}),
        hdf5::quantity<Row>("message_bytes", "byte", SAILOR_MEMBER(message))};
    add_times<Row>(columns, "time", SAILOR_MEMBER(time));
    return Table<Row>("links", std::move(columns));
  }();
  return table;
}

const Table<ProcessMeasurement>& process_table() {
  using Row = ProcessMeasurement;
  static const Table<Row> table(
      "processes", {hdf5::text<Row>("gpu", SAILOR_MEMBER(gpu)), hdf5::text<Row>("framework", SAILOR_MEMBER(framework)),
                    hdf5::quantity<Row>("base_memory_bytes", "byte", SAILOR_MEMBER(base_memory))});
  return table;
}

Result<void> write_profile(const ProfileData& data, const fs::path& path) {
  auto file = FileWriter::create(path);
  if (!file) return fail(file.error());
  SAILOR_CHECK(hdf5::write_header(*file, hdf5::profile_kind, data.provenance));
  SAILOR_CHECK(layer_table().write(*file, data.layers));
  SAILOR_CHECK(link_table().write(*file, data.links));
  SAILOR_CHECK(process_table().write(*file, data.processes));
  return file->close();
}

/// Nothing for a file that sailor-train wrote.
Result<std::optional<ProfileData>> read_profile(const fs::path& path) {
  auto file = FileReader::open(path);
  if (!file) return fail(file.error());
  auto kind = hdf5::read_kind(*file);
  if (!kind) return fail(kind.error());
  if (*kind == hdf5::run_kind) return std::nullopt;
  ProfileData data;
  auto provenance = hdf5::read_provenance(*file);
  if (!provenance) return fail(provenance.error());
  data.provenance = *std::move(provenance);
  auto layers = layer_table().read(*file);
  if (!layers) return fail(layers.error());
  data.layers = *std::move(layers);
  auto links = link_table().read(*file);
  if (!links) return fail(links.error());
  data.links = *std::move(links);
  auto processes = process_table().read(*file);
  if (!processes) return fail(processes.error());
  data.processes = *std::move(processes);
  return data;
}

auto identity(const LayerMeasurement& row) { return row.key; }
auto identity(const LinkMeasurement& row) {
  return std::tuple(row.from_gpu, row.to_gpu, row.scope, row.operation, row.ranks, row.message.value());
}
auto identity(const ProcessMeasurement& row) { return std::pair(row.gpu, row.framework); }

/// Of rows with the same identity the last one stays, at the place of the first.
template <class Row>
void keep_newest(std::vector<Row>& rows) {
  std::map<decltype(identity(rows.front())), std::size_t> place;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [found, is_new] = place.emplace(identity(rows[i]), kept);
    if (found->second != i) rows[found->second] = std::move(rows[i]);
    if (is_new) ++kept;
  }
  rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(kept), rows.end());
}

template <class Row>
void append(std::vector<Row>& rows, std::vector<Row>&& more) {
  rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

Result<std::vector<fs::path>> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && entry->path().extension() == ".h5") files.push_back(entry->path());
  }
  if (code) return fail(ErrorCode::io, fmt::format("cannot list '{}': {}", folder.string(), code.message()));
  std::sort(files.begin(), files.end());
  return files;
}

/// Letters, digits, '-' and '.' of a text, at most 64: for file names.
std::string for_file_name(std::string_view text) {
  std::string name;
  for (const char c : text)
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.') name += c;
  return name.substr(0, 64);
}

}  // namespace

Result<ProfileData> load_profile(const fs::path& store) {
  std::error_code code;
  const fs::file_status status = fs::status(store, code);
  if (!fs::exists(status))
    return fail(ErrorCode::not_found, fmt::format("profile store '{}' does not exist", store.string()),
                "measure one with sailor-profile, or name another");
  if (!fs::is_directory(status)) {
    auto data = read_profile(store);
    if (!data) return fail(data.error());
    if (!*data)
      return fail(ErrorCode::invalid_input,
                  fmt::format("file '{}': it holds a run of sailor-train, no profile", store.string()));
    keep_newest((*data)->layers);
    keep_newest((*data)->links);
    keep_newest((*data)->processes);
    return **std::move(data);
  }

  auto paths = files_of(store);
  if (!paths) return fail(paths.error());
  std::vector<ProfileData> files;
  for (const fs::path& path : *paths) {
    auto data = read_profile(path);
    if (!data) return fail(data.error());
    if (*data) files.push_back(**std::move(data));
  }
  if (files.empty())
    return fail(ErrorCode::not_found, fmt::format("profile store '{}' holds no profile (*.h5)", store.string()),
                "measure one with sailor-profile");
  // Oldest first; ISO 8601 in UTC sorts as text, and files of one date stay in the order of their names.
  std::stable_sort(files.begin(), files.end(),
                   [](const auto& a, const auto& b) { return a.provenance.date < b.provenance.date; });
  ProfileData merged;
  merged.provenance = files.back().provenance;
  for (ProfileData& file : files) {
    append(merged.layers, std::move(file.layers));
    append(merged.links, std::move(file.links));
    append(merged.processes, std::move(file.processes));
  }
  keep_newest(merged.layers);
  keep_newest(merged.links);
  keep_newest(merged.processes);
  return merged;
}

Result<std::string> profile_hash(const fs::path& store) {
  std::error_code code;
  std::vector<fs::path> paths{store};
  if (fs::is_directory(store, code)) {
    auto files = files_of(store);
    if (!files) return fail(files.error());
    paths = std::move(*files);
  }
  std::vector<std::string> hashes;
  for (const fs::path& path : paths) {
    auto content = read_text_file(path, std::size_t{1} << 30);
    if (!content) return fail(content.error());
    hashes.push_back(content_hash(*content));
  }
  std::sort(hashes.begin(), hashes.end());
  return content_hash(fmt::format("{}", fmt::join(hashes, " ")));
}

Result<fs::path> add_to_store(const fs::path& store, const ProfileData& data) {
  std::error_code code;
  fs::create_directories(store, code);
  if (!fs::is_directory(store))
    return fail(ErrorCode::io, fmt::format("cannot make the folder '{}' for the profile store{}", store.string(),
                                           code ? ": " + code.message() : ": it is a file"));
  ProfileData dated = data;
  if (dated.provenance.date.empty()) dated.provenance.date = hdf5::current_date();
  std::string date = for_file_name(dated.provenance.date);
  std::erase(date, '-');
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::random_device random;
  const fs::path path =
      store / fmt::format("{}-{}-{}-{:08x}.h5", date, for_file_name(host.data()), ::getpid(), random());
  SAILOR_CHECK(save_profile(dated, path));
  return path;
}

Result<void> save_profile(const ProfileData& data, const fs::path& path) {
  return write_file_atomically(path, [&](const fs::path& temporary) { return write_profile(data, temporary); });
}

}  // namespace sailor
