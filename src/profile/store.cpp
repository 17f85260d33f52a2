// The profile store on disk. Files are immutable and appear by rename, so reading needs no lock and a killed
// writer leaves at most a hidden temporary file, which readers skip.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "core/files.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "profile/measurements.hpp"
#include "profile/provenance.hpp"
#include "profile/store.hpp"
#include "profile/tables.hpp"

namespace sailor {

namespace fs = std::filesystem;

namespace {

using hdf5::FileReader;
using hdf5::FileWriter;

Result<void> write_profile(const ProfileData& data, const fs::path& path) {
  auto file = FileWriter::create(path);
  if (!file) return fail(file.error());
  SAILOR_CHECK(hdf5::write_header(*file, hdf5::profile_kind,
                                  data.sessions.empty() ? Provenance{} : data.sessions.back().provenance));
  SAILOR_CHECK(session_table().write(*file, data.sessions));
  SAILOR_CHECK(for_each_table(data, [&](const auto& table, const auto& rows) -> Result<void> {
    for (const auto& row : rows)
      if (row.session < 0 || row.session >= static_cast<int>(data.sessions.size()))
        return fail(ErrorCode::invalid_input, fmt::format("table '{}': a row is of session {} but there are {}",
                                                          table.name(), row.session, data.sessions.size()));
    return table.write(*file, rows);
  }));
  return file->close();
}

/// std::nullopt for a file that sailor-train wrote.
Result<std::optional<ProfileData>> read_profile(const fs::path& path) {
  auto file = FileReader::open(path);
  if (!file) return fail(file.error());
  auto kind = hdf5::read_kind(*file);
  if (!kind) return fail(kind.error());
  if (*kind != hdf5::profile_kind) return std::nullopt;
  ProfileData data;
  auto sessions = session_table().read(*file);
  if (!sessions) return fail(sessions.error());
  data.sessions = *std::move(sessions);
  SAILOR_CHECK(for_each_table(data, [&](const auto& table, auto& rows) -> Result<void> {
    auto read = table.read(*file);
    if (!read) return fail(read.error());
    rows = *std::move(read);
    for (const auto& row : rows)
      if (row.session >= static_cast<int>(data.sessions.size()))
        return file->invalid(fmt::format("a row of table '{}' is of session {} but there are {}", table.name(),
                                         row.session, data.sessions.size()));
    return {};
  }));
  return data;
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

/// Letters, digits, '-' and '.' of a text, at most 120: for file names.
std::string for_file_name(std::string_view text) {
  std::string name;
  for (const char c : text)
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.') name += c;
  return name.substr(0, 120);
}

/// "20261121T055721.250Z-nid001-77-0badcafe"
std::string new_id(const std::string& date) {
  std::string day = for_file_name(date.empty() ? hdf5::current_date() : date);
  std::erase(day, '-');
  std::random_device random;
  return fmt::format("{}-{}-{}-{:08x}", day, for_file_name(host_name()).substr(0, 64), ::getpid(), random());
}

/// Adds missing ids and dates, and cuts text that is longer than a table can hold.
ProfileData completed(ProfileData data) {
  for (Session& session : data.sessions) {
    Provenance& from = session.provenance;
    if (from.date.empty()) from.date = hdf5::current_date();
    if (session.id.empty()) session.id = new_id(from.date);
    for (std::string* text :
         {&from.tool, &from.command, &from.host, &from.device, &from.versions, &from.date, &from.source})
      *text = hdf5::cut_text(std::move(*text));
  }
  return data;
}

}  // namespace

Result<std::vector<StoreFile>> load_store_files(const fs::path& store) {
  std::error_code code;
  const fs::file_status status = fs::status(store, code);
  if (!fs::exists(status))
    return fail(ErrorCode::not_found, fmt::format("profile store '{}' does not exist", store.string()),
                "measure one with sailor-profile, or name another");
  const bool is_folder = fs::is_directory(status);
  Result<std::vector<fs::path>> paths = std::vector{store};
  if (is_folder) paths = files_of(store);
  if (!paths) return fail(paths.error());
  std::vector<StoreFile> files;
  for (const fs::path& path : *paths) {
    auto data = read_profile(path);
    if (!data) return fail(data.error());
    if (*data) files.push_back({path, **std::move(data)});
  }
  if (files.empty())
    return is_folder
               ? fail(ErrorCode::not_found, fmt::format("profile store '{}' holds no profile (*.h5)", store.string()),
                      "measure one with sailor-profile")
               : fail(ErrorCode::invalid_input,
                      fmt::format("file '{}': it holds a run of sailor-train, no profile", store.string()));
  return files;
}

Result<ProfileData> load_profile(const fs::path& store, Intervals intervals) {
  auto files = load_store_files(store);
  if (!files) return fail(files.error());
  std::vector<ProfileData> data;
  for (StoreFile& file : *files) data.push_back(std::move(file.data));
  return merge_profiles(std::move(data), intervals);
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
  return content_hash(join(hashes, " "));
}

Result<fs::path> add_to_store(const fs::path& store, const ProfileData& data) {
  SAILOR_CHECK(create_folders(store, "name another folder for the profile store"));
  const ProfileData complete = completed(data);
  std::string name = for_file_name(complete.sessions.empty() ? new_id("") : complete.sessions.back().id);
  if (name.empty() || name.starts_with('.')) name = "session-" + new_id("");
  // An existing file is never replaced, even by another one of the same session.
  for (fs::path path = store / (name + ".h5");;
       path = store / fmt::format("{}-{:08x}.h5", name, std::random_device()())) {
    auto created =
        create_file_atomically(path, [&](const fs::path& temporary) { return write_profile(complete, temporary); });
    if (!created) return fail(created.error());
    if (*created) return path;
    const auto there = read_profile(path);
    if (!there || !*there) continue;  // damaged, or no profile: load_profile() reports it
    if (**there == complete) return path;
    if (const std::size_t conflicts = conflicting_rows(**there, complete); conflicts > 0)
      return fail(
          ErrorCode::invalid_input,
          fmt::format("session '{}' is in '{}' already, with other values of {} rows", complete.sessions.back().id,
                      path.string(), conflicts),
          "give the new values an id and a date of their own, or remove the session first (sailor-profile remove)");
  }
}

Result<void> save_profile(const ProfileData& data, const fs::path& path) {
  if (const auto there = read_profile(path); there && !*there)
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' holds a run of sailor-train and would be replaced", path.string()),
                "name another file");
  const ProfileData complete = completed(data);
  return write_file_atomically(path, [&](const fs::path& temporary) { return write_profile(complete, temporary); });
}

}  // namespace sailor
