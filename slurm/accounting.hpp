// What the accounting database lets a user do: accounts, QOS and their limits, asked of sacctmgr, and what is used of
// these, asked of slurmctld.
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
  std::vector<std::string> qos;                  ///< that may be used with it
  std::string default_qos;                       ///< empty: none is set
  JobLimits per_job{};                           ///< with those that it inherits
  GroupLimits all_jobs{};                        ///< of the user, with this account
  std::optional<std::int64_t> most_jobs{};       ///< MaxJobs: that run at one time
  std::optional<std::int64_t> most_submitted{};  ///< MaxSubmitJobs: that wait or run
  std::optional<GroupUsage> used{};              ///< none: not known

  /// Of a job that names none: the default, the only one, or else "normal". Empty: Slurm refuses such a job.
  [[nodiscard]] std::string qos_unless_named() const;
};

/// An account: its limits hold for all who charge it, or an account below it.
struct Account {
  std::string name;
  std::string parent;  ///< empty: none
  GroupLimits all_jobs{};
  std::optional<GroupUsage> used{};  ///< none: not known
};

struct QosLimits {
  std::string name;
  std::vector<std::string> flags{};  ///< "DenyOnLimit", "OverPartQOS", ...
  double usage_factor = 1.0;         ///< by which its jobs' usage counts
  double limit_factor = 1.0;         ///< by which it widens the limits of associations on resources
  std::string usage_threshold{};     ///< of the fair share, that jobs must have; empty: none
  JobLimits per_job{};
  GroupLimits per_user{};     ///< of the jobs of a user with this QOS
  GroupLimits per_account{};  ///< of the jobs of an account
  GroupLimits all_jobs{};
  // None: not known
  std::optional<GroupUsage> used_by_user{};
  std::optional<GroupUsage> used_by_all{};
  std::vector<std::pair<std::string, GroupUsage>> used_by_account{};  ///< those that use any, if used_by_all is known

  [[nodiscard]] bool has_flag(std::string_view flag) const;
  /// None: not known.
  [[nodiscard]] std::optional<GroupUsage> usage_of_account(std::string_view account) const;
};

struct Accounting {
  std::string user;
  std::string default_account;            ///< empty: none
  std::vector<Association> associations;  ///< empty: the database does not know the user
  std::vector<Account> known_accounts;    ///< those of the associations, and all above them
  std::vector<QosLimits> qos;
  std::string usage_problem{};  ///< why usage is not known; empty: it is, as far as it stands above

  /// The association with the account in the partition (may be empty: any), or else one for all partitions; null when
  /// there is none.
  [[nodiscard]] const Association* find(std::string_view account, std::string_view partition) const;
  [[nodiscard]] const QosLimits* find_qos(std::string_view name) const;
  /// The account and those above it, from below.
  [[nodiscard]] std::vector<const Account*> chain(std::string_view account) const;
  /// Accounts of all associations, each once.
  [[nodiscard]] std::vector<std::string> accounts() const;
};

/// Asks sacctmgr four times and more, once per level of accounts, and slurmctld (scontrol) for the usage; each within
/// `deadline`. Errors: unavailable (no sacctmgr, no slurmdbd, no answer).
Result<Accounting> read_accounting(const std::string& user, const std::string& cluster, Seconds deadline);

// What sacctmgr is asked for, and how its answer is read. Errors: invalid_input.
/// `sacctmgr -nP show assoc format=...`
extern const char* const association_columns;
Result<std::vector<Association>> parse_associations(std::string_view text);
/// The same, without the users' rows.
extern const char* const account_columns;
Result<std::vector<Account>> parse_accounts(std::string_view text);
/// `sacctmgr -nP show qos format=...`
extern const char* const qos_columns;
Result<std::vector<QosLimits>> parse_qos(std::string_view text);

/// What `scontrol -o show assoc_mgr flags=assoc,qos` says is used, for what of `accounting` it names. `user_id` is that
/// of its user. Errors: invalid_input.
Result<void> add_usage(std::string_view text, std::uint32_t user_id, Accounting& accounting);

}  // namespace sailor::slurm
