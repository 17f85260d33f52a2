#include "slurm/reservations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "cluster/node_filter.hpp"
#include "core/text.hpp"
#include "slurm/node_records.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

/// Whether a list admits a job. `names`: those admitted, or those excluded ("-anna"). `any_of`: names of the job, of
/// which one match suffices for either.
bool takes(const std::vector<std::string>& names, const std::vector<std::string>& any_of) {
  if (names.empty()) return true;
  const bool others =
      std::any_of(names.begin(), names.end(), [](const std::string& one) { return one.starts_with('-'); });
  const bool named = std::any_of(any_of.begin(), any_of.end(), [&](const std::string& name) {
    return std::find(names.begin(), names.end(), others ? "-" + name : name) != names.end();
  });
  return named != others;
}

std::string list(const std::vector<std::string>& names) { return printable(join(names, ", ")); }

}  // namespace

Result<void> check_reservation_name(std::string_view name) {
  if (name.find(',') == std::string_view::npos) {
    auto checked = check_name("reservation", name);
    return checked ? Result<void>{} : Result<void>(fail(checked.error()));
  }
  return fail(ErrorCode::invalid_input, fmt::format("'{}' are several reservations", printable(name)),
              "name one with --reservation: a job gets the whole nodes of one reservation");
}

bool takes_accounts(const Reservation& reservation, const std::vector<std::string>& accounts) {
  return takes(reservation.accounts, accounts);
}

Result<Reservation> require_reservation(const Cluster& cluster, std::string_view name, const std::string& user,
                                        const std::vector<std::string>& accounts, std::int64_t now_unix_s) {
  SAILOR_CHECK(check_reservation_name(name));
  const auto found = std::find_if(cluster.reservations.begin(), cluster.reservations.end(),
                                  [&](const Reservation& reservation) { return reservation.name == name; });
  if (found == cluster.reservations.end()) {
    std::vector<std::string> known;
    for (const Reservation& reservation : cluster.reservations) known.push_back(printable(reservation.name));
    std::sort(known.begin(), known.end());
    const auto near = closest(name, known);
    return fail(ErrorCode::not_found, fmt::format("reservation '{}' not found (known: {})", name, join_or_none(known)),
                near ? fmt::format("did you mean '{}'? use --reservation NAME", *near)
                     : "correct --reservation; one that is over is no longer known");
  }
  if (found->end_unix_s <= now_unix_s)
    return fail(ErrorCode::unavailable,
                fmt::format("reservation '{}' is over since {}", name, format_clock(found->end_unix_s)),
                "leave out --reservation, or use another one");
  const char* const ask = "leave out --reservation, or ask the administrator to be let into it";
  if (!takes(found->users, {user}))
    return fail(ErrorCode::unavailable,
                fmt::format("reservation '{}' takes no jobs of {} (users: {})", name, user, list(found->users)), ask);
  if (!accounts.empty() && !takes_accounts(*found, accounts))
    return fail(ErrorCode::unavailable,
                fmt::format("reservation '{}' takes no jobs of account '{}' (accounts: {})", name, accounts.front(),
                            list(found->accounts)),
                "use another --account, or leave out --reservation");
  if (found->nodes.empty())
    return fail(ErrorCode::unavailable, fmt::format("reservation '{}' has no nodes", name), "leave out --reservation");
  return *found;
}

std::string account_problem(const Cluster& cluster, std::string_view reservation, const std::string& account) {
  for (const Reservation& known : cluster.reservations)
    if (known.name == reservation && !account.empty() && !takes_accounts(known, {account}))
      return fmt::format("reservation '{}' is for the accounts {}: it takes jobs of '{}' only as one below them",
                         printable(known.name), list(known.accounts), account);
  return {};
}

Result<Cluster> part_of(const Cluster& cluster, const Reservation& reservation,
                        const std::vector<std::string>& partitions) {
  const std::set<std::string> nodes(reservation.nodes.begin(), reservation.nodes.end());
  Cluster part = with_nodes(cluster, [&](const std::string& node) { return nodes.contains(node); });
  std::erase_if(part.groups, [](const NodeGroup& group) { return group.nodes.empty(); });  // hypothetical nodes
  if (!part.usable(partitions, Availability::all).empty()) return part;
  std::set<std::string> there;
  for (const NodeGroup& group : part.groups) there.insert(group.partitions.begin(), group.partitions.end());
  if (there.empty() || partitions.empty())
    return fail(ErrorCode::unavailable,
                fmt::format("reservation '{}' has no node that can be planned for", printable(reservation.name)),
                "leave out --reservation");
  return fail(ErrorCode::unavailable,
              fmt::format("reservation '{}' has no node in {}", printable(reservation.name), list(partitions)),
              "use the partition of its nodes: " + list({there.begin(), there.end()}));
}

}  // namespace sailor::slurm
