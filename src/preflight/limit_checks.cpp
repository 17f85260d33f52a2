#include "preflight/limit_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "slurm/words.hpp"

namespace sailor::preflight {

namespace {

/// Kinds of limits. For each kind and resource, the first QOS that sets a limit counts.
enum class LimitKind {
  per_job,
  per_node,
  minimum,
  minutes,
  time,
  group,
  group_minutes,
  group_running,
  group_jobs,
  group_submitted,
  group_time,
  user,
  user_running,
  user_jobs,
  user_submitted,
  account,
  account_running,
  account_jobs,
  account_submitted,
  own_jobs,  ///< jobs of an association
  own_submitted,
};

/// One limit, and the components that it applies to.
struct Limit {
  LimitKind kind = LimitKind::per_job;
  std::string resource;  ///< empty: the limit is on jobs or time
  std::int64_t most = 0;
  std::string whose;  ///< "QOS 'short' for a user"
  // std::nullopt: not known
  std::optional<std::int64_t> used{};
  std::optional<std::int64_t> running_minutes{};  ///< minutes that running jobs may still use
  bool lowers_open_time = false;
  std::vector<const CountedComponent*> of{};
};

constexpr std::string_view relative = "Relative";  // limits are shares of the cluster

std::int64_t minutes_of(Seconds time) { return static_cast<std::int64_t>(std::floor(time.value() / 60.0)); }

/// Kinds of limits of a QOS that override one of an association.
std::vector<LimitKind> overruled_by(LimitKind kind) {
  if (kind == LimitKind::own_jobs) return {LimitKind::user_jobs, LimitKind::account_jobs};
  if (kind == LimitKind::own_submitted) return {LimitKind::user_submitted, LimitKind::account_submitted};
  return {kind};
}

/// All limits of one QOS, association or account.
class Source {
 public:
  void add(LimitKind kind, const slurm::Tres& most, const std::string& whose, const slurm::Tres* used = nullptr,
           const slurm::Tres* running = nullptr, double factor = 1.0) {
    for (const auto& [resource, amount] : most) {
      Limit limit{.kind = kind,
                  .resource = resource,
                  .most = static_cast<std::int64_t>(static_cast<double>(amount) * factor),
                  .whose = whose};
      if (used != nullptr) limit.used = slurm::amount_of(*used, resource);
      if (running != nullptr) limit.running_minutes = slurm::amount_of(*running, resource);
      limits_.push_back(std::move(limit));
    }
  }
  void add(LimitKind kind, const std::optional<std::int64_t>& most, const std::string& whose,
           std::optional<std::int64_t> used = std::nullopt) {
    if (most) limits_.push_back({.kind = kind, .resource = {}, .most = *most, .whose = whose, .used = used});
  }
  /// `refuses`: the job is refused at submission (DenyOnLimit).
  void add_job(const slurm::JobLimits& limits, const std::string& whose, double factor, bool refuses) {
    add(LimitKind::per_job, limits.resources, whose, nullptr, nullptr, factor);
    add(LimitKind::per_node, limits.per_node, whose, nullptr, nullptr, factor);
    add(LimitKind::minimum, limits.minimum, whose);
    add(LimitKind::minutes, limits.minutes, whose);
    if (limits.time) add(LimitKind::time, minutes_of(*limits.time), whose);
    for (Limit& limit : limits_)
      limit.lowers_open_time = limit.kind == LimitKind::time || (limit.kind == LimitKind::minutes && refuses);
  }
  void add_group(const slurm::GroupLimits& limits, const std::optional<slurm::GroupUsage>& used,
                 const std::string& whose, double factor = 1.0) {
    const slurm::GroupUsage* now = used ? &*used : nullptr;
    add(LimitKind::group, limits.resources, whose, now == nullptr ? nullptr : &now->resources, nullptr, factor);
    add(LimitKind::group_minutes, limits.minutes, whose, now == nullptr ? nullptr : &now->minutes,
        now == nullptr ? nullptr : &now->running_minutes);
    add(LimitKind::group_running, limits.running_minutes, whose, now == nullptr ? nullptr : &now->running_minutes);
    const auto count = [&](std::int64_t value) { return used ? std::optional(value) : std::nullopt; };
    add(LimitKind::group_jobs, limits.jobs, whose, count(used ? used->jobs : 0));
    add(LimitKind::group_submitted, limits.submitted, whose, count(used ? used->submitted : 0));
    if (limits.time)
      add(LimitKind::group_time, minutes_of(*limits.time), whose, count(used ? minutes_of(used->time) : 0));
  }
  /// Limits of a user or an account in a QOS: `kinds` are those of resources, running minutes, jobs and submitted jobs.
  void add_share(const std::array<LimitKind, 4>& kinds, const slurm::GroupLimits& limits,
                 const std::optional<slurm::GroupUsage>& used, const std::string& whose) {
    const slurm::GroupUsage* now = used ? &*used : nullptr;
    add(kinds[0], limits.resources, whose, now == nullptr ? nullptr : &now->resources);
    add(kinds[1], limits.running_minutes, whose,
        now == nullptr || !now->running_minutes_known ? nullptr : &now->running_minutes);
    add(kinds[2], limits.jobs, whose, used ? std::optional(used->jobs) : std::nullopt);
    add(kinds[3], limits.submitted, whose, used ? std::optional(used->submitted) : std::nullopt);
  }
  std::vector<Limit>& limits() { return limits_; }

 private:
  std::vector<Limit> limits_;
};

Source source_of(const slurm::QosLimits& qos, const std::string& account) {
  Source source;
  if (qos.has_flag(relative)) return source;
  const std::string whose = fmt::format("QOS '{}'", qos.name);
  source.add_job(qos.per_job, whose, 1.0, qos.has_flag("DenyOnLimit"));
  source.add_share({LimitKind::user, LimitKind::user_running, LimitKind::user_jobs, LimitKind::user_submitted},
                   qos.per_user, qos.used_by_user, whose + " for a user");
  source.add_share(
      {LimitKind::account, LimitKind::account_running, LimitKind::account_jobs, LimitKind::account_submitted},
      qos.per_account, qos.usage_of_account(account), whose + " for an account");
  source.add_group(qos.all_jobs, qos.used_by_all, whose + " for all jobs");
  return source;
}

Source source_of(const slurm::Association& association, double factor) {
  Source source;
  const std::string whose = fmt::format("account '{}'", association.account);
  source.add_job(association.per_job, whose, factor, false);
  const auto& used = association.used;
  source.add(LimitKind::own_jobs, association.most_jobs, whose + " for all your jobs",
             used ? std::optional(used->jobs) : std::nullopt);
  source.add(LimitKind::own_submitted, association.most_submitted, whose + " for all your jobs",
             used ? std::optional(used->submitted) : std::nullopt);
  source.add_group(association.all_jobs, used, whose + " for all your jobs", factor);
  return source;
}

Source source_of(const slurm::Account& account, double factor) {
  Source source;
  source.add_group(account.all_jobs, account.used, fmt::format("account '{}' for all its jobs", account.name), factor);
  return source;
}

std::string amount_text(std::string_view resource, std::int64_t amount) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(amount, 0));
  if (resource == "node") return plural(count, "node");
  if (resource == "cpu") return plural(count, "CPU");
  if (resource == "gres/gpu") return plural(count, "GPU");
  if (resource.starts_with("gres/gpu:")) return fmt::format("{} of type {}", plural(count, "GPU"), resource.substr(9));
  if (resource == "mem") return format_bytes(static_cast<double>(amount) * mib) + " of memory";
  if (resource == "billing") return fmt::format("a billing of {}", amount);
  return fmt::format("{} of {}", amount, resource);
}
std::string number_text(std::string_view resource, std::int64_t amount) {
  return resource == "mem" ? format_bytes(static_cast<double>(amount) * mib) : std::to_string(amount);
}

/// "node-minutes"
std::string minutes_name(std::string_view resource) {
  if (resource == "node") return "node-minutes";
  if (resource == "cpu") return "CPU-minutes";
  if (resource == "gres/gpu") return "GPU-minutes";
  if (resource.starts_with("gres/gpu:")) return fmt::format("GPU-minutes of type {}", resource.substr(9));
  if (resource == "mem") return "MiB-minutes of memory";
  return fmt::format("minutes of {}", resource);
}

std::string time_text(std::int64_t minutes) {
  return minutes < 1 ? "no time" : slurm::format_time_limit(Seconds(60.0 * static_cast<double>(minutes)));
}

/// Advice on what to reduce.
std::string remedy_for(std::string_view resource) {
  constexpr std::string_view or_else = ", or use another QOS or account";
  if (resource == "node") return fmt::format("plan with a smaller --max-nodes{}", or_else);
  if (resource.starts_with("gres/gpu")) return fmt::format("plan with a smaller --max-gpus{}", or_else);
  if (resource == "cpu") return fmt::format("take fewer cores per rank{}", or_else);
  if (resource == "mem") return fmt::format("take less memory per node{}", or_else);
  return fmt::format("plan for fewer nodes{}", or_else);
}

/// Resources times minutes, as limits count them.
struct Product {
  double per_minute = 0.0;
  std::int64_t minutes = 0;
  double factor = 1.0;  ///< usage factor of the QOS, included in both
  /// The longest time that stays within `most`.
  [[nodiscard]] std::int64_t longest(std::int64_t most) const {
    return per_minute > 0.0 ? static_cast<std::int64_t>(std::floor(static_cast<double>(most) / per_minute)) : most;
  }
};
Product product_of(const std::vector<const CountedComponent*>& components, std::string_view resource,
                   std::int64_t minutes, const slurm::ControllerFacts& facts) {
  Product product;
  for (const CountedComponent* component : components) {
    double factor = 1.0;
    if (facts.enforces_safely)
      for (const slurm::QosLimits* qos : component->qos)
        if (factor == 1.0 && qos->has_flag("UsageFactorSafe")) factor = qos->usage_factor;
    product.per_minute += factor * static_cast<double>(slurm::amount_of(component->amounts, resource));
    product.factor = factor;
  }
  product.minutes = static_cast<std::int64_t>(product.per_minute * static_cast<double>(minutes));
  return product;
}

class Comparison {
 public:
  explicit Comparison(const LimitQuestion& question)
      : question_(question), bad_(question.facts.enforces_limits ? Outcome::fail : Outcome::warn) {}

  void judge(const Limit& limit) {
    switch (limit.kind) {
      case LimitKind::per_job:
        return judge_size(limit);
      case LimitKind::per_node:
        return judge_per_node(limit);
      case LimitKind::minimum:
        return judge_minimum(limit);
      case LimitKind::minutes:
        return judge_minutes(limit);
      case LimitKind::time:
        return judge_time(limit);
      case LimitKind::group:
      case LimitKind::user:
      case LimitKind::account:
        return judge_group(limit);
      case LimitKind::group_minutes:
        return judge_used_minutes(limit);
      case LimitKind::group_running:
      case LimitKind::user_running:
      case LimitKind::account_running:
        return judge_running(limit);
      case LimitKind::group_jobs:
      case LimitKind::user_jobs:
      case LimitKind::account_jobs:
      case LimitKind::own_jobs:
        return judge_jobs(limit);
      case LimitKind::group_submitted:
      case LimitKind::user_submitted:
      case LimitKind::account_submitted:
      case LimitKind::own_submitted:
        return judge_submitted(limit);
      case LimitKind::group_time:
        return judge_group_time(limit);
    }
  }

  void not_compared(std::string what) { not_compared_.push_back(std::move(what)); }

  std::vector<Check> take() {
    // Several limits may bound the time: only the smallest time helps.
    for (const std::size_t index : too_long_)
      checks_[index].remedy = longest_ < 1
                                  ? "no --time is short enough: plan for fewer nodes, or use another QOS or account"
                                  : fmt::format("use --time {} or less", time_text(longest_));
    if (!not_known_.empty())
      not_compared_.insert(not_compared_.begin(),
                           fmt::format("what is used now of limits of {}{}", join(not_known_, ", "),
                                       question_.accounting.usage_problem.empty()
                                           ? ""
                                           : fmt::format(" ({})", question_.accounting.usage_problem)));
    if (!not_compared_.empty())
      checks_.push_back(
          {.name = "limits", .outcome = Outcome::not_checked, .what = join(not_compared_, "; "), .remedy = {}});
    return std::move(checks_);
  }

 private:
  void add(Outcome outcome, std::string what, std::string remedy) {
    checks_.push_back({.name = "limits", .outcome = outcome, .what = std::move(what), .remedy = std::move(remedy)});
  }
  /// The job could run if it took at most `longest` minutes.
  void too_long(std::string what, std::int64_t longest) {
    too_long_.push_back(checks_.size());
    longest_ = std::min(longest_, std::max<std::int64_t>(longest, 0));
    add(bad_, std::move(what), {});
  }
  void waits(std::string what, std::string remedy = {}) { add(Outcome::warn, std::move(what), std::move(remedy)); }
  void unknown(const Limit& limit) { not_known_.insert(limit.whose); }

  [[nodiscard]] std::string who(const Limit& limit) const {
    return limit.of.size() < question_.components.size() || limit.of.size() > 1 ? "a component of the job" : "the job";
  }
  static std::int64_t sum_of(const Limit& limit) {
    std::int64_t sum = 0;
    for (const CountedComponent* component : limit.of) sum += slurm::amount_of(component->amounts, limit.resource);
    return sum;
  }

  void judge_size(const Limit& limit) {
    for (const CountedComponent* component : limit.of)
      if (const std::int64_t amount = slurm::amount_of(component->amounts, limit.resource); amount > limit.most)
        return add(bad_,
                   fmt::format("{} takes {}, {} allows {}", who(limit), amount_text(limit.resource, amount),
                               limit.whose, number_text(limit.resource, limit.most)),
                   remedy_for(limit.resource));
  }
  void judge_per_node(const Limit& limit) {
    for (const CountedComponent* component : limit.of) {
      const std::int64_t nodes = std::max<std::int64_t>(slurm::amount_of(component->amounts, "node"), 1);
      if (const std::int64_t amount = slurm::amount_of(component->amounts, limit.resource) / nodes; amount > limit.most)
        return add(bad_,
                   fmt::format("{} takes {} of a node, {} allows {}", who(limit), amount_text(limit.resource, amount),
                               limit.whose, number_text(limit.resource, limit.most)),
                   "take fewer devices or cores of each node, or use another QOS or account");
    }
  }
  void judge_minimum(const Limit& limit) {
    for (const CountedComponent* component : limit.of)
      if (const std::int64_t amount = slurm::amount_of(component->amounts, limit.resource); amount < limit.most)
        return add(bad_,
                   fmt::format("{} takes {}, {} wants {} at least", who(limit), amount_text(limit.resource, amount),
                               limit.whose, number_text(limit.resource, limit.most)),
                   "use another QOS, or plan for more");
  }
  void judge_time(const Limit& limit) {
    if (question_.minutes && *question_.minutes > limit.most)
      too_long(fmt::format("time {} is over the {} of {}", time_text(*question_.minutes), time_text(limit.most),
                           limit.whose),
               limit.most);
  }
  /// "2 nodes for 01:00:00 are 120 node-minutes"
  [[nodiscard]] std::string product(const Limit& limit, std::int64_t amount, const Product& asked) const {
    return fmt::format("{} for {} are {} {}{}", amount_text(limit.resource, amount),
                       time_text(question_.minutes.value_or(0)), asked.minutes, minutes_name(limit.resource),
                       asked.factor == 1.0 ? "" : fmt::format(" (counted {} times by the QOS)", asked.factor));
  }
  void judge_minutes(const Limit& limit) {
    if (!question_.minutes) return;
    for (const CountedComponent* component : limit.of) {
      const Product asked = product_of({component}, limit.resource, *question_.minutes, question_.facts);
      if (asked.minutes <= limit.most) continue;
      return too_long(fmt::format("{}, {} allows {} per job",
                                  product(limit, slurm::amount_of(component->amounts, limit.resource), asked),
                                  limit.whose, limit.most),
                      asked.longest(limit.most));
    }
  }
  void judge_group(const Limit& limit) {
    const std::int64_t amount = sum_of(limit);
    const std::string what = fmt::format("the job takes {}, {} allows {}", amount_text(limit.resource, amount),
                                         limit.whose, number_text(limit.resource, limit.most));
    if (amount > limit.most) return add(bad_, what, remedy_for(limit.resource));
    if (!limit.used) return unknown(limit);
    if (amount > 0 && *limit.used + amount > limit.most)
      waits(fmt::format("{}, of which jobs that run have {}: it waits until enough of them have ended", what,
                        number_text(limit.resource, *limit.used)));
  }
  void judge_used_minutes(const Limit& limit) {
    if (!limit.used || !limit.running_minutes) return unknown(limit);
    const Product asked = product_of(limit.of, limit.resource, question_.minutes.value_or(0), question_.facts);
    const std::int64_t left = limit.most - *limit.used;
    const std::string budget = fmt::format("{} has {} {}, of which {} are used", limit.whose, limit.most,
                                           minutes_name(limit.resource), *limit.used);
    const std::string forgotten = question_.facts.usage_decays ? ", or wait: what was used is forgotten with time" : "";
    if (left <= 0) return add(bad_, budget, fmt::format("use another QOS or account, or ask for more{}", forgotten));
    if (asked.minutes <= left - *limit.running_minutes) return;
    const std::string all = fmt::format("{}, {}", product(limit, sum_of(limit), asked), budget);
    if (!question_.facts.enforces_safely)
      return waits(fmt::format("{}, and {} reserved by jobs that run: Slurm ends the job when they are used up", all,
                               *limit.running_minutes),
                   fmt::format("use --time {} or less", time_text(asked.longest(left - *limit.running_minutes))));
    if (asked.minutes > left) return too_long(all, asked.longest(left));
    waits(fmt::format("{}, and {} reserved by jobs that run: it waits until enough of them have ended", all,
                      *limit.running_minutes));
  }
  void judge_running(const Limit& limit) {
    if (!question_.minutes) return;
    const Product asked = product_of(limit.of, limit.resource, *question_.minutes, question_.facts);
    const std::string what = fmt::format("{}, {} allows {} for jobs that run at one time",
                                         product(limit, sum_of(limit), asked), limit.whose, limit.most);
    if (asked.minutes > limit.most) return too_long(what, asked.longest(limit.most));
    if (!limit.used) return unknown(limit);
    if (asked.minutes == 0 || *limit.used + asked.minutes <= limit.most) return;
    const std::int64_t now = asked.longest(limit.most - *limit.used);
    waits(fmt::format("{}, of which {} are left to those that run now: it waits until these are fewer", what,
                      *limit.used),
          now < 1 ? "" : fmt::format("with --time {} or less it need not wait for that", time_text(now)));
  }
  void judge_jobs(const Limit& limit) {
    const auto jobs = static_cast<std::int64_t>(limit.of.size());
    if (jobs > limit.most)
      return add(bad_,
                 jobs > 1 ? fmt::format("the job has {} components, which count as jobs, {} lets {} run at one time",
                                        jobs, limit.whose, limit.most)
                          : fmt::format("{} lets no job run", limit.whose),
                 "use another QOS or account");
    if (!limit.used) return unknown(limit);
    if (*limit.used + jobs > limit.most)
      waits(fmt::format("{} lets {} run at one time, and {} {}: the job waits until {} ended", limit.whose,
                        plural(static_cast<std::size_t>(limit.most), "job"), *limit.used,
                        *limit.used == 1 ? "does" : "do", *limit.used == 1 ? "it has" : "enough of them have"));
  }
  void judge_submitted(const Limit& limit) {
    const auto jobs = static_cast<std::int64_t>(limit.of.size());
    const std::string most =
        fmt::format("{} takes {} that wait or run", limit.whose, plural(static_cast<std::size_t>(limit.most), "job"));
    if (jobs > limit.most)
      return add(bad_, fmt::format("{}, the job counts as {}: sbatch refuses it", most, jobs),
                 "use another QOS or account");
    if (!limit.used) return unknown(limit);
    if (*limit.used + jobs > limit.most)
      add(bad_, fmt::format("{}, and there are {}: sbatch refuses the job", most, *limit.used),
          "wait until one of them has ended, or cancel one");
  }
  void judge_group_time(const Limit& limit) {
    if (!limit.used) return unknown(limit);
    const std::string what = fmt::format("{} has {} of running time, of which {} are used", limit.whose,
                                         time_text(limit.most), time_text(*limit.used));
    if (*limit.used >= limit.most) return add(bad_, what, "use another QOS or account, or ask for more");
    if (question_.facts.enforces_safely && question_.minutes && *limit.used + *question_.minutes > limit.most)
      too_long(fmt::format("time {} is more than is left: {}", time_text(*question_.minutes), what),
               limit.most - *limit.used);
  }

  const LimitQuestion& question_;
  Outcome bad_;
  std::vector<Check> checks_;
  std::vector<std::size_t> too_long_;  ///< indices of the checks that a shorter time helps
  std::int64_t longest_ = std::int64_t{1} << 40;
  std::set<std::string> not_known_;
  std::vector<std::string> not_compared_;
};

/// Every QOS of the components, each once.
std::vector<const slurm::QosLimits*> all_qos(const LimitQuestion& question) {
  std::vector<const slurm::QosLimits*> all;
  for (const CountedComponent& component : question.components)
    for (const slurm::QosLimits* qos : component.qos)
      if (std::find(all.begin(), all.end(), qos) == all.end()) all.push_back(qos);
  return all;
}

}  // namespace

std::vector<Check> compare_limits(const LimitQuestion& question) {
  const std::string& account = question.association.account;
  const std::vector<const slurm::QosLimits*> qos = all_qos(question);
  double factor = 1.0;
  for (const slurm::QosLimits* one : qos)
    if (factor == 1.0) factor = one->limit_factor;
  std::vector<Source> sources;  // those of `qos` first
  for (const slurm::QosLimits* one : qos) sources.push_back(source_of(*one, account));
  sources.push_back(source_of(question.association, factor));
  for (const slurm::Account* above : question.accounting.chain(account)) sources.push_back(source_of(*above, factor));

  for (const CountedComponent& component : question.components) {
    std::set<std::pair<LimitKind, std::string>> set_by_qos;
    const auto apply = [&](Source& source, bool is_qos) {
      for (Limit& limit : source.limits()) {
        const auto kinds = overruled_by(limit.kind);
        if (std::any_of(kinds.begin(), kinds.end(), [&](LimitKind kind) {
              return set_by_qos.contains({kind, limit.resource});
            }))
          continue;
        limit.of.push_back(&component);
        if (is_qos) set_by_qos.insert({limit.kind, limit.resource});
      }
    };
    for (const slurm::QosLimits* one : component.qos)
      apply(sources[static_cast<std::size_t>(std::find(qos.begin(), qos.end(), one) - qos.begin())], true);
    for (std::size_t i = qos.size(); i < sources.size(); ++i) apply(sources[i], false);
  }

  LimitQuestion asked = question;
  if (asked.time_is_open)
    for (Source& source : sources)
      for (const Limit& limit : source.limits()) {
        if (!limit.lowers_open_time) continue;
        for (const CountedComponent* component : limit.of) {
          const std::int64_t amount =
              limit.kind == LimitKind::time ? 1 : slurm::amount_of(component->amounts, limit.resource);
          if (amount > 0) asked.minutes = std::min(asked.minutes.value_or(limit.most), limit.most / amount);
        }
      }
  Comparison comparison(asked);
  for (Source& source : sources)
    for (const Limit& limit : source.limits())
      if (!limit.of.empty()) comparison.judge(limit);
  for (const slurm::QosLimits* one : qos) {
    if (one->has_flag(relative))
      comparison.not_compared(fmt::format("the limits of QOS '{}', which are shares of the cluster", one->name));
    if (one->has_flag("EnforceUsageThreshold") && !one->usage_threshold.empty())
      comparison.not_compared(fmt::format("the fair share that QOS '{}' wants ({})", one->name, one->usage_threshold));
  }
  if (!question.facts.job_submit_plugins.empty())
    comparison.not_compared(
        fmt::format("what the site's job_submit plugin ({}) makes of the job", question.facts.job_submit_plugins));
  return comparison.take();
}

}  // namespace sailor::preflight
