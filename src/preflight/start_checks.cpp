// Checks of when a job would start: its own and other reservations, and Slurm's estimate.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cluster/node_filter.hpp"
#include "core/terminal.hpp"
#include "preflight/job_check_parts.hpp"
#include "slurm/reservations.hpp"
#include "slurm/words.hpp"

namespace sailor::preflight {

namespace {

constexpr std::int64_t year_s = 366LL * 24 * 3600;

std::string duration_text(std::int64_t seconds) {
  return slurm::format_time_limit(Seconds(static_cast<double>(std::max<std::int64_t>(seconds, 1))));
}

/// Reservations that may take the job's nodes while it would run.
std::vector<const Reservation*> in_the_way(const Subject& subject) {
  const std::int64_t now = subject.answers.now_unix_s;
  const auto time = time_of(subject);
  const std::int64_t end = now + (time ? static_cast<std::int64_t>(std::ceil(time->value())) : year_s);
  std::set<std::string> nodes;
  for (const NodeGroup& group : subject.cluster.usable(subject.job.partitions, Availability::all))
    nodes.insert(group.nodes.begin(), group.nodes.end());
  std::vector<const Reservation*> found;
  for (const Reservation& reservation : subject.cluster.reservations) {
    if (reservation.name == subject.job.reservation) continue;
    if (reservation.end_unix_s <= now || reservation.start_unix_s >= end) continue;
    if (std::any_of(reservation.nodes.begin(), reservation.nodes.end(),
                    [&](const std::string& node) { return nodes.contains(node); }))
      found.push_back(&reservation);
  }
  std::sort(found.begin(), found.end(), [](const Reservation* a, const Reservation* b) {
    return std::pair(a->start_unix_s, a->name) < std::pair(b->start_unix_s, b->name);
  });
  return found;
}

/// The cluster without the nodes of these reservations.
Cluster without_nodes(const Cluster& cluster, const std::vector<const Reservation*>& reservations) {
  std::set<std::string> taken;
  for (const Reservation* reservation : reservations)
    taken.insert(reservation->nodes.begin(), reservation->nodes.end());
  return with_nodes(cluster, [&](const std::string& node) { return !taken.contains(node); });
}

/// The job's account and its parents, as far as Slurm would look; empty: not known.
std::vector<std::string> accounts_of(const Subject& subject) {
  const std::string account = account_of(subject);
  if (account.empty()) return {};
  std::vector<std::string> names;
  if (const slurm::Accounting* accounting = accounting_of(subject)) {
    for (const slurm::Account* one : accounting->chain(account)) names.push_back(one->name);
  } else if (subject.facts.accounting) {
    return {};
  }
  return names.empty() ? std::vector<std::string>{account} : names;
}

/// The reservation that the job names.
Result<Reservation> own_reservation(const Subject& subject) {
  return slurm::require_reservation(subject.cluster, subject.job.reservation, subject.answers.identity.user,
                                    accounts_of(subject), subject.answers.now_unix_s);
}

Check own_reservation_check(const Subject& subject) {
  const auto own = own_reservation(subject);
  if (!own)
    return {.name = "reservations", .outcome = Outcome::fail, .what = own.error().what, .remedy = own.error().hint};
  if (const auto part = slurm::part_of(subject.cluster, *own, subject.job.partitions); !part)
    return {.name = "reservations", .outcome = Outcome::fail, .what = part.error().what, .remedy = part.error().hint};
  const std::int64_t now = subject.answers.now_unix_s;
  const std::int64_t start = std::max(now, own->start_unix_s);
  const auto time = time_of(subject);
  Check check{.name = "reservations",
              .outcome = Outcome::ok,
              .what = fmt::format("the job runs in '{}', which has {} {} {} to {}", own->name,
                                  plural(own->nodes.size(), "node"), own->start_unix_s <= now ? "since" : "from",
                                  slurm::format_clock(own->start_unix_s), slurm::format_clock(own->end_unix_s)),
              .remedy = {}};
  if (!time || start + static_cast<std::int64_t>(std::ceil(time->value())) > own->end_unix_s) {
    check.outcome = Outcome::warn;
    check.what += time ? fmt::format(", before the job's {} are over", slurm::format_time_limit(*time))
                       : "; the job has no time limit";
    check.remedy = fmt::format("use a --time below {}: Slurm stops jobs that are left when their reservation ends",
                               duration_text(own->end_unix_s - start));
  }
  return check;
}

/// Whether limits of accounts and QOS hold the job back: Slurm's start time ignores them.
bool limits_hold_back(const Subject& subject) {
  const std::vector<Check> limits = check_limits(subject);
  return std::any_of(limits.begin(), limits.end(), [&](const Check& one) {
    return one.outcome == Outcome::fail || (one.outcome == Outcome::warn && subject.facts.enforces_limits);
  });
}

/// Slurm refuses, or gives no start time for a job.
void refused_start(const Subject& subject, const Error& error, Check& check) {
  if (error.code != ErrorCode::failure) {
    check.outcome = Outcome::not_checked;
    return;
  }
  if (!subject.job.reservation.empty()) {
    const auto own = own_reservation(subject);
    if (!own) {
      check.outcome = Outcome::fail;
      check.remedy = own.error().hint;
      return;
    }
    if (own->start_unix_s > subject.answers.now_unix_s) {
      check.outcome = Outcome::warn;
      check.remedy =
          fmt::format("Slurm does not say before reservation '{}' has begun: the job waits until then", own->name);
      return;
    }
  }
  const auto others = in_the_way(subject);
  // Waiting helps only if these reservations alone are in the way of the job.
  const auto failed = [](const std::vector<Check>& checks) {
    return std::any_of(checks.begin(), checks.end(), [](const Check& one) { return one.outcome == Outcome::fail; });
  };
  const bool may_wait = !others.empty() && !failed(check_limits(subject)) && !failed(check_nodes(subject));
  check.outcome = may_wait ? Outcome::warn : Outcome::fail;
  check.remedy =
      !may_wait ? "correct what Slurm refuses; sailor-submit would be refused too"
                : fmt::format("Slurm does not look past reservation '{}': the job may only have to wait for its end",
                              others.front()->name);
}

}  // namespace

std::vector<Check> check_reservations(const Subject& subject) {
  const std::vector<const Reservation*> found = in_the_way(subject);
  std::vector<Check> checks;
  for (const std::string& warning : subject.left_out)
    if (is_about_reservation(warning))
      checks.push_back({.name = "reservations",
                        .outcome = warning.starts_with("reservations ") ? Outcome::not_checked : Outcome::warn,
                        .what = warning,
                        .remedy = {}});
  if (!subject.job.reservation.empty())
    checks.push_back(own_reservation_check(subject));
  else if (found.empty() && checks.empty())
    return {{.name = "reservations", .outcome = Outcome::ok, .what = "none while the job would run", .remedy = {}}};
  const std::int64_t now = subject.answers.now_unix_s;
  // Nodes outside of them may suffice.
  const bool enough = subject.plan != nullptr && needs_of(*subject.plan, without_nodes(subject.cluster, found),
                                                          subject.job.partitions, Availability::up)
                                                     .has_value();
  for (const Reservation* reservation : found) {
    const bool began = reservation->start_unix_s <= now;
    Check check{.name = "reservations",
                .outcome = enough ? Outcome::ok : Outcome::warn,
                .what = fmt::format("{}'{}' takes {} {} {} to {}", reservation->maintenance ? "maintenance " : "",
                                    reservation->name, plural(reservation->nodes.size(), "node"),
                                    began ? "since" : "from", slurm::format_clock(reservation->start_unix_s),
                                    slurm::format_clock(reservation->end_unix_s)),
                .remedy = {}};
    if (enough)
      check.what += "; the other nodes suffice";
    else if (began)
      check.remedy = "the job starts when it has ended, if not on other nodes";
    else
      check.remedy = fmt::format("a job with a --time below {} can start before it, a longer one only after its end",
                                 duration_text(reservation->start_unix_s - now));
    checks.push_back(std::move(check));
  }
  return checks;
}

std::vector<Check> check_start(const Subject& subject) {
  if (subject.plan == nullptr) return {};
  const std::vector<StartAnswer>& starts = subject.answers.starts;
  if (starts.empty())
    return {{.name = "start", .outcome = Outcome::not_checked, .what = "Slurm was not asked", .remedy = {}}};
  const auto when = [&](std::int64_t start_unix_s) {
    const std::int64_t wait = start_unix_s - subject.answers.now_unix_s;
    return wait <= 60 ? "now" : fmt::format("in {}, at {}", duration_text(wait), slurm::format_clock(start_unix_s));
  };
  const bool held_back = limits_hold_back(subject);
  std::vector<Check> checks;
  for (const StartAnswer& answer : starts) {
    Check check{.name = "start", .outcome = Outcome::ok, .what = {}, .remedy = {}};
    const std::string part = starts.size() > 1 ? name_of_kind({answer.need.gpu, answer.need.zone}) + " alone: " : "";
    if (answer.start) {
      check.what = fmt::format("{}{} on {}", part, when(answer.start->start_unix_s), answer.start->nodes);
      if (held_back) {
        check.outcome = Outcome::warn;
        check.what += " by its nodes alone: the limits above hold the job back, which Slurm does not count here";
      }
    } else {
      check.what = part + answer.start.error().what;
      refused_start(subject, answer.start.error(), check);
    }
    checks.push_back(std::move(check));
  }
  if (starts.size() > 1 &&
      std::all_of(starts.begin(), starts.end(), [](const StartAnswer& answer) { return answer.start.has_value(); })) {
    const auto last = std::max_element(starts.begin(), starts.end(), [](const StartAnswer& a, const StartAnswer& b) {
      return a.start->start_unix_s < b.start->start_unix_s;
    });
    checks.push_back({.name = "start",
                      .outcome = Outcome::ok,
                      .what = fmt::format("the whole job: not before the last of these, {}; Slurm says it of each "
                                          "component alone, but they wait for each other",
                                          when(last->start->start_unix_s)),
                      .remedy = {}});
  }
  return checks;
}

}  // namespace sailor::preflight
