#include "preflight/node_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "preflight/gather_facts.hpp"
#include "preflight/node_check_parts.hpp"

namespace sailor::preflight {

namespace {

Outcome worst_of(const std::vector<Finding>& findings) {
  Outcome worst = Outcome::ok;
  for (const Finding& finding : findings)
    if (finding.outcome != Outcome::not_checked) worst = std::max(worst, finding.outcome);
  return worst;
}

/// Reports what could not be found out, by check and reason, with the nodes concerned.
void add_unknown(Judge& judge) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> nodes;
  for (const auto& ranks : judge.nodes())
    for (const RankFacts* facts : ranks)
      for (const Unknown& unknown : facts->unknown) {
        auto& names = nodes[{unknown.check, unknown.why}];
        if (names.empty() || names.back() != facts->node) names.push_back(facts->node);
      }
  for (const auto& [key, names] : nodes)
    judge.not_checked(key.first, names.size() == judge.nodes().size()
                                     ? key.second
                                     : fmt::format("{}: {}", fold_names(names), key.second));
  for (const Unknown& unknown : judge.allocation().speed.unknown) judge.not_checked(unknown.check, unknown.why);
}

}  // namespace

Outcome NodeVerdict::outcome() const { return worst_of(findings); }

Outcome Verdict::outcome() const {
  Outcome worst = worst_of(job);
  for (const NodeVerdict& node : nodes) worst = std::max(worst, node.outcome());
  return worst;
}

std::vector<std::string> Verdict::exclude() const {
  std::vector<std::string> names;
  for (const NodeVerdict& node : nodes)
    if (node.outcome() == Outcome::fail) names.push_back(node.node);
  if (names.size() == nodes.size()) names.clear();
  return names;
}

Judge::Judge(const Allocation& allocation) : allocation_(allocation) {
  for (const RankFacts& facts : allocation.ranks) {
    const auto [at, is_new] = index_.emplace(facts.node, by_node_.size());
    if (is_new) {
      by_node_.emplace_back();
      verdict_.nodes.push_back({.node = facts.node});
    }
    by_node_[at->second].push_back(&facts);
    verdict_.nodes[at->second].ranks.push_back(facts.rank);
  }
}

void Judge::node(const std::string& node, Finding finding) {
  if (is_wanted(finding.check)) verdict_.nodes[index_.at(node)].findings.push_back(std::move(finding));
}
void Judge::job(Finding finding) {
  if (is_wanted(finding.check)) verdict_.job.push_back(std::move(finding));
}
void Judge::not_checked(std::string check, std::string what) {
  if (is_wanted(check))
    verdict_.not_checked.push_back(
        {.outcome = Outcome::not_checked, .check = std::move(check), .what = std::move(what)});
}

void sort_by_outcome(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.outcome > b.outcome; });
}

Verdict Judge::verdict() && {
  for (NodeVerdict& node : verdict_.nodes) sort_by_outcome(node.findings);
  sort_by_outcome(verdict_.job);
  return std::move(verdict_);
}

Verdict judge(const Allocation& allocation) {
  Judge judge(allocation);
  judge_plan(judge);
  judge_gpu_count(judge);
  judge_gpu_types(judge);
  judge_gpu_sharing(judge);
  judge_gpu_visibility(judge);
  judge_gpu_health(judge);
  judge_cores(judge);
  judge_host(judge);
  judge_network_cards(judge);
  judge_fabric(judge);
  judge_versions(judge);
  judge_variables(judge);
  judge_speed(judge);
  judge_writing(judge);
  add_unknown(judge);
  return std::move(judge).verdict();
}

const std::vector<std::string>& check_names() {
  static const std::vector<std::string> names{
      "plan",        "gpu-count",     "gpu-type",  "gpu-sharing",   "gpu-visibility",
      "gpu-state",   "gpu-memory",    "mig",       "power",         "temperature",
      "throttling",  "ecc",           "xid",       "nvlink",        "pcie",
      "peer-access", "cores",         "numa",      "cpu-clock",     "cpu-throttling",
      "memory",      "memory-errors", "load",      "network-cards", "fabric",
      "space",       "versions",      "variables", "speed",         "links",
      "writing"};
  return names;
}

void judge_plan(Judge& judge) {
  std::map<std::string, std::vector<int>> problems;
  for (const RankFacts& facts : judge.ranks())
    if (!facts.plan_problem.empty()) problems[facts.plan_problem].push_back(facts.rank);
  for (const auto& [what, ranks] : problems)
    judge.job({.outcome = Outcome::fail,
               .check = "plan",
               .what = ranks.size() == judge.ranks().size() ? what : fmt::format("{}: {}", rank_words(ranks), what)});
}

void judge_gpu_count(Judge& judge) {
  const std::int64_t least = judge.allocation().least_gpus;
  for (const auto& ranks : judge.nodes()) {
    const RankFacts& facts = *ranks.front();
    const auto found = static_cast<std::int64_t>(facts.by_nvml ? facts.gpus.size() : 0);
    if (found >= least) continue;
    judge.node(facts.node,
               {.outcome = Outcome::fail,
                .check = "gpu-count",
                .what = facts.by_nvml ? fmt::format("NVIDIA's driver finds {} of {}", found,
                                                    plural(static_cast<std::size_t>(least), "GPU"))
                                      : fmt::format("{} should be there, and NVIDIA's driver does not answer",
                                                    plural(static_cast<std::size_t>(least), "GPU"))});
  }
}

void judge_cores(Judge& judge) {
  std::vector<std::string> overlapping;
  std::vector<std::string> spread;
  for (const auto& ranks : judge.nodes()) {
    const RankFacts& first = *ranks.front();
    if (ranks.size() < 2) continue;
    // Ranks that may run on all cores are not bound at all.
    const bool unbound = std::all_of(ranks.begin(), ranks.end(), [&](const RankFacts* facts) {
      return facts->cores == first.cores && static_cast<int>(facts->cores.size()) == facts->cores_online;
    });
    if (unbound) {
      if (first.numa_nodes_with_cores > 1) spread.push_back(first.node);
      continue;
    }
    std::map<int, int> users;
    for (const RankFacts* facts : ranks)
      for (const int core : facts->cores) ++users[core];
    std::vector<int> shared;
    for (const auto& [core, count] : users)
      if (count > 1) shared.push_back(core);
    // At least as many cores as ranks, and the same for all ranks: Slurm gave them the node together.
    const bool together =
        std::all_of(ranks.begin(), ranks.end(), [&](const RankFacts* facts) { return facts->cores == first.cores; }) &&
        first.cores.size() >= ranks.size();
    if (!shared.empty() && !together)
      overlapping.push_back(fmt::format("{} (cores {})", first.node, core_list(shared)));
  }
  if (!overlapping.empty())
    judge.job({.outcome = Outcome::warn,
               .check = "cores",
               .what = fmt::format("ranks have to share cores on {}", join(overlapping, ", ")),
               .remedy = "srun --cpus-per-task=N --cpu-bind=cores"});
  if (!spread.empty())
    judge.job({.outcome = Outcome::warn,
               .check = "numa",
               .what = fmt::format("ranks are not bound to cores on {}, which {} several NUMA nodes",
                                   fold_names(spread), spread.size() == 1 ? "has" : "have"),
               .remedy = "srun --cpus-per-task=N --cpu-bind=cores, or start ranks with sailor-launch"});
}

namespace {

/// A GPU's cores by the node's layout or by the system, and the source; empty if neither says.
struct CoresOfGpu {
  std::vector<int> cores;
  std::string who;
};

std::optional<CoresOfGpu> cores_of_gpu(const RankFacts& facts, const slurm::Site& site, const std::string& kind,
                                       std::string& why_not) {
  const auto own = own_gpu(facts);
  if (own && !facts.gpus[*own].cores.empty()) return CoresOfGpu{facts.gpus[*own].cores, "the system"};
  const slurm::NodeLayout* layout = site.find_layout(kind);
  if (layout == nullptr || !facts.visible_gpus) return std::nullopt;
  const std::vector<int> seen = parse_core_list(*facts.visible_gpus);
  std::size_t number = static_cast<std::size_t>(facts.local_rank);
  if (seen.size() == 1) number = static_cast<std::size_t>(seen.front());
  if (number >= layout->cores.size()) return std::nullopt;
  const slurm::CoreRange range = layout->cores[number];
  for (const slurm::CoreRange& other : layout->cores)
    if (other.last >= facts.cores_online) {
      why_not = fmt::format("the site's nodes with {} have cores up to {}, this one has {}", kind,
                            layout->cores.back().last, facts.cores_online);
      return std::nullopt;
    }
  CoresOfGpu found{{}, "the site file"};
  for (int core = range.first; core <= range.last; ++core) found.cores.push_back(core);
  return found;
}

/// Reports ranks that run on other cores than those near their GPUs, and host memory that may lie on NUMA nodes that
/// are not the host's.
void judge_binding(Judge& judge) {
  const Allocation& allocation = judge.allocation();
  std::vector<std::string> far;
  std::vector<int> memory_astray;
  std::map<std::string, std::vector<int>> not_known;
  for (const RankFacts& facts : judge.ranks()) {
    const std::string kind = kind_of(facts, allocation.gpus);
    std::string why_not;
    const auto beside = cores_of_gpu(facts, allocation.site, kind, why_not);
    if (!why_not.empty()) not_known[why_not].push_back(facts.rank);
    if (beside && std::none_of(facts.cores.begin(), facts.cores.end(), [&](int core) {
          return std::find(beside->cores.begin(), beside->cores.end(), core) != beside->cores.end();
        }))
      far.push_back(fmt::format("rank {} ({}) runs on cores {}, its GPU is beside {} (says {})", facts.rank, facts.node,
                                core_list(facts.cores), core_list(beside->cores), beside->who));
    const slurm::NodeLayout* layout = allocation.site.find_layout(kind);
    if (layout == nullptr || layout->memory_nodes.empty() || facts.memory_nodes.empty()) continue;
    const std::vector<int>& candidates = facts.bound_memory_nodes ? *facts.bound_memory_nodes : facts.memory_nodes;
    if (std::any_of(candidates.begin(), candidates.end(), [&](int node) {
          return std::find(layout->memory_nodes.begin(), layout->memory_nodes.end(), node) ==
                 layout->memory_nodes.end();
        }))
      memory_astray.push_back(facts.rank);
  }
  constexpr std::size_t shown = 4;
  for (std::size_t i = 0; i < std::min(far.size(), shown); ++i)
    judge.job({.outcome = Outcome::warn,
               .check = "cores",
               .what = far[i],
               .remedy = "start ranks with sailor-launch, or srun --cpu-bind and --gpu-bind"});
  if (far.size() > shown)
    judge.job(
        {.outcome = Outcome::warn, .check = "cores", .what = fmt::format("so do {} more ranks", far.size() - shown)});
  if (!memory_astray.empty())
    judge.job({.outcome = Outcome::warn,
               .check = "numa",
               .what = fmt::format("host memory of {} may come to lie on NUMA nodes that are not the host's",
                                   rank_words(memory_astray)),
               .remedy = "numactl --membind, as the scripts of sailor-submit do"});
  for (const auto& [why, ranks] : not_known) judge.not_checked("cores", fmt::format("{}: {}", rank_words(ranks), why));
}

void judge_memory(Judge& judge) {
  std::map<std::string, std::vector<double>> totals;  // by kind
  for (const auto& ranks : judge.nodes())
    if (ranks.front()->memory_total)
      totals[kind_of(*ranks.front(), judge.allocation().gpus)].push_back(ranks.front()->memory_total->value());
  constexpr double lost = 0.02;  // the kernel's own use differs a little from boot to boot
  for (const auto& ranks : judge.nodes()) {
    const RankFacts& first = *ranks.front();
    if (!first.memory_total || !first.memory_available) {
      judge.not_checked("memory", fmt::format("{}: /proc/meminfo is not readable", first.node));
      continue;
    }
    std::vector<double>& alike = totals[kind_of(first, judge.allocation().gpus)];
    std::nth_element(alike.begin(), alike.begin() + static_cast<std::ptrdiff_t>(alike.size() / 2), alike.end());
    const Bytes usual(alike[alike.size() / 2]);
    if (*first.memory_total < usual * (1.0 - lost))
      judge.node(first.node, {.outcome = Outcome::warn,
                              .check = "memory",
                              .what = fmt::format("has {} of memory, nodes alike have {}",
                                                  format_bytes(*first.memory_total), format_bytes(usual))});
    // The memory that ranks on cores need comes from here.
    Bytes needed{};
    bool known = false;
    for (const RankFacts* facts : ranks)
      if (facts->planned && !facts->planned->on_gpu && facts->planned->memory) {
        needed += *facts->planned->memory;
        known = true;
      }
    if (known && needed > *first.memory_available)
      judge.node(first.node, {.outcome = Outcome::fail,
                              .check = "memory",
                              .what = fmt::format("{} free for {} that need {} by the plan's prediction",
                                                  format_bytes(*first.memory_available), plural(ranks.size(), "rank"),
                                                  format_bytes(needed))});
    else if (!known && *first.memory_available < *first.memory_total * 0.5)
      judge.node(first.node,
                 {.outcome = Outcome::warn,
                  .check = "memory",
                  .what = fmt::format("only {} of {} of memory are free", format_bytes(*first.memory_available),
                                      format_bytes(*first.memory_total))});
  }
}

}  // namespace

void judge_host(Judge& judge) {
  judge_binding(judge);
  judge_memory(judge);
  constexpr double held_back = 0.98;
  constexpr std::int64_t many_corrected = 100;
  constexpr double idle_cores = 0.5;
  constexpr double idle_share = 0.02;
  constexpr Bytes little_space = 1.0 * gib;
  for (const auto& ranks : judge.nodes()) {
    const RankFacts& first = *ranks.front();
    const std::string& node = first.node;
    const auto warn = [&](const char* check, std::string what, std::string remedy = {}) {
      judge.node(node,
                 {.outcome = Outcome::warn, .check = check, .what = std::move(what), .remedy = std::move(remedy)});
    };
    if (first.allowed_clock_hz && *first.allowed_clock_hz < held_back * *first.highest_clock_hz)
      warn("cpu-clock", fmt::format("cores are limited to {:.2f} GHz of {:.2f} GHz", *first.allowed_clock_hz / 1e9,
                                    *first.highest_clock_hz / 1e9));
    std::int64_t throttles = 0;
    for (const RankFacts* facts : ranks) throttles += facts->throttles_while_measuring.value_or(0);
    if (throttles > 0)
      warn("cpu-throttling", fmt::format("cores were throttled for their temperature {} while the ranks worked",
                                         throttles == 1 ? "once" : fmt::format("{} times", throttles)));
    if (first.uncorrected_memory_errors.value_or(0) > 0)
      judge.node(node, {.outcome = Outcome::fail,
                        .check = "memory-errors",
                        .what = fmt::format(
                            "{} in host memory",
                            plural(static_cast<std::size_t>(*first.uncorrected_memory_errors), "uncorrected error"))});
    if (first.corrected_memory_errors.value_or(0) >= many_corrected)
      warn("memory-errors", fmt::format("{} errors were corrected in host memory since the node started",
                                        *first.corrected_memory_errors));
    if (first.busy_cores && *first.busy_cores > std::max(idle_cores, idle_share * first.cores_online))
      warn("load", fmt::format("other processes keep {:.1f} of {} cores busy", *first.busy_cores, first.cores_online),
           "whose are they? ask for whole nodes (--exclusive)");
    for (const Space& space : first.spaces) {
      if (!space.can_write)
        warn("space", fmt::format("cannot write to the {} ({})", space.what, space.path));
      else if (space.free < little_space)
        warn("space", fmt::format("{} free for the {} ({})", format_bytes(space.free), space.what, space.path));
    }
  }
}

void judge_versions(Judge& judge) {
  // Hosts of another architecture have another kernel and driver; what ranks communicate with must be the same.
  static const std::set<std::string, std::less<>> of_the_job{"sailor", "MPI", "NCCL", "libfabric", "FI_PROVIDER"};
  static const std::set<std::string, std::less<>> must_agree{"sailor", "MPI", "NCCL", "FI_PROVIDER"};
  struct Said {
    const RankFacts* facts;
    std::string value;
  };
  std::map<std::pair<std::string, std::string>, std::vector<Said>> by_name;  // what, and the kind of node if it matters
  std::set<std::string> names;
  for (const RankFacts& facts : judge.ranks())
    for (const Version& version : facts.versions) names.insert(version.name);
  for (const RankFacts& facts : judge.ranks())
    for (const std::string& name : names) {
      const auto found = std::find_if(facts.versions.begin(), facts.versions.end(),
                                      [&, &wanted = name](const Version& version) { return version.name == wanted; });
      const std::string kind = of_the_job.contains(name) ? "" : kind_of(facts, judge.allocation().gpus);
      by_name[{name, kind}].push_back({&facts, found == facts.versions.end() ? "none" : found->value});
    }
  for (const auto& [key, said] : by_name) {
    const std::string& name = key.first;
    std::vector<std::string> values;
    for (const Said& one : said) values.push_back(one.value);
    const std::string usual = commonest(values);
    const auto have_it = std::count(values.begin(), values.end(), usual);
    const Outcome outcome = must_agree.contains(name) ? Outcome::fail : Outcome::warn;
    std::map<std::string, std::set<std::string>> others;  // node -> values
    for (const Said& one : said)
      if (one.value != usual) others[one.facts->node].insert(one.value);
    if (others.empty()) continue;
    if (2 * static_cast<std::size_t>(have_it) <= values.size()) {
      // No majority: no node can be blamed.
      std::vector<std::string> parts;
      for (const std::string& value : std::set<std::string>(values.begin(), values.end())) {
        std::vector<std::string> nodes;
        for (const Said& one : said)
          if (one.value == value && (nodes.empty() || nodes.back() != one.facts->node))
            nodes.push_back(one.facts->node);
        parts.push_back(fmt::format("{} on {}", value, fold_names(nodes)));
      }
      judge.job({.outcome = outcome,
                 .check = "versions",
                 .what = fmt::format("{} is not the same everywhere: {}", name, join(parts, ", ")),
                 .remedy = "start all ranks with one environment"});
      continue;
    }
    for (const auto& [node, different] : others)
      judge.node(node, {.outcome = outcome,
                        .check = "versions",
                        .what = fmt::format("{} is {}, elsewhere {}", name, join(different, " and "), usual)});
  }
}

void judge_variables(Judge& judge) {
  std::map<std::string, std::vector<int>> wrong;  // what is wrong -> ranks
  for (const RankFacts& facts : judge.ranks())
    for (const Variable& variable : facts.variables)
      if (variable.value != variable.wanted)
        wrong[fmt::format("{} is {}, the site wants '{}'", variable.name,
                          variable.value ? fmt::format("'{}'", *variable.value) : "not set", variable.wanted)]
            .push_back(facts.rank);
  std::vector<std::string> of_all;
  for (const auto& [what, ranks] : wrong) {
    if (ranks.size() == judge.ranks().size()) {
      of_all.push_back(what);
      continue;
    }
    judge.job({.outcome = Outcome::warn,
               .check = "variables",
               .what = fmt::format("{}: {}", rank_words(ranks), what),
               .remedy = "start all ranks with one environment"});
  }
  if (!of_all.empty())
    judge.job({.outcome = Outcome::warn,
               .check = "variables",
               .what = join(of_all, "; "),
               .remedy = "the scripts of sailor-submit export what the site wants"});
}

std::string rank_words(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", core_list(ranks));
}

std::string commonest(const std::vector<std::string>& values) {
  std::map<std::string, int> counts;
  for (const std::string& value : values) ++counts[value];
  std::string best;
  int most = 0;
  for (const std::string& value : values)
    if (counts[value] > most) {
      best = value;
      most = counts[value];
    }
  return best;
}

}  // namespace sailor::preflight
