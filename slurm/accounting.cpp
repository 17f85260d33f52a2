#include "slurm/accounting.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>

#include "core/process.hpp"
#include "core/stopwatch.hpp"
#include "core/text.hpp"
#include "slurm/node_records.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

constexpr std::string_view sacctmgr = "sacctmgr";

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

Result<std::optional<Seconds>> parse_wall(const std::string& wall) {
  if (wall.empty()) return std::nullopt;
  const auto time = parse_time_limit(wall);
  if (!time) return fail(time.error(), sacctmgr);
  return *time;
}

Result<std::optional<std::int64_t>> parse_number(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  if (const auto read = std::from_chars(text.data(), end, value); read.ec != std::errc() || read.ptr != end)
    return fail(ErrorCode::invalid_input, fmt::format("sacctmgr says '{}', which is no limit", printable(text)));
  return value;
}

/// A factor that is not set or not valid is 1.
double parse_factor(const std::string& text) {
  double value = 0.0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && value > 0.0 ? value : 1.0;
}

/// Reads the columns of a row in order.
class Row {
 public:
  explicit Row(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  std::string text() { return columns_[next_++]; }
  void read(Tres& tres) { take(parse_tres(text(), sacctmgr), tres); }
  void read(std::optional<Seconds>& time) { take(parse_wall(text()), time); }
  void read(std::optional<std::int64_t>& number) { take(parse_number(text()), number); }
  void read(JobLimits& limits) {
    for (Tres* tres : {&limits.resources, &limits.per_node, &limits.minutes}) read(*tres);
    read(limits.time);
  }
  void read(GroupLimits& limits) {
    for (Tres* tres : {&limits.resources, &limits.minutes, &limits.running_minutes}) read(*tres);
    read(limits.jobs);
    read(limits.submitted);
    read(limits.time);
  }
  /// Reads the limits of a user or an account in a QOS.
  void read_share(GroupLimits& limits) {
    read(limits.resources);
    read(limits.running_minutes);
    read(limits.jobs);
    read(limits.submitted);
  }
  /// The first error.
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  template <class Value>
  void take(Result<Value> result, Value& value) {
    if (result)
      value = *std::move(result);
    else if (!error_)
      error_ = result.error();
  }

  std::vector<std::string> columns_;
  std::size_t next_ = 0;
  std::optional<Error> error_;
};

/// Columns of each line, which must be `width`.
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

std::size_t width(std::string_view columns) {
  return static_cast<std::size_t>(std::count(columns.begin(), columns.end(), ',')) + 1;
}

Result<std::string> run(std::vector<std::string> arguments, Seconds deadline) {
  const std::string program = arguments.front() + ": ";
  const auto outcome = run_command({.arguments = std::move(arguments), .input = {}, .deadline = deadline});
  if (!outcome) return fail(ErrorCode::unavailable, outcome.error().what);
  if (!outcome->succeeded()) {
    const std::vector<std::string> lines = split(outcome->errors, '\n');
    std::string words = lines.empty() ? outcome->how_it_ended() : printable(lines.front());
    for (const std::string_view prefix : {std::string_view(program), std::string_view("error: ")})
      if (words.starts_with(prefix)) words.erase(0, prefix.size());
    return fail(ErrorCode::unavailable, program + words);
  }
  return outcome->output;
}

Result<std::string> ask(std::vector<std::string> arguments, Seconds deadline) {
  arguments.insert(arguments.begin(), {"sacctmgr", "-n", "-P"});
  return run(std::move(arguments), deadline);
}

std::string format(const char* columns) { return fmt::format("format={}", columns); }

/// The accounts of the associations, and those above them level by level, each asked for once; all within `deadline`.
Result<std::vector<Account>> read_accounts(std::vector<std::string> names, const std::string& cluster,
                                           Seconds deadline) {
  std::vector<Account> known;
  std::set<std::string> asked;
  const auto began = std::chrono::steady_clock::now();
  while (!names.empty()) {
    const Seconds passed(seconds_since(began));
    if (passed >= deadline)
      return fail(ErrorCode::unavailable, "sacctmgr: reading the accounts and those above them took too long");
    asked.insert(names.begin(), names.end());
    const auto answer = ask(
        {"show", "assoc", "cluster=" + cluster, fmt::format("account={}", join(names, ",")), format(account_columns)},
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
  const Association* found = nullptr;
  for (const Association& other : associations) {
    if (other.account != account) continue;
    if (other.partition == partition) return &other;
    if (found == nullptr && (other.partition.empty() || partition.empty())) found = &other;
  }
  return found;
}

bool QosLimits::has_flag(std::string_view flag) const {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

std::optional<GroupUsage> QosLimits::usage_of_account(std::string_view account) const {
  for (const auto& [known, usage] : used_by_account)
    if (known == account) return usage;
  return used_by_all ? std::optional(GroupUsage{}) : std::nullopt;
}

std::string Association::qos_unless_named() const {
  if (!default_qos.empty()) return default_qos;
  if (qos.size() == 1) return qos.front();
  return qos.empty() || std::find(qos.begin(), qos.end(), "normal") != qos.end() ? "normal" : "";
}

std::vector<const Account*> Accounting::chain(std::string_view account) const {
  std::vector<const Account*> found;
  // The loop also ends on a cycle of parents, which no database should hold.
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

const char* const association_columns =
    "Account,Partition,QOS,DefaultQOS,MaxTRES,MaxTRESPerNode,MaxTRESMins,MaxWall,MaxJobs,MaxSubmit,GrpTRES,GrpTRESMins,"
    "GrpTRESRunMins,GrpJobs,GrpSubmit,GrpWall";
const char* const account_columns =
    "Account,ParentName,User,GrpTRES,GrpTRESMins,GrpTRESRunMins,GrpJobs,GrpSubmit,GrpWall";
const char* const qos_columns =
    "Name,Flags,UsageFactor,LimitFactor,UsageThreshold,MaxTRES,MaxTRESPerNode,MaxTRESMins,MaxWall,MinTRES,MaxTRESPU,"
    "MaxTRESRunMinsPU,MaxJobsPU,MaxSubmitPU,MaxTRESPA,MaxTRESRunMinsPA,MaxJobsPA,MaxSubmitPA,GrpTRES,GrpTRESMins,"
    "GrpTRESRunMins,GrpJobs,GrpSubmit,GrpWall";

Result<std::vector<Association>> parse_associations(std::string_view text) {
  const auto rows = rows_of(text, width(association_columns));
  if (!rows) return fail(rows.error());
  std::vector<Association> associations;
  for (const std::vector<std::string>& columns : *rows) {
    Row row(columns);
    Association one;
    one.account = row.text();
    one.partition = row.text();
    one.qos = split(row.text(), ',');
    one.default_qos = row.text();
    row.read(one.per_job);
    row.read(one.most_jobs);
    row.read(one.most_submitted);
    row.read(one.all_jobs);
    if (row.error()) return fail(*row.error());
    associations.push_back(std::move(one));
  }
  return associations;
}

Result<std::vector<Account>> parse_accounts(std::string_view text) {
  const auto rows = rows_of(text, width(account_columns));
  if (!rows) return fail(rows.error());
  std::vector<Account> accounts;
  for (const std::vector<std::string>& columns : *rows) {
    Row row(columns);
    Account one;
    one.name = row.text();
    one.parent = row.text();
    if (!row.text().empty()) continue;
    row.read(one.all_jobs);
    if (row.error()) return fail(*row.error());
    accounts.push_back(std::move(one));
  }
  return accounts;
}

Result<std::vector<QosLimits>> parse_qos(std::string_view text) {
  const auto rows = rows_of(text, width(qos_columns));
  if (!rows) return fail(rows.error());
  std::vector<QosLimits> qos;
  for (const std::vector<std::string>& columns : *rows) {
    Row row(columns);
    QosLimits one;
    one.name = row.text();
    one.flags = split(row.text(), ',');
    one.usage_factor = parse_factor(row.text());
    one.limit_factor = parse_factor(row.text());
    one.usage_threshold = row.text();
    row.read(one.per_job);
    row.read(one.per_job.minimum);
    row.read_share(one.per_user);
    row.read_share(one.per_account);
    row.read(one.all_jobs);
    if (row.error()) return fail(*row.error());
    qos.push_back(std::move(one));
  }
  return qos;
}

namespace {

/// Adds the current usage, from slurmctld. If it is not known, `usage_problem` says why.
void ask_usage(Accounting& accounting, Seconds deadline) {
  std::vector<std::string> accounts;
  for (const Account& account : accounting.known_accounts) accounts.push_back(account.name);
  std::vector<std::string> qos;
  for (const QosLimits& one : accounting.qos) qos.push_back(one.name);
  const auto answer = run({"scontrol", "-o", "show", "assoc_mgr", "flags=assoc,qos", "users=" + accounting.user,
                           fmt::format("accounts={}", join(accounts, ",")), fmt::format("qos={}", join(qos, ","))},
                          deadline);
  if (!answer) {
    accounting.usage_problem = answer.error().what;
    return;
  }
  if (const auto added = add_usage(*answer, static_cast<std::uint32_t>(::getuid()), accounting); !added)
    accounting.usage_problem = added.error().what;
}

}  // namespace

Result<Accounting> read_accounting(const std::string& user, const std::string& cluster, Seconds deadline) {
  Accounting accounting;
  accounting.user = user;
  const auto who = ask({"show", "user", "name=" + user, "format=DefaultAccount"}, deadline);
  if (!who) return fail(who.error());
  if (const auto lines = split(*who, '\n'); !lines.empty()) accounting.default_account = printable(lines.front());
  const auto associations =
      ask({"show", "assoc", "user=" + user, "cluster=" + cluster, format(association_columns)}, deadline);
  if (!associations) return fail(associations.error());
  auto parsed = parse_associations(*associations);
  if (!parsed) return fail(parsed.error());
  accounting.associations = *std::move(parsed);
  auto accounts = read_accounts(accounting.accounts(), cluster, deadline);
  if (!accounts) return fail(accounts.error());
  accounting.known_accounts = *std::move(accounts);
  const auto qos = ask({"show", "qos", format(qos_columns)}, deadline);
  if (!qos) return fail(qos.error());
  auto all = parse_qos(*qos);
  if (!all) return fail(all.error());
  accounting.qos = *std::move(all);
  ask_usage(accounting, deadline);
  return accounting;
}

}  // namespace sailor::slurm
