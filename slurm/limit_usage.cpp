// Usage of limits in slurmctld, as `scontrol -o show assoc_mgr` prints it: a line for each association, account and
// QOS, in which the usage follows every limit, "GrpTRES=cpu=N(0),node=4(2)"; N: no limit.
#include <fmt/format.h>

#include <charconv>

#include "core/text.hpp"
#include "slurm/accounting.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

namespace {

/// The word after " Key=" in a line.
std::string_view word_of(std::string_view line, std::string_view key) {
  const std::string wanted = fmt::format(" {}=", key);
  std::size_t at = line.find(wanted);
  if (at == std::string_view::npos) {
    if (!line.starts_with(std::string_view(wanted).substr(1))) return {};
    at = 0;
    line.remove_prefix(wanted.size() - 1);
  } else {
    line.remove_prefix(at + wanted.size());
  }
  return line.substr(0, line.find_first_of(" }"));
}

/// 2 of "4(2)", 0.5 of "N(0.50)".
std::optional<double> used_of(std::string_view text) {
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos || !text.ends_with(')')) return std::nullopt;
  double value = 0.0;
  const char* const end = text.data() + text.size() - 1;
  const auto [rest, problem] = std::from_chars(text.data() + open + 1, end, value);
  if (problem != std::errc() || rest != end) return std::nullopt;
  return value;
}

tl::unexpected<Error> unreadable(std::string_view words) {
  return fail(ErrorCode::invalid_input, fmt::format("scontrol says '{}' of what is used", printable(words)));
}

/// Usage in the word of a key; 0 if the word is missing.
Result<std::int64_t> used_number(std::string_view line, std::string_view key) {
  const std::string_view word = word_of(line, key);
  if (word.empty()) return 0;
  const auto used = used_of(word);
  if (!used) return unreadable(word);
  return static_cast<std::int64_t>(*used);
}

Result<Tres> used_tres(std::string_view line, std::string_view key) {
  Tres tres;
  for (const std::string& part : split(word_of(line, key), ',')) {
    const std::size_t equals = part.rfind('=');
    const auto used = equals == std::string::npos ? std::nullopt : used_of(std::string_view(part).substr(equals + 1));
    if (!used) return unreadable(part);
    if (*used > 0.0) tres[part.substr(0, equals)] = static_cast<std::int64_t>(*used);
  }
  return tres;
}

/// Keys of the words of a record.
struct Keys {
  std::string_view resources;
  std::string_view minutes;
  std::string_view running_minutes;
  std::string_view jobs;
  std::string_view submitted;
  std::string_view time;
};
constexpr Keys of_group{"GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpJobs", "GrpSubmitJobs", "GrpWall"};
constexpr Keys of_user{"MaxTRESPU", "", "MaxTRESRunMinsPU", "MaxJobsPU", "MaxSubmitJobsPU", ""};
constexpr Keys of_account{"MaxTRESPA", "", "MaxTRESRunMinsPA", "MaxJobsPA", "MaxSubmitJobsPA", ""};

Result<GroupUsage> read_usage(std::string_view line, const Keys& keys) {
  GroupUsage usage;
  for (const auto& [key, tres] : {std::pair(keys.resources, &usage.resources), std::pair(keys.minutes, &usage.minutes),
                                  std::pair(keys.running_minutes, &usage.running_minutes)}) {
    if (key.empty()) continue;
    auto read = used_tres(line, key);
    if (!read) return fail(read.error());
    *tres = *std::move(read);
  }
  usage.running_minutes_known = !word_of(line, keys.running_minutes).empty();
  const auto jobs = used_number(line, keys.jobs);
  if (!jobs) return fail(jobs.error());
  usage.jobs = *jobs;
  const auto submitted = used_number(line, keys.submitted);
  if (!submitted) return fail(submitted.error());
  usage.submitted = *submitted;
  if (!keys.time.empty()) {
    const auto minutes = used_number(line, keys.time);
    if (!minutes) return fail(minutes.error());
    usage.time = Seconds(60.0 * static_cast<double>(*minutes));
  }
  return usage;
}

/// "root(0)" -> "root"
std::string_view before_parenthesis(std::string_view word) { return word.substr(0, word.find('(')); }

/// Entries of a QOS: " Account Limits= ml={MaxJobsPA=... MaxTRESPA=...} User Limits= 1000={MaxJobsPU=...}". Calls `use`
/// with each name and the text in its braces.
template <class Use>
Result<void> for_entries(std::string_view section, Use use) {
  while (true) {
    const std::size_t open = section.find("={");
    if (open == std::string_view::npos) return {};
    const std::size_t start = section.substr(0, open).find_last_of(" =") + 1;
    const std::string_view name = section.substr(start, open - start);
    section.remove_prefix(open + 2);
    const std::size_t close = section.find('}');
    SAILOR_CHECK(use(name, section.substr(0, close)));
    if (close == std::string_view::npos) return {};
    section.remove_prefix(close + 1);
  }
}

Result<void> add_usage_of_qos(std::string_view line, std::uint32_t user_id, QosLimits& qos) {
  constexpr std::string_view account_section = " Account Limits=";
  constexpr std::string_view user_section = " User Limits=";
  const std::size_t accounts = line.find(account_section);
  const std::size_t users = line.find(user_section);
  auto all = read_usage(line.substr(0, std::min(accounts, users)), of_group);
  if (!all) return fail(all.error());
  qos.used_by_all = *std::move(all);
  qos.used_by_user = GroupUsage{};
  if (accounts != std::string_view::npos)
    SAILOR_CHECK(for_entries(line.substr(accounts + account_section.size(),
                                         users > accounts ? users - accounts - account_section.size() : users),
                             [&](std::string_view name, std::string_view words) -> Result<void> {
                               auto usage = read_usage(words, of_account);
                               if (!usage) return fail(usage.error());
                               qos.used_by_account.emplace_back(name, *std::move(usage));
                               return {};
                             }));
  if (users == std::string_view::npos) return {};
  return for_entries(line.substr(users + user_section.size()),
                     [&](std::string_view name, std::string_view words) -> Result<void> {
                       // "1000", or "anna(1000)"
                       if (name != std::to_string(user_id) && !name.ends_with(fmt::format("({})", user_id))) return {};
                       auto usage = read_usage(words, of_user);
                       if (!usage) return fail(usage.error());
                       qos.used_by_user = *std::move(usage);
                       return {};
                     });
}

}  // namespace

Result<void> add_usage(std::string_view text, std::uint32_t user_id, Accounting& accounting) {
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with("QOS=")) {
      const std::string_view name = before_parenthesis(word_of(line, "QOS"));
      for (QosLimits& qos : accounting.qos)
        if (qos.name == name) SAILOR_CHECK(add_usage_of_qos(line, user_id, qos));
      continue;
    }
    if (!line.starts_with("ClusterName=")) continue;
    const std::string_view account = word_of(line, "Account");
    const std::string_view user = before_parenthesis(word_of(line, "UserName"));
    if (!user.empty() && user != accounting.user) continue;
    const auto usage = read_usage(line, of_group);
    if (!usage) return fail(usage.error());
    if (user.empty()) {
      for (Account& one : accounting.known_accounts)
        if (one.name == account) one.used = *usage;
    } else {
      for (Association& one : accounting.associations)
        if (one.account == account && one.partition == word_of(line, "Partition")) one.used = *usage;
    }
  }
  return {};
}

}  // namespace sailor::slurm
