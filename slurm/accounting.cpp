#include "slurm/accounting.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>

#include "core/process.hpp"
#include "core/text.hpp"
#include "slurm/node_records.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

/// "a||b" -> {"a", "", "b"}
std::vector<std::string> columns(std::string_view line) {
  std::vector<std::string> values(1);
  for (const char c : line) {
    if (c == '|')
      values.emplace_back();
    else
      values.back() += c;
  }
  return values;
}

/// "cpu=10,gres/gpu=8,node=2": the same resource by type ("gres/gpu:a100=4") does not count as a limit on all.
Result<ResourceLimits> parse_tres(std::string_view text) {
  ResourceLimits limits;
  for (const std::string& word : split(text, ',')) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string_view name = std::string_view(word).substr(0, equals);
    std::optional<int>* limit = name == "node"       ? &limits.nodes
                                : name == "gres/gpu" ? &limits.gpus
                                : name == "cpu"      ? &limits.cpus
                                                     : nullptr;
    if (limit == nullptr) continue;
    int value = 0;
    const char* const end = word.data() + word.size();
    if (const auto read = std::from_chars(word.data() + equals + 1, end, value);
        read.ec != std::errc() || read.ptr != end)
      return fail(ErrorCode::invalid_input, fmt::format("sacctmgr says '{}', which is no limit", printable(word)));
    *limit = value;
  }
  return limits;
}

Result<ResourceLimits> parse_limits(std::string_view tres, std::string_view wall) {
  auto limits = parse_tres(tres);
  if (!limits || wall.empty()) return limits;
  const auto time = parse_time_limit(wall);
  if (!time) return fail(time.error(), "sacctmgr");
  limits->time = *time;
  return limits;
}

/// Each line has `width` columns.
Result<std::vector<std::vector<std::string>>> rows_of(std::string_view text, std::size_t width) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : split(text, '\n')) {
    rows.push_back(columns(printable(line)));
    if (rows.back().size() != width)
      return fail(ErrorCode::invalid_input, fmt::format("sacctmgr says '{}', which has {} columns, not {}",
                                                        printable(line), rows.back().size(), width));
  }
  return rows;
}

Result<std::string> ask(std::vector<std::string> arguments, Seconds deadline) {
  arguments.insert(arguments.begin(), {"sacctmgr", "-n", "-P"});
  const auto outcome = run_command({.arguments = std::move(arguments), .input = {}, .deadline = deadline});
  if (!outcome) return fail(ErrorCode::unavailable, outcome.error().what);
  if (!outcome->succeeded()) {
    const std::vector<std::string> lines = split(outcome->errors, '\n');
    std::string words = lines.empty() ? outcome->how_it_ended() : printable(lines.front());
    for (const std::string_view prefix : {"sacctmgr: ", "error: "})
      if (words.starts_with(prefix)) words.erase(0, prefix.size());
    return fail(ErrorCode::unavailable, "sacctmgr: " + words);
  }
  return outcome->output;
}

/// The accounts of the associations, and those above them level by level, each asked for once; all within `deadline`.
Result<std::vector<Account>> read_accounts(std::vector<std::string> names, const std::string& cluster,
                                           Seconds deadline) {
  std::vector<Account> known;
  std::set<std::string> asked;
  const auto began = std::chrono::steady_clock::now();
  while (!names.empty()) {
    const Seconds passed(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    if (passed >= deadline) return fail(ErrorCode::unavailable, "sacctmgr: the accounts have no end of parents");
    asked.insert(names.begin(), names.end());
    const auto answer = ask({"show", "assoc", "cluster=" + cluster, fmt::format("account={}", fmt::join(names, ",")),
                             "format=Account,ParentName,User,GrpTRES"},
                            deadline - passed);
    if (!answer) return fail(answer.error());
    const auto level = parse_accounts(*answer);
    if (!level) return fail(level.error());
    names.clear();
    for (const Account& account : *level) {
      known.push_back(account);
      if (!account.parent.empty() && !asked.contains(account.parent) &&
          std::find(names.begin(), names.end(), account.parent) == names.end())
        names.push_back(account.parent);
    }
  }
  return known;
}

}  // namespace

const Association* Accounting::find(std::string_view account, std::string_view partition) const {
  const auto found = std::find_if(associations.begin(), associations.end(), [&](const Association& other) {
    return other.account == account && (other.partition.empty() || partition.empty() || other.partition == partition);
  });
  return found == associations.end() ? nullptr : &*found;
}

std::string Association::qos_unless_named() const {
  if (!default_qos.empty()) return default_qos;
  if (qos.size() == 1) return qos.front();
  return qos.empty() || std::find(qos.begin(), qos.end(), "normal") != qos.end() ? "normal" : "";
}

std::vector<const Account*> Accounting::chain(std::string_view account) const {
  std::vector<const Account*> found;
  // A circle, which no database should hold, ends as well.
  while (found.size() < known_accounts.size()) {
    const auto next = std::find_if(known_accounts.begin(), known_accounts.end(),
                                   [&](const Account& other) { return other.name == account; });
    if (next == known_accounts.end()) break;
    found.push_back(&*next);
    account = next->parent;
  }
  return found;
}

const QosLimits* Accounting::find_qos(std::string_view name) const {
  const auto found = std::find_if(qos.begin(), qos.end(), [&](const QosLimits& other) { return other.name == name; });
  return found == qos.end() ? nullptr : &*found;
}

std::vector<std::string> Accounting::accounts() const {
  std::vector<std::string> names;
  for (const Association& association : associations)
    if (std::find(names.begin(), names.end(), association.account) == names.end()) names.push_back(association.account);
  return names;
}

Result<std::vector<Association>> parse_associations(std::string_view text) {
  const auto rows = rows_of(text, 7);
  if (!rows) return fail(rows.error());
  std::vector<Association> associations;
  for (const std::vector<std::string>& row : *rows) {
    const auto per_job = parse_limits(row[4], row[5]);
    if (!per_job) return fail(per_job.error());
    const auto all = parse_tres(row[6]);
    if (!all) return fail(all.error());
    associations.push_back({.account = row[0],
                            .partition = row[1],
                            .qos = split(row[2], ','),
                            .default_qos = row[3],
                            .per_job = *per_job,
                            .all_jobs = *all});
  }
  return associations;
}

Result<std::vector<Account>> parse_accounts(std::string_view text) {
  const auto rows = rows_of(text, 4);
  if (!rows) return fail(rows.error());
  std::vector<Account> accounts;
  for (const std::vector<std::string>& row : *rows) {
    if (!row[2].empty()) continue;
    const auto all = parse_tres(row[3]);
    if (!all) return fail(all.error());
    accounts.push_back({.name = row[0], .parent = row[1], .all_jobs = *all});
  }
  return accounts;
}

Result<std::vector<QosLimits>> parse_qos(std::string_view text) {
  const auto rows = rows_of(text, 5);
  if (!rows) return fail(rows.error());
  std::vector<QosLimits> qos;
  for (const std::vector<std::string>& row : *rows) {
    const auto per_job = parse_limits(row[1], row[2]);
    if (!per_job) return fail(per_job.error());
    const auto per_user = parse_tres(row[3]);
    if (!per_user) return fail(per_user.error());
    const auto all = parse_tres(row[4]);
    if (!all) return fail(all.error());
    qos.push_back({.name = row[0], .per_job = *per_job, .per_user = *per_user, .all_jobs = *all});
  }
  return qos;
}

Result<Accounting> read_accounting(const std::string& user, const std::string& cluster, Seconds deadline) {
  Accounting accounting;
  accounting.user = user;
  const auto who = ask({"show", "user", "name=" + user, "format=DefaultAccount"}, deadline);
  if (!who) return fail(who.error());
  if (const auto lines = split(*who, '\n'); !lines.empty()) accounting.default_account = printable(lines.front());
  const auto associations = ask({"show", "assoc", "user=" + user, "cluster=" + cluster,
                                 "format=Account,Partition,QOS,DefaultQOS,MaxTRES,MaxWall,GrpTRES"},
                                deadline);
  if (!associations) return fail(associations.error());
  auto parsed = parse_associations(*associations);
  if (!parsed) return fail(parsed.error());
  accounting.associations = *std::move(parsed);
  auto accounts = read_accounts(accounting.accounts(), cluster, deadline);
  if (!accounts) return fail(accounts.error());
  accounting.known_accounts = *std::move(accounts);
  const auto qos = ask({"show", "qos", "format=Name,MaxTRES,MaxWall,MaxTRESPU,GrpTRES"}, deadline);
  if (!qos) return fail(qos.error());
  auto all = parse_qos(*qos);
  if (!all) return fail(all.error());
  accounting.qos = *std::move(all);
  return accounting;
}

}  // namespace sailor::slurm
