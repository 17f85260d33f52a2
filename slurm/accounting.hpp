// Accounts, QOS and limits of a user, from the accounting database (sacctmgr), and their current usage, from slurmctld.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "slurm/limits.hpp"

namespace sailor::slurm {

/// A user's right to charge an account.
struct Association {
  std::string account;
  std::string partition;                         ///< empty: all
  std::vector<std::string> qos;                  ///< that this association allows
  std::string default_qos;                       ///< empty: none is set
  JobLimits per_job{};                           ///< including inherited limits
  GroupLimits all_jobs{};                        ///< limits of all jobs of the user under this account
  std::optional<std::int64_t> most_jobs{};       ///< MaxJobs: max running jobs
  std::optional<std::int64_t> most_submitted{};  ///< MaxSubmitJobs: max pending and running jobs
  std::optional<GroupUsage> used{};              ///< none: not known

  /// QOS of a job that names none: the default, the only one, or else "normal". Empty: Slurm refuses such a job.
  [[nodiscard]] std::string qos_unless_named() const;
};

/// An account. Its limits hold for all users who charge it or an account below it.
struct Account {
  std::string name;
  std::string parent;  ///< empty: none
  GroupLimits all_jobs{};
  std::optional<GroupUsage> used{};  ///< none: not known
};

struct QosLimits {
  std::string name;
  std::vector<std::string> flags{};  ///< "DenyOnLimit", "OverPartQOS", ...
  double usage_factor = 1.0;         ///< weight of its jobs' usage
  double limit_factor = 1.0;         ///< multiplier of the associations' limits on resources
  std::string usage_threshold{};     ///< min fair share that jobs must have; empty: none
  JobLimits per_job{};
  GroupLimits per_user{};     ///< limits of all jobs of one user with this QOS
  GroupLimits per_account{};  ///< limits of all jobs of one account with this QOS
  GroupLimits all_jobs{};
  // std::nullopt: not known
  std::optional<GroupUsage> used_by_user{};
  std::optional<GroupUsage> used_by_all{};
  std::vector<std::pair<std::string, GroupUsage>> used_by_account{};  ///< those with any usage, if used_by_all is known

  [[nodiscard]] bool has_flag(std::string_view flag) const;
  /// std::nullopt if not known.
  [[nodiscard]] std::optional<GroupUsage> usage_of_account(std::string_view account) const;
};

struct Accounting {
  std::string user;
  std::string default_account;            ///< empty: none
  std::vector<Association> associations;  ///< empty: the database does not know the user
  std::vector<Account> known_accounts;    ///< accounts of the associations, and their ancestors
  std::vector<QosLimits> qos;
  std::string usage_problem{};  ///< why the usage is not known; empty: it was read

  /// The association with the account in the partition (may be empty: any), or else one for all partitions; null when
  /// there is none.
  [[nodiscard]] const Association* find(std::string_view account, std::string_view partition) const;
  [[nodiscard]] const QosLimits* find_qos(std::string_view name) const;
  /// The account and its ancestors, bottom up.
  [[nodiscard]] std::vector<const Account*> chain(std::string_view account) const;
  /// Accounts of all associations, each once.
  [[nodiscard]] std::vector<std::string> accounts() const;
};

/// Runs sacctmgr four times or more, once per level of accounts, and scontrol for the usage, each within `deadline`.
/// Errors: unavailable (no sacctmgr, no slurmdbd, no answer).
Result<Accounting> read_accounting(const std::string& user, const std::string& cluster, Seconds deadline);

// Columns that sacctmgr is asked for, and parsers of its output. Errors: invalid_input.
/// `sacctmgr -nP show assoc format=...`
extern const char* const association_columns;
Result<std::vector<Association>> parse_associations(std::string_view text);
/// The same command; rows of users are skipped.
extern const char* const account_columns;
Result<std::vector<Account>> parse_accounts(std::string_view text);
/// `sacctmgr -nP show qos format=...`
extern const char* const qos_columns;
Result<std::vector<QosLimits>> parse_qos(std::string_view text);

/// Adds the usage in `text`, the output of `scontrol -o show assoc_mgr flags=assoc,qos`, to the entries of `accounting`
/// that it names. `user_id` is that of accounting.user. Errors: invalid_input.
Result<void> add_usage(std::string_view text, std::uint32_t user_id, Accounting& accounting);

}  // namespace sailor::slurm
