#include "preflight/system.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "core/process.hpp"
#include "core/text.hpp"

namespace sailor::preflight {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t longest_entry = 1 << 16;

std::string group_name(gid_t id) {
  std::vector<char> buffer(longest_entry);
  group entry{};
  group* found = nullptr;
  if (::getgrgid_r(id, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) return entry.gr_name;
  return std::to_string(id);
}

}  // namespace

std::int64_t now_unix_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Identity current_identity() {
  Identity identity{.user = std::to_string(::getuid()), .is_root = ::getuid() == 0, .groups = {}};
  std::vector<char> buffer(longest_entry);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr)
    identity.user = entry.pw_name;
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> ids(static_cast<std::size_t>(std::max(count, 0)));
  if (count > 0 && ::getgroups(count, ids.data()) < 0) ids.clear();
  ids.push_back(::getgid());
  for (const gid_t id : ids)
    if (std::string name = group_name(id);
        std::find(identity.groups.begin(), identity.groups.end(), name) == identity.groups.end())
      identity.groups.push_back(std::move(name));
  return identity;
}

PathFacts data_facts(const std::string& prefix) {
  PathFacts facts{.path = prefix, .problem = {}};
  Bytes sum{};
  for (const char* ending : {".bin", ".idx"}) {
    const std::string path = prefix + ending;
    std::error_code code;
    const auto size = fs::file_size(path, code);
    if (code) {
      std::error_code ignored;
      return {.path = path, .problem = fs::exists(path, ignored) ? "is no file: " + code.message() : "does not exist"};
    }
    if (::access(path.c_str(), R_OK) != 0) return {.path = path, .problem = "cannot be read: " + system_message(errno)};
    if (size == 0) return {.path = path, .problem = "is empty"};
    sum += Bytes(static_cast<double>(size));
  }
  facts.size = sum;
  return facts;
}

PathFacts checkpoint_facts(const std::string& folder) {
  std::error_code code;
  fs::path path = fs::absolute(folder, code);
  if (code) return {.path = folder, .problem = code.message()};
  path = path.lexically_normal();
  while (!fs::exists(path, code) && path.has_parent_path() && path != path.parent_path()) path = path.parent_path();
  PathFacts facts{.path = path.string(), .problem = {}};
  if (!fs::is_directory(path, code)) {
    facts.problem = "is no folder";
    return facts;
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) {
    facts.problem = "cannot be written to: " + system_message(errno);
    return facts;
  }
  const auto space = fs::space(path, code);
  if (!code) facts.space = Bytes(static_cast<double>(space.available));
  return facts;
}

std::vector<std::string> parse_mpi_list(std::string_view text) {
  // "MPI plugin types are...", one type per line, and "specific pmix plugin versions available: pmix_v4"; Slurm 22.05
  // puts "srun: " before each.
  std::vector<std::string> types;
  for (const std::string& line : split(text, '\n')) {
    std::string_view rest(line);
    if (rest.starts_with("srun: ")) rest.remove_prefix(6);
    if (rest.find("types are") != std::string_view::npos) continue;
    if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) rest.remove_prefix(colon + 1);
    for (const std::string& part : split(rest, ',')) {
      std::string word;
      for (const char c : part)
        if (c != ' ' && c != '\t' && c != '\r') word += c;
      if (!word.empty() && std::find(types.begin(), types.end(), word) == types.end()) types.push_back(word);
    }
  }
  return types;
}

Result<std::vector<std::string>> mpi_types(Seconds deadline) {
  const auto outcome = run_command({.arguments = {"srun", "--mpi=list"}, .input = {}, .deadline = deadline});
  if (!outcome) return fail(ErrorCode::unavailable, outcome.error().what);
  if (!outcome->succeeded())
    return fail(ErrorCode::unavailable, fmt::format("srun --mpi=list: {}", outcome->how_it_ended()));
  std::vector<std::string> types = parse_mpi_list(outcome->output + "\n" + outcome->errors);
  if (types.empty()) return fail(ErrorCode::unavailable, "srun --mpi=list names no type");
  return types;
}

std::vector<StartAnswer> ask_starts(const std::vector<Need>& needs, const Job& job, const slurm::Site& site,
                                    const GpuCatalogue& gpus, const slurm::SlurmEnvironment& environment) {
  std::vector<StartAnswer> answers;
  for (const Need& need : needs)
    answers.push_back(
        {.need = need, .start = slurm::expected_start(start_question(need, job, site, gpus), environment)});
  return answers;
}

}  // namespace sailor::preflight
