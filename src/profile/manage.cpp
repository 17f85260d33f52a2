#include "profile/manage.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <ctime>
#include <map>
#include <set>

#include "core/files.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "profile/store.hpp"

namespace sailor {

namespace fs = std::filesystem;

namespace {

/// Each session separately, with all of its rows.
std::map<std::string, ProfileData> by_session(const std::vector<StoreFile>& files) {
  std::map<std::string, std::vector<ProfileData>> parts;
  for (const StoreFile& file : files)
    for (const Session& session : file.data.sessions)
      parts[session.id].push_back(file.data.sessions.size() == 1 ? file.data
                                                                 : only_sessions(file.data, [&](const Session& other) {
                                                                     return other.id == session.id;
                                                                   }));
  std::map<std::string, ProfileData> sessions;
  for (auto& [id, same] : parts) sessions.emplace(id, merge_profiles(std::move(same)));
  return sessions;
}

/// "a, b, c and 9 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t most = 12;
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size())));
  return fmt::format("{}{}", join(first, ", "),
                     names.size() > most ? fmt::format(" and {} more", names.size() - most) : "");
}

/// Whether a temporary file of Sailor 0.1 (".<name>.<host>.<pid>.<suffix>") belongs to a living process of this host.
bool writer_lives(const std::string& name) {
  const std::size_t end = name.rfind('.');
  const std::size_t begin = end == 0 || end == std::string::npos ? std::string::npos : name.rfind('.', end - 1);
  if (begin == std::string::npos) return false;
  pid_t pid = 0;
  const auto [stop, problem] = std::from_chars(name.data() + begin + 1, name.data() + end, pid);
  if (problem != std::errc() || stop != name.data() + end || pid <= 0) return false;
  if (!std::string_view(name).substr(0, begin).ends_with("." + host_name().substr(0, 64))) return false;
  return ::kill(pid, 0) == 0 || errno == EPERM;
}

}  // namespace

Result<MergeResult> merge_into_folder(const std::vector<fs::path>& stores, const fs::path& output) {
  std::vector<StoreFile> files;
  for (const fs::path& store : stores) {
    auto loaded = load_store_files(store);
    if (!loaded) return fail(loaded.error());
    files.insert(files.end(), std::make_move_iterator(loaded->begin()), std::make_move_iterator(loaded->end()));
  }
  std::map<std::string, ProfileData> there;
  if (auto loaded = load_store_files(output); loaded)
    there = by_session(*loaded);
  else if (loaded.error().code != ErrorCode::not_found)
    return fail(loaded.error());
  MergeResult result;
  for (auto& [id, data] : by_session(files)) {
    ++result.sessions;
    const auto known = there.find(id);
    if (known != there.end()) {
      data = merge_profiles({known->second, data});
      if (data == known->second) continue;
    }
    SAILOR_CHECK(add_to_store(output, data));
    ++result.added;
  }
  return result;
}

Result<MergeResult> merge_into_file(const std::vector<fs::path>& stores, const fs::path& output) {
  std::vector<ProfileData> data;
  for (const fs::path& store : stores) {
    auto loaded = load_profile(store, Intervals::as_stored);
    if (!loaded) return fail(loaded.error());
    data.push_back(*std::move(loaded));
  }
  const ProfileData merged = merge_profiles(std::move(data));
  std::set<std::string> known;
  if (const auto before = load_profile(output))
    for (const Session& session : before->sessions) known.insert(session.id);
  MergeResult result{.sessions = static_cast<int>(merged.sessions.size())};
  for (const Session& session : merged.sessions)
    if (!known.contains(session.id)) ++result.added;
  SAILOR_CHECK(save_profile(merged, output));
  return result;
}

Result<RemovedSession> remove_session(const fs::path& store, const std::string& id) {
  auto files = load_store_files(store);
  if (!files) return fail(files.error());
  std::set<std::string> ids;
  for (const StoreFile& file : *files)
    for (const Session& session : file.data.sessions) ids.insert(session.id);
  std::vector<std::string> matching;
  for (const std::string& known : ids)
    if (!id.empty() && known.starts_with(id)) matching.push_back(known);
  if (ids.contains(id)) matching = {id};
  if (matching.empty())
    return fail(ErrorCode::not_found, fmt::format("profile store '{}' has no session '{}'", store.string(), id),
                fmt::format("there: {}", ids.empty() ? "none" : listed({ids.begin(), ids.end()})));
  if (matching.size() > 1)
    return fail(ErrorCode::usage,
                fmt::format("{} sessions of profile store '{}' begin with '{}'", matching.size(), store.string(), id),
                fmt::format("they are: {}", listed(matching)));
  RemovedSession removed{.id = matching.front()};
  for (StoreFile& file : *files) {
    const std::size_t sessions = file.data.sessions.size();
    const std::size_t rows = number_of_rows(file.data);
    const ProfileData rest =
        only_sessions(std::move(file.data), [&](const Session& session) { return session.id != removed.id; });
    if (rest.sessions.size() == sessions) continue;
    removed.rows += rows - number_of_rows(rest);
    if (!rest.sessions.empty()) {
      SAILOR_CHECK(save_profile(rest, file.path));
      removed.rewritten_files.push_back(file.path);
      continue;
    }
    std::error_code code;
    if (!fs::remove(file.path, code) && code)
      return fail(ErrorCode::io, fmt::format("cannot delete '{}': {}", file.path.string(), code.message()));
    removed.removed_files.push_back(file.path);
  }
  return removed;
}

std::vector<TemporaryFile> temporary_files(const fs::path& store) {
  std::vector<TemporaryFile> found;
  std::error_code code;
  const fs::path folder = fs::is_directory(store, code) ? store : fs::absolute(store, code).parent_path();
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') || (!name.ends_with(".tmp") && !name.ends_with(".new")) ||
        name.find(".h5.") == std::string::npos)
      continue;
    std::error_code ignored;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(entry->path(), ignored);
    const bool old = !ignored && age > std::chrono::hours(24);
    found.push_back({entry->path(), is_temporary_name(name) ? is_left_over(entry->path(), std::time(nullptr))
                                                            : old && !writer_lives(name)});
  }
  std::sort(found.begin(), found.end(), [](const TemporaryFile& a, const TemporaryFile& b) { return a.path < b.path; });
  return found;
}

}  // namespace sailor
