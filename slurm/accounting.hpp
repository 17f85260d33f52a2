// What the accounting database lets a user do: accounts, QOS and their limits, asked of sacctmgr.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::slurm {

/// None that is not set.
struct ResourceLimits {
  std::optional<int> nodes;
  std::optional<int> gpus;
  std::optional<int> cpus;
  std::optional<Seconds> time;
};

/// A user's right to charge an account.
struct Association {
  std::string account;
  std::string partition;         ///< empty: all
  std::vector<std::string> qos;  ///< that may be used with it
  std::string default_qos;       ///< empty: none is set
  ResourceLimits per_job;
  ResourceLimits all_jobs;  ///< that run with it at one time

  /// Of a job that names none: the default, the only one, or else "normal". Empty: Slurm refuses such a job.
  [[nodiscard]] std::string qos_unless_named() const;
};

/// An account: its limit holds for all who charge it, or an account below it.
struct Account {
  std::string name;
  std::string parent;       ///< empty: none
  ResourceLimits all_jobs;  ///< that run at one time
};

struct QosLimits {
  std::string name;
  ResourceLimits per_job;
  ResourceLimits per_user;  ///< all jobs of a user that run at one time
  ResourceLimits all_jobs;
};

struct Accounting {
  std::string user;
  std::string default_account;            ///< empty: none
  std::vector<Association> associations;  ///< empty: the database does not know the user
  std::vector<Account> known_accounts;    ///< those of the associations, and all above them
  std::vector<QosLimits> qos;

  /// The first association with the account in the partition (may be empty: any); null when there is none.
  [[nodiscard]] const Association* find(std::string_view account, std::string_view partition) const;
  [[nodiscard]] const QosLimits* find_qos(std::string_view name) const;
  /// The account and those above it, from below.
  [[nodiscard]] std::vector<const Account*> chain(std::string_view account) const;
  /// Accounts of all associations, each once.
  [[nodiscard]] std::vector<std::string> accounts() const;
};

/// Asks sacctmgr four times and more, once per level of accounts, each within `deadline`. Errors: unavailable (no
/// sacctmgr, no slurmdbd, no answer).
Result<Accounting> read_accounting(const std::string& user, const std::string& cluster, Seconds deadline);

/// `sacctmgr -nP show assoc format=Account,Partition,QOS,DefaultQOS,MaxTRES,MaxWall,GrpTRES`. Errors: invalid_input.
Result<std::vector<Association>> parse_associations(std::string_view text);
/// `sacctmgr -nP show assoc format=Account,ParentName,User,GrpTRES`, without the users' rows. Errors: invalid_input.
Result<std::vector<Account>> parse_accounts(std::string_view text);
/// `sacctmgr -nP show qos format=Name,MaxTRES,MaxWall,MaxTRESPU,GrpTRES`. Errors: invalid_input.
Result<std::vector<QosLimits>> parse_qos(std::string_view text);

}  // namespace sailor::slurm
