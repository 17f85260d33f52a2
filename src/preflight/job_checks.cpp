// Checks of a job against what Slurm allows and the site knows: partitions, accounts, limits, time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "preflight/communicators.hpp"
#include "preflight/job_check_parts.hpp"
#include "preflight/preflight.hpp"
#include "profile/advice.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/words.hpp"

namespace sailor::preflight {

namespace {

constexpr double old_profile_days = 365.0;
constexpr double least_time_to_spare = 0.1;   // share of the limit
constexpr double bytes_of_checkpoint = 12.0;  // per parameter: weight and two moments in fp32

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool may_use(const std::vector<std::string>& names, const std::vector<std::string>& own) {
  return std::any_of(own.begin(), own.end(), [&](const std::string& name) { return contains(names, name); });
}

Check profile_check(const ProfileFacts& facts, const GpuCatalogue& gpus) {
  const std::string advice = layers_advice(gpus, facts.gpu);
  Check check{.name = "profile", .outcome = Outcome::ok, .what = {}, .remedy = {}};
  const std::string age =
      facts.age_days ? fmt::format(", {:.0f} days ago", std::max(std::floor(*facts.age_days), 0.0)) : "";
  if (facts.measured) {
    check.what = fmt::format("{}: measured{}", facts.gpu, age);
    if (facts.age_days && *facts.age_days > old_profile_days) {
      check.outcome = Outcome::warn;
      check.remedy = "drivers and clocks have changed since: " + advice;
    }
    return check;
  }
  check.outcome = Outcome::warn;
  check.what = facts.published ? fmt::format("{}: published figures, not measured here", facts.gpu)
                               : fmt::format("{}: nobody measured it, time and memory are estimates", facts.gpu);
  check.remedy = advice;
  return check;
}

}  // namespace

std::optional<Seconds> time_of(const Subject& subject) {
  if (subject.job.time) return subject.job.time;
  std::optional<Seconds> shortest;
  for (const std::string& name : subject.job.partitions) {
    const Partition* partition = subject.cluster.find_partition(name);
    if (partition == nullptr) continue;
    const std::optional<Seconds> given = partition->default_time ? partition->default_time : partition->time_limit;
    if (given) shortest = std::min(shortest.value_or(*given), *given);
  }
  return shortest;
}

const slurm::Accounting* accounting_of(const Subject& subject) {
  return subject.answers.accounting && *subject.answers.accounting ? &**subject.answers.accounting : nullptr;
}

std::string account_of(const Subject& subject) {
  if (!subject.job.account.empty()) return subject.job.account;
  const slurm::Accounting* accounting = accounting_of(subject);
  return accounting == nullptr ? "" : accounting->default_account;
}

std::string qos_of(const Subject& subject, const slurm::Association* association) {
  if (!subject.job.qos.empty()) return subject.job.qos;
  return association == nullptr ? "" : association->qos_unless_named();
}

std::string access_problem(const Partition& partition, const Identity& identity, const std::string& account,
                           const std::string& qos) {
  const auto only = [&](std::string_view kind, const std::vector<std::string>& names, const std::string& have) {
    return fmt::format("partition '{}' takes jobs of {} {} only, {}", partition.name, kind, join_or_none(names), have);
  };
  if (partition.root_only && !identity.is_root)
    return fmt::format("partition '{}' takes jobs of root only", partition.name);
  if (!identity.is_root && !partition.allowed_groups.empty() && !may_use(partition.allowed_groups, identity.groups))
    return only("groups", partition.allowed_groups,
                fmt::format("and {} is in {}", identity.user, join_or_none(identity.groups)));
  const std::string charged =
      account.empty() ? "and the job names none" : fmt::format("and the job is charged to '{}'", account);
  if (!partition.allowed_accounts.empty() && !contains(partition.allowed_accounts, account))
    return only("accounts", partition.allowed_accounts, charged);
  if (partition.allowed_accounts.empty() && !account.empty() && contains(partition.denied_accounts, account))
    return fmt::format("partition '{}' takes no jobs of account '{}'", partition.name, account);
  if (!partition.allowed_qos.empty() && !qos.empty() && !contains(partition.allowed_qos, qos))
    return only("QOS", partition.allowed_qos, fmt::format("and the job's is '{}'", qos));
  if (partition.allowed_qos.empty() && !qos.empty() && contains(partition.denied_qos, qos))
    return fmt::format("partition '{}' takes no jobs of QOS '{}'", partition.name, qos);
  return {};
}

std::vector<Check> check_partitions(const Subject& subject) {
  std::vector<Check> checks;
  for (const std::string& name : subject.job.partitions) {
    const auto partition = slurm::known_partition(subject.cluster, name);
    if (!partition) {
      checks.push_back({.name = "partition",
                        .outcome = Outcome::fail,
                        .what = partition.error().what,
                        .remedy = partition.error().hint});
      continue;
    }
    std::string problem = slurm::partition_problem(*partition);
    if (problem.empty() && partition->needs_reservation && subject.job.reservation.empty()) {
      checks.push_back({.name = "partition",
                        .outcome = Outcome::fail,
                        .what = slurm::reservation_needed(name),
                        .remedy = "name one with --reservation NAME, or use another partition"});
      continue;
    }
    if (problem.empty())
      checks.push_back(
          {.name = "partition", .outcome = Outcome::ok, .what = fmt::format("'{}' is up", name), .remedy = {}});
    else
      checks.push_back({.name = "partition",
                        .outcome = Outcome::fail,
                        .what = std::move(problem),
                        .remedy = "use another one, or ask the administrator when it will be up"});
  }
  return checks;
}

std::vector<Check> check_access(const Subject& subject) {
  std::vector<Check> checks;
  const auto add = [&](Outcome outcome, std::string what, std::string remedy = {}) {
    checks.push_back({.name = "access", .outcome = outcome, .what = std::move(what), .remedy = std::move(remedy)});
  };
  const slurm::Accounting* accounting = accounting_of(subject);
  const std::string account = account_of(subject);
  const std::string first = subject.job.partitions.empty() ? "" : subject.job.partitions.front();
  const slurm::Association* association = accounting == nullptr ? nullptr : accounting->find(account, first);
  const std::string qos = qos_of(subject, association);
  bool refused = false;
  bool known = subject.job.partitions.empty();
  for (const std::string& name : subject.job.partitions) {
    const Partition* partition = subject.cluster.find_partition(name);
    if (partition == nullptr) continue;
    known = true;
    std::string problem = access_problem(*partition, subject.answers.identity, account, qos);
    if (problem.empty()) continue;
    refused = true;
    add(Outcome::fail, std::move(problem), "use another partition, or another --account or --qos");
  }
  if (!known) {
    add(Outcome::not_checked, "there is no such partition");
    return checks;
  }
  if (subject.facts.version.empty()) {  // slurmctld was not asked
    if (!refused) add(Outcome::not_checked, "Slurm was not asked who may use the partition");
    return checks;
  }
  if (!subject.facts.accounting) {
    if (!refused)
      add(Outcome::ok, fmt::format("{} may use {}; Slurm keeps no accounts here", subject.answers.identity.user,
                                   join(subject.job.partitions, ", ")));
    return checks;
  }
  if (accounting == nullptr) {
    add(Outcome::not_checked, subject.answers.accounting
                                  ? "accounts are not known: " + subject.answers.accounting->error().what
                                  : "the accounting database was not asked");
    return checks;
  }
  const Outcome bad = subject.facts.enforces_associations ? Outcome::fail : Outcome::warn;
  if (accounting->associations.empty()) {
    add(bad, fmt::format("the accounting database does not know user {} on this cluster", accounting->user),
        "ask the administrator for an account");
  } else if (association == nullptr) {
    add(bad,
        account.empty() ? "the job names no account, and you have no default one"
                        : fmt::format("you have no account '{}'{}", account,
                                      first.empty() ? "" : fmt::format(" in partition '{}'", first)),
        fmt::format("use one of yours with --account NAME: {}", join(accounting->accounts(), ", ")));
  } else if (!qos.empty() && !association->qos.empty() && !contains(association->qos, qos)) {
    add(subject.facts.enforces_qos ? Outcome::fail : Outcome::warn,
        fmt::format("account '{}' does not have QOS '{}' (it has: {})", account, qos, join_or_none(association->qos)),
        "use one of these with --qos NAME");
  } else if (qos.empty()) {
    add(subject.facts.enforces_qos ? Outcome::fail : Outcome::warn,
        fmt::format("the job names no QOS, and account '{}' has no default one (it has: {})", account,
                    join_or_none(association->qos)),
        "use one of these with --qos NAME");
  } else if (const slurm::QosLimits* limits = accounting->find_qos(qos);
             limits != nullptr && limits->has_flag("RequiresReservation") && subject.job.reservation.empty()) {
    add(subject.facts.enforces_qos ? Outcome::fail : Outcome::warn,
        fmt::format("QOS '{}' takes only jobs in a reservation", qos), "use --reservation NAME, or another --qos");
  } else if (!refused) {
    add(Outcome::ok,
        fmt::format("{} may use {} with account '{}'{}", accounting->user, join(subject.job.partitions, ", "), account,
                    qos.empty() ? "" : fmt::format(" and QOS '{}'", qos)));
  }
  return checks;
}

std::vector<Check> check_profile(const Subject& subject) {
  if (subject.plan == nullptr) return {};
  if (!subject.answers.profile)
    return {{.name = "profile",
             .outcome = Outcome::not_checked,
             .what = "no profile store is named",
             .remedy = "name the one that the plan was made with: --profile STORE"}};
  if (!*subject.answers.profile)
    return {{.name = "profile",
             .outcome = Outcome::warn,
             .what = subject.answers.profile->error().what,
             .remedy = "correct --profile; without it nobody knows where the plan's times come from"}};
  std::vector<Check> checks;
  for (const ProfileFacts& facts : **subject.answers.profile) checks.push_back(profile_check(facts, subject.gpus));
  return checks;
}

std::vector<Check> check_time(const Subject& subject) {
  if (subject.plan == nullptr) return {};
  Check check{.name = "time", .outcome = Outcome::ok, .what = {}, .remedy = {}};
  const auto& prediction = subject.plan->prediction;
  if (!subject.job.iterations || !prediction || !(prediction->iteration_time > Seconds(0))) {
    check.outcome = subject.plan->prediction_is_stale ? Outcome::warn : Outcome::not_checked;
    if (subject.plan->prediction_is_stale) {
      check.what = "the plan was edited after its time was predicted";
      check.remedy = "predict it with sailor-simulate";
    } else if (!prediction) {
      check.what = "the plan says nothing of the time of an iteration";
      check.remedy = "predict it with sailor-simulate";
    } else {
      check.what = "the length of the training is not given";
      check.remedy = "give it with --iterations N";
    }
    return {check};
  }
  const Seconds needed = prediction->iteration_time * *subject.job.iterations;
  const auto given = time_of(subject);
  const std::string work = fmt::format("{:.0f} iterations of {} take {}", *subject.job.iterations,
                                       format_time(prediction->iteration_time), slurm::format_time_limit(needed));
  if (!given) {
    check.what = work + ", the job has no time limit";
    return {check};
  }
  check.what = fmt::format("{}, the job has {}", work, slurm::format_time_limit(*given));
  if (needed > *given) {
    const double jobs = std::ceil(needed / *given);
    const bool goes_on = !subject.job.checkpoints.empty();
    check.outcome = goes_on ? Outcome::warn : Outcome::fail;
    check.remedy = goes_on ? fmt::format("about {:.0f} jobs one after the other, each from the last checkpoint", jobs)
                           : "use a larger --time, fewer iterations, or --checkpoints FOLDER and several jobs";
  } else if (needed > *given * (1.0 - least_time_to_spare)) {
    check.outcome = Outcome::warn;
    check.remedy = "start, end and checkpoints take time too: use a larger --time";
  }
  return {check};
}

std::vector<Check> check_paths(const Subject& subject) {
  std::vector<Check> checks;
  Check data{
      .name = "data", .outcome = Outcome::not_checked, .what = "not named", .remedy = "name it with --data PREFIX"};
  if (const auto& facts = subject.answers.data) {
    if (!facts->problem.empty())
      data = {.name = "data",
              .outcome = Outcome::fail,
              .what = fmt::format("'{}' {}", facts->path, facts->problem),
              .remedy = "correct --data, or make it with sailor-data; the nodes must see it too"};
    else
      data = {.name = "data",
              .outcome = Outcome::ok,
              .what = fmt::format("{}{}", facts->path, facts->size ? ", " + format_bytes(*facts->size) : ""),
              .remedy = {}};
  }
  checks.push_back(std::move(data));
  Check folder{.name = "checkpoints",
               .outcome = Outcome::not_checked,
               .what = "not named",
               .remedy = "name their folder with --checkpoints FOLDER"};
  if (const auto& facts = subject.answers.checkpoints) {
    folder = {.name = "checkpoints", .outcome = Outcome::ok, .what = facts->path, .remedy = {}};
    if (!facts->problem.empty()) {
      folder.outcome = Outcome::fail;
      folder.what = fmt::format("'{}' {}", facts->path, facts->problem);
      folder.remedy = "choose a folder that you may write to, on a file system that the nodes see";
    } else if (facts->space && subject.model != nullptr) {
      const Bytes one(static_cast<double>(subject.model->total_parameters()) * bytes_of_checkpoint);
      folder.what = fmt::format("{}: {} free, a checkpoint takes {}", facts->path, format_bytes(*facts->space),
                                format_bytes(one));
      // The previous checkpoint is removed when the new one is complete.
      if (*facts->space < 2.0 * one) {
        folder.outcome = *facts->space < one ? Outcome::fail : Outcome::warn;
        folder.remedy = "two lie there while one is written: make room, or choose another folder";
      }
    }
  }
  checks.push_back(std::move(folder));
  return checks;
}

std::vector<Check> check_communicators(const Subject& subject) {
  if (subject.plan == nullptr || subject.model == nullptr) return {};
  const Communicators count = count_communicators(*subject.plan, *subject.model);
  Check check{.name = "communicators",
              .outcome = Outcome::ok,
              .what = fmt::format("{} of a rank, {} in all", count.most_per_rank, count.of_job),
              .remedy = {}};
  const slurm::SiteLimits& limits = subject.site.limits;
  const bool rank_over = limits.communicators_per_rank && count.most_per_rank > *limits.communicators_per_rank;
  const bool job_over = limits.communicators_per_job && count.of_job > *limits.communicators_per_job;
  if (rank_over || job_over) {
    check.outcome = Outcome::warn;
    check.what +=
        rank_over
            ? fmt::format("; site {} is known to take {} of a rank", subject.site.name, *limits.communicators_per_rank)
            : fmt::format("; site {} is known to take {} in all", subject.site.name, *limits.communicators_per_job);
    check.remedy = "take pipelines with equal stages and tensor-parallel degrees: they share communicators";
  }
  return {check};
}

std::vector<Check> check_mpi(const Subject& subject) {
  Check check{.name = "mpi", .outcome = Outcome::not_checked, .what = "srun was not asked", .remedy = {}};
  if (!subject.answers.mpi_types) return {check};
  if (!*subject.answers.mpi_types) {
    check.what = subject.answers.mpi_types->error().what;
    return {check};
  }
  const std::vector<std::string>& types = **subject.answers.mpi_types;
  const bool there = contains(types, subject.job.mpi);
  check.outcome = there ? Outcome::ok : Outcome::fail;
  check.what = there ? fmt::format("srun has --mpi={}", subject.job.mpi)
                     : fmt::format("srun has no --mpi={} (it has: {})", subject.job.mpi, join_or_none(types));
  if (!there) check.remedy = "use one of these with --mpi TYPE, as the MPI library of sailor-train wants it";
  return {check};
}

}  // namespace sailor::preflight
