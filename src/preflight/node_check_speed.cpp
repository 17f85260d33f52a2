// Compares the speed of ranks and links with one another, and with what the site states for healthy ones.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/statistics.hpp"
#include "core/terminal.hpp"
#include "preflight/node_check_parts.hpp"

namespace sailor::preflight {

namespace {

// A rank with a smaller share of its time on a core is slowed by others more than by its hardware.
constexpr double own_core = 0.9;
constexpr std::size_t fewest_links = 3;  // the minimum among which one can stand out

double median_of(const std::vector<double>& values) { return quantile(values, 0.5); }

std::string byte_rate(double bytes_per_s) { return format_bandwidth(BytesPerSecond(bytes_per_s)); }

/// Core share of the middle rank; for an even number the upper of the two, so that one of two ranks can be slowed by
/// others.
double median_core_share(const std::vector<RankFacts>& ranks) {
  std::vector<double> shares;
  for (const RankFacts& facts : ranks)
    if (facts.speed) shares.push_back(facts.speed->core_share);
  if (shares.empty()) return 1.0;
  const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2);
  std::nth_element(shares.begin(), middle, shares.end());
  return *middle;
}

/// A rate measured on ranks.
struct Rate {
  const char* what;
  double RankSpeed::*by_clock;
  double RankSpeed::*by_processor_time;
  std::string (*text)(double);
};
constexpr std::array<Rate, 2> rates{
    Rate{"matrix products", &RankSpeed::flop_per_s, &RankSpeed::flop_per_cpu_s, flop_rate},
    Rate{"copies in memory", &RankSpeed::bytes_per_s, &RankSpeed::bytes_per_cpu_s, byte_rate}};

void judge_ranks(Judge& judge) {
  std::map<std::string, std::vector<const RankFacts*>> kinds;
  for (const RankFacts& facts : judge.ranks())
    if (facts.speed) kinds[kind_of(facts, judge.allocation().gpus)].push_back(&facts);
  if (kinds.empty()) return;
  const auto tolerance = judge.allocation().site.check.slower_than_median;
  if (!tolerance) {
    judge.not_checked("speed", "the site file gives no slower_than_median (--slower-than-median)");
    return;
  }
  const double share = median_core_share(judge.ranks());
  const bool share_cores = share < own_core;
  if (share_cores)
    judge.not_checked("speed",
                      fmt::format("by the clock: cores are shared, the middle rank had its own {:.0f}% of the time; "
                                  "compared by processor time",
                                  100.0 * share));
  for (const auto& [kind, ranks] : kinds) {
    if (ranks.size() < 2) {
      judge.not_checked("speed", fmt::format("one rank on {} has none to be compared with", kind));
      continue;
    }
    for (const Rate& rate : rates) {
      const auto value = [&](const RankFacts& facts) {
        return *facts.speed.*(share_cores ? rate.by_processor_time : rate.by_clock);
      };
      std::vector<double> values;
      for (const RankFacts* facts : ranks) values.push_back(value(*facts));
      const double median = median_of(values);
      std::map<std::string, std::vector<const RankFacts*>> slow;  // by node
      for (const RankFacts* facts : ranks)
        if (value(*facts) < (1.0 - *tolerance) * median) slow[facts->node].push_back(facts);
      for (const auto& [node, late] : slow) {
        const RankFacts& worst = **std::min_element(
            late.begin(), late.end(), [&](const RankFacts* a, const RankFacts* b) { return value(*a) < value(*b); });
        std::vector<int> numbers;
        for (const RankFacts* facts : late) numbers.push_back(facts->rank);
        std::string what = fmt::format("{}: {} at {}, {:.0f}% below the median of {} on {} ({})", rank_words(numbers),
                                       rate.what, rate.text(value(worst)), 100.0 * (1.0 - value(worst) / median),
                                       plural(ranks.size(), "rank"), kind, rate.text(median));
        if (late.size() > 1) what += fmt::format(", rank {} the slowest", worst.rank);
        if (!share_cores && worst.speed->core_share < own_core)
          what += fmt::format("; it had its core {:.0f}% of the time, something else runs there",
                              100.0 * worst.speed->core_share);
        judge.node(node, {.outcome = Outcome::fail, .check = "speed", .what = std::move(what)});
      }
    }
  }
}

std::optional<BytesPerSecond> threshold_of(const slurm::CheckThresholds& check, LinkKind kind) {
  switch (kind) {
    case LinkKind::send:
      return check.send_between_nodes;
    case LinkKind::all_reduce_within_node:
      return check.all_reduce_within_node;
    case LinkKind::all_reduce_between_nodes:
      return check.all_reduce_between_nodes;
    case LinkKind::all_reduce_all:
      return check.all_reduce_all;
  }
  return std::nullopt;
}

class LinkJudge {
 public:
  explicit LinkJudge(Judge& judge) : judge_(judge), allocation_(judge.allocation()) {}

  void run() {
    const std::vector<LinkSpeed>& links = allocation_.speed.links;
    if (links.empty()) return;
    const bool share_cores = median_core_share(judge_.ranks()) < own_core;
    const auto& check = allocation_.site.check;
    const bool has_threshold = check.send_between_nodes || check.all_reduce_within_node ||
                               check.all_reduce_between_nodes || check.all_reduce_all;
    if (has_threshold && !allocation_.speed.on_gpu)
      judge_.not_checked("links",
                         "against the site's thresholds: they are for GPUs, measured was between cores, from host "
                         "memory");
    if (!check.slower_than_median)
      judge_.not_checked("links",
                         "against one another: the site file gives no slower_than_median (--slower-than-median)");
    else if (share_cores)
      judge_.not_checked("links", "against one another: cores are shared, which slows messages by chance");
    compare_ = check.slower_than_median && !share_cores;
    judge_sends();
    judge_within_nodes();
    judge_over_nodes(LinkKind::all_reduce_between_nodes, "one rank of each node");
    judge_over_nodes(LinkKind::all_reduce_all, "all ranks");
  }

 private:
  [[nodiscard]] const RankFacts& rank(int number) const { return judge_.ranks()[static_cast<std::size_t>(number)]; }
  [[nodiscard]] std::vector<const LinkSpeed*> of(LinkKind kind) const {
    std::vector<const LinkSpeed*> found;
    for (const LinkSpeed& link : allocation_.speed.links)
      if (link.kind == kind) found.push_back(&link);
    return found;
  }
  /// Links are of the same kind if their ends are.
  [[nodiscard]] std::string kind_of_link(const LinkSpeed& link) const {
    return fmt::format("{} {} {}", kind_of(rank(link.from), allocation_.gpus), kind_of(rank(link.to), allocation_.gpus),
                       link.ranks);
  }
  [[nodiscard]] std::map<std::string, double> medians(const std::vector<const LinkSpeed*>& links) const {
    std::map<std::string, std::vector<double>> values;
    for (const LinkSpeed* link : links) values[kind_of_link(*link)].push_back(link->bandwidth.value());
    std::map<std::string, double> found;
    for (const auto& [kind, all] : values)
      if (all.size() >= fewest_links) found[kind] = median_of(all);
    return found;
  }
  /// Why a link is too slow; empty if it is not.
  [[nodiscard]] std::string slowness(const LinkSpeed& link, const std::map<std::string, double>& medians) const {
    const std::string reached = format_bandwidth(link.bandwidth);
    if (const auto least = threshold_of(allocation_.site.check, link.kind);
        least && allocation_.speed.on_gpu && link.bandwidth < *least)
      return fmt::format("{}, the site expects at least {}", reached, format_bandwidth(*least));
    const auto median = medians.find(kind_of_link(link));
    if (!compare_ || median == medians.end()) return {};
    const double share = link.bandwidth.value() / median->second;
    if (share >= 1.0 - *allocation_.site.check.slower_than_median) return {};
    return fmt::format("{}, {:.0f}% below the median of {}", reached, 100.0 * (1.0 - share), byte_rate(median->second));
  }

  /// A node whose links are all slow is to blame; a slow link between two other nodes may be the network's fault.
  void judge_sends() {
    const std::vector<const LinkSpeed*> sends = of(LinkKind::send);
    const std::map<std::string, double> usual = medians(sends);
    struct Slow {
      std::string from;
      std::string to;
      std::string what;
    };
    std::vector<Slow> slow;
    std::map<std::string, int> links_of;
    std::map<std::string, int> slow_of;
    for (const LinkSpeed* link : sends) {
      const std::string& from = rank(link->from).node;
      const std::string& to = rank(link->to).node;
      ++links_of[from];
      ++links_of[to];
      const std::string why = slowness(*link, usual);
      if (why.empty()) continue;
      ++slow_of[from];
      ++slow_of[to];
      slow.push_back({from, to, fmt::format("{} -> {} (ranks {} and {}): {}", from, to, link->from, link->to, why)});
    }
    if (slow.empty()) return;
    std::set<std::string> to_blame;
    if (slow.size() < sends.size() && judge_.nodes().size() > 2)
      for (const auto& [node, count] : slow_of)
        if (count == links_of[node]) to_blame.insert(node);
    for (const Slow& link : slow) {
      const bool from_blamed = to_blame.contains(link.from);
      const bool to_blamed = to_blame.contains(link.to);
      for (const auto& [node, blamed] : {std::pair(link.from, from_blamed), std::pair(link.to, to_blamed)})
        if (blamed)
          judge_.node(node,
                      {.outcome = Outcome::fail, .check = "links", .what = "all its links are slow: " + link.what});
        else if (!from_blamed && !to_blamed && slow.size() < sends.size())
          judge_.node(node, {.outcome = Outcome::warn, .check = "links", .what = "slow link " + link.what});
    }
    if (slow.size() == sends.size())
      judge_.job({.outcome = Outcome::fail,
                  .check = "links",
                  .what = fmt::format("all {} between nodes are slow, the first: {}", plural(sends.size(), "link"),
                                      slow.front().what),
                  .remedy = "does MPI or NCCL use the fast network (FI_PROVIDER, NCCL_NET, the site's environment)?"});
  }

  void judge_within_nodes() {
    const std::vector<const LinkSpeed*> links = of(LinkKind::all_reduce_within_node);
    const std::map<std::string, double> usual = medians(links);
    for (const LinkSpeed* link : links)
      if (const std::string why = slowness(*link, usual); !why.empty())
        judge_.node(rank(link->from).node, {.outcome = Outcome::fail,
                                            .check = "links",
                                            .what = fmt::format("all-reduce over its {} ranks: {}", link->ranks, why)});
  }

  void judge_over_nodes(LinkKind kind, const char* over) {
    for (const LinkSpeed* link : of(kind))
      if (const std::string why = slowness(*link, {}); !why.empty())
        judge_.job(
            {.outcome = Outcome::fail,
             .check = "links",
             .what = fmt::format("all-reduce over {}: {}", over, why),
             .remedy = "where no node stands out: does NCCL use the fast network (NCCL_NET, the site's environment)?"});
  }

  Judge& judge_;
  const Allocation& allocation_;
  bool compare_ = false;
};

}  // namespace

void judge_writing(Judge& judge) {
  // Servers shared by many vary more than processors do.
  constexpr double outlier = 0.5;
  constexpr std::size_t fewest_nodes = 3;
  std::vector<const RankFacts*> wrote;
  std::map<std::string, std::vector<std::string>> problems;  // what -> nodes
  std::vector<double> reached;
  for (const RankFacts& facts : judge.ranks()) {
    if (!facts.writing) continue;
    wrote.push_back(&facts);
    if (facts.writing->problem.empty())
      reached.push_back(facts.writing->bytes_per_s);
    else
      problems[facts.writing->problem].push_back(facts.node);
  }
  const auto fail_or_warn = [&](const std::string& node, Outcome outcome, std::string what) {
    judge.node(node, {.outcome = outcome, .check = "writing", .what = std::move(what)});
  };
  for (const auto& [what, nodes] : problems) {
    if (nodes.size() == wrote.size())
      judge.job({.outcome = Outcome::fail, .check = "writing", .what = what + " (on every node)"});
    else
      for (const std::string& node : nodes) fail_or_warn(node, Outcome::fail, what);
  }
  if (reached.empty()) return;
  const double median = median_of(reached);
  const auto& least = judge.allocation().site.check.write_per_node;
  const bool all_below =
      least && std::all_of(reached.begin(), reached.end(), [&](double rate) { return rate < least->value(); });
  if (all_below)
    judge.job({.outcome = Outcome::fail,
               .check = "writing",
               .what = fmt::format("nodes write to {} at {} (median), the site expects at least {} of each",
                                   wrote.front()->writing->folder, byte_rate(median), format_bandwidth(*least)),
               .remedy = "is it the fast file system of the site? others may be writing to it now"});
  for (const RankFacts* facts : wrote) {
    const WriteSpeed& writing = *facts->writing;
    if (!writing.problem.empty()) continue;
    if (least && !all_below && writing.bytes_per_s < least->value())
      fail_or_warn(facts->node, Outcome::fail,
                   fmt::format("writes to {} at {}, the site expects at least {}", writing.folder,
                               byte_rate(writing.bytes_per_s), format_bandwidth(*least)));
    else if (reached.size() >= fewest_nodes && writing.bytes_per_s < outlier * median)
      fail_or_warn(facts->node, Outcome::warn,
                   fmt::format("writes to {} at {}, {:.0f}% below the median of {} ({})", writing.folder,
                               byte_rate(writing.bytes_per_s), 100.0 * (1.0 - writing.bytes_per_s / median),
                               plural(reached.size(), "node"), byte_rate(median)));
  }
}

void judge_speed(Judge& judge) {
  judge_ranks(judge);
  LinkJudge(judge).run();
}

std::string flop_rate(double flop_per_s) {
  return flop_per_s >= 1e12 ? fmt::format("{:.2f} TFLOP/s", flop_per_s / 1e12)
                            : fmt::format("{:.1f} GFLOP/s", flop_per_s / 1e9);
}

bool looks_slow(const Allocation& allocation) {
  Judge judge(allocation);
  judge_speed(judge);
  judge_writing(judge);
  return std::move(judge).verdict().outcome() != Outcome::ok;
}

}  // namespace sailor::preflight
