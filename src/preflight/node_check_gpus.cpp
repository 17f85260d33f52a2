// Checks the GPUs of the ranks: of the planned type, one for each, healthy, idle.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cluster/gpu_match.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "preflight/node_check_parts.hpp"

namespace sailor::preflight {

namespace {

bool wants_gpu(const RankFacts& facts) {
  if (facts.planned) return facts.planned->on_gpu;
  return facts.visible_gpus && !facts.visible_gpus->empty();
}

/// The entry of CUDA_VISIBLE_DEVICES that the rank uses; empty if it sees several and they are fewer than the ranks.
std::string own_entry(const RankFacts& facts) {
  if (!facts.visible_gpus) return {};
  const std::vector<std::string> entries = split(*facts.visible_gpus, ',');
  const std::size_t chosen = entries.size() == 1 ? 0 : static_cast<std::size_t>(facts.local_rank);
  return chosen < entries.size() ? entries[chosen] : "";
}

/// "rank 3", with its GPU
std::string rank_with_gpu(const RankFacts& facts, const GpuFacts& gpu) {
  const std::string name = gpu.uuid.empty() ? gpu.bus_id : gpu.uuid;
  return fmt::format("rank {} ({})", facts.rank, name.empty() ? gpu.name : name);
}

void judge_type(Judge& judge, const RankFacts& facts, std::map<std::string, std::vector<int>>& not_compared) {
  const GpuCatalogue& gpus = judge.allocation().gpus;
  const std::string& planned = facts.planned->gpu;
  const auto wrong = [&](std::string has) {
    judge.node(facts.node, {.outcome = Outcome::fail,
                            .check = "gpu-type",
                            .what = fmt::format("rank {} needs {} by the plan, and has {}", facts.rank, planned, has)});
  };
  if (const auto own = own_gpu(facts)) {
    const GpuFacts& gpu = facts.gpus[*own];
    const GpuType* type = match_device(gpus, gpu.name, gpu.memory_total);
    if (type == nullptr)
      not_compared[fmt::format("the GPU catalogue does not know '{}'{}", gpu.name,
                               gpu.memory_total ? " with " + format_bytes(*gpu.memory_total) : "")]
          .push_back(facts.rank);
    else if (type->name != planned)
      wrong(fmt::format("{} ({})", type->name, gpu.name));
    return;
  }
  if (facts.gres_type == "-") return wrong("no GPU by slurm.conf");
  const GpuType* type = facts.gres_type.empty() ? nullptr : gpus.find_gres(facts.gres_type);
  if (type != nullptr && type->name != planned && !may_be(gpus, facts.gres_type, planned))
    return wrong(fmt::format("{} by slurm.conf (gpu:{})", type->name, facts.gres_type));
  not_compared[type == nullptr ? "neither a driver nor slurm.conf says what GPU it is"
                               : fmt::format("compared with slurm.conf only (gpu:{})", facts.gres_type)]
      .push_back(facts.rank);
}

/// Reports nodes without the driver, or that lack a GPU that equal nodes have.
void judge_presence(Judge& judge) {
  const bool some_have_one =
      std::any_of(judge.ranks().begin(), judge.ranks().end(), [](const RankFacts& facts) { return facts.has_driver; });
  std::map<std::string, std::vector<std::string>> counts;  // GPUs of nodes, by GRES type
  const auto seen = [](const std::vector<const RankFacts*>& ranks) {
    std::size_t most = 0;
    for (const RankFacts* facts : ranks)
      if (facts->by_nvml) most = std::max(most, facts->gpus.size());
    return most;
  };
  for (const auto& ranks : judge.nodes())
    if (ranks.front()->by_nvml) counts[ranks.front()->gres_type].push_back(std::to_string(seen(ranks)));
  std::map<std::string, std::string> usual_counts;
  for (const auto& [type, values] : counts) usual_counts[type] = commonest(values);
  for (const auto& ranks : judge.nodes()) {
    const RankFacts& first = *ranks.front();
    if (!std::any_of(ranks.begin(), ranks.end(), [](const RankFacts* facts) { return wants_gpu(*facts); })) continue;
    if (some_have_one && !first.has_driver)
      judge.node(first.node, {.outcome = Outcome::fail,
                              .check = "gpu-state",
                              .what = "there is no NVIDIA driver, on other nodes there is"});
    if (!first.by_nvml) continue;
    const std::string& usual = usual_counts.at(first.gres_type);
    if (seen(ranks) < std::stoul(usual))
      judge.node(first.node,
                 {.outcome = Outcome::fail,
                  .check = "gpu-state",
                  .what = fmt::format("the driver knows {}, on nodes alike {}", plural(seen(ranks), "GPU"), usual)});
  }
}

/// What a GPU is compared with: the site's limits, and the values of GPUs of the same name.
struct Limits {
  std::optional<double> temperature_celsius;
  std::optional<double> used_share;
  std::optional<double> usual_clock_hz{};
  std::optional<double> usual_power_watts{};
  std::optional<double> usual_nvlinks{};
  std::optional<double> usual_pcie_generation{};
  std::optional<double> usual_unreadable_peers{};
};

std::vector<Finding> findings_of(const RankFacts& facts, const GpuFacts& gpu, const Limits& limits) {
  constexpr double rounding = 1.0;  // W
  constexpr std::int64_t hardware_slowdown = 0x8;
  constexpr std::int64_t software_thermal = 0x20;
  constexpr std::int64_t hardware_thermal = 0x40;
  constexpr std::int64_t power_brake = 0x80;
  constexpr std::int64_t prohibited = 2;
  const std::string who = rank_with_gpu(facts, gpu);
  std::vector<Finding> findings;
  const auto add = [&](Outcome outcome, const char* check, const std::string& what, const std::string& remedy = {}) {
    findings.push_back({.outcome = outcome, .check = check, .what = who + ": " + what, .remedy = remedy});
  };
  const std::int64_t reasons = gpu.throttle_reasons.value_or(0);
  if ((reasons & hardware_thermal) != 0)
    add(Outcome::fail, "throttling", "is throttled by the hardware for its temperature");
  if ((reasons & power_brake) != 0) add(Outcome::fail, "throttling", "is throttled by the power supply (power brake)");
  if ((reasons & hardware_slowdown) != 0 && (reasons & (hardware_thermal | power_brake)) == 0)
    add(Outcome::fail, "throttling", "is slowed down by the hardware");
  if ((reasons & software_thermal) != 0)
    add(Outcome::warn, "throttling", "is throttled by the driver for its temperature");
  if (gpu.highest_clock_hz && limits.usual_clock_hz && *gpu.highest_clock_hz < *limits.usual_clock_hz)
    add(Outcome::warn, "throttling",
        fmt::format("reaches at most {:.0f} MHz, GPUs alike {:.0f} MHz", *gpu.highest_clock_hz / 1e6,
                    *limits.usual_clock_hz / 1e6));
  if (gpu.power_limit_watts && limits.usual_power_watts &&
      *gpu.power_limit_watts < *limits.usual_power_watts - rounding)
    add(Outcome::warn, "power",
        fmt::format("may draw {:.0f} W, GPUs alike {:.0f} W", *gpu.power_limit_watts, *limits.usual_power_watts));
  const auto below = [](const std::optional<std::int64_t>& value, const std::optional<double>& usual) {
    return value && usual && static_cast<double>(*value) < *usual;
  };
  if (below(gpu.nvlinks_up, limits.usual_nvlinks))
    add(Outcome::fail, "nvlink",
        fmt::format("has {} NVLinks up, GPUs alike {:.0f}", *gpu.nvlinks_up, *limits.usual_nvlinks));
  if (gpu.unreadable_peers && limits.usual_unreadable_peers &&
      static_cast<double>(*gpu.unreadable_peers) > *limits.usual_unreadable_peers)
    add(Outcome::fail, "peer-access",
        fmt::format("cannot read the memory of {} of its node, GPUs alike of {:.0f}",
                    plural(static_cast<std::size_t>(*gpu.unreadable_peers), "other GPU"),
                    *limits.usual_unreadable_peers));
  if (gpu.pcie_lanes && gpu.highest_pcie_lanes && *gpu.pcie_lanes < *gpu.highest_pcie_lanes)
    add(Outcome::fail, "pcie", fmt::format("has {} of {} PCIe lanes", *gpu.pcie_lanes, *gpu.highest_pcie_lanes));
  if (below(gpu.highest_pcie_generation, limits.usual_pcie_generation))
    add(Outcome::fail, "pcie",
        fmt::format("has PCIe generation {}, GPUs alike {:.0f}", *gpu.highest_pcie_generation,
                    *limits.usual_pcie_generation));
  if (gpu.mig.value_or(false))
    add(facts.planned ? Outcome::fail : Outcome::warn, "mig", "is divided into instances (MIG)",
        "the administrator undivides it (nvidia-smi -mig 0)");
  if (gpu.mig && gpu.mig_pending && *gpu.mig != *gpu.mig_pending)
    add(Outcome::warn, "mig",
        fmt::format("is to be {} at the next reset (MIG)", *gpu.mig_pending ? "divided into instances" : "undivided"));
  if (limits.temperature_celsius && gpu.temperature_celsius && *gpu.temperature_celsius > *limits.temperature_celsius)
    add(Outcome::warn, "temperature",
        fmt::format("is {:.0f} degrees Celsius warm before any work, the site expects at most {:.0f}",
                    *gpu.temperature_celsius, *limits.temperature_celsius));
  if (gpu.memory_total && gpu.memory_used) {
    const double share = *gpu.memory_used / *gpu.memory_total;
    const std::string used =
        fmt::format("{} of {} are in use", format_bytes(*gpu.memory_used), format_bytes(*gpu.memory_total));
    const std::string whose =
        gpu.processes.value_or(0) > 0
            ? fmt::format(" ({} on it)", plural(static_cast<std::size_t>(*gpu.processes), "process"))
            : "";
    if (limits.used_share && share > *limits.used_share)
      add(Outcome::fail, "gpu-memory", fmt::format("{}{} before any work", used, whose));
    if (facts.planned && facts.planned->memory && *facts.planned->memory > *gpu.memory_total - *gpu.memory_used)
      add(Outcome::fail, "gpu-memory",
          fmt::format("{}, too little is left for {} that the plan needs", used, format_bytes(*facts.planned->memory)));
  }
  if (gpu.compute_mode == prohibited) add(Outcome::fail, "gpu-state", "computing is prohibited (compute mode)");
  if (gpu.uncorrected_errors.value_or(0) > 0)
    add(Outcome::fail, "ecc",
        fmt::format("{} memory errors that could not be corrected, since the driver was loaded",
                    *gpu.uncorrected_errors));
  if (gpu.repair_failed.value_or(false))
    add(Outcome::fail, "ecc", "a bad row of memory could not be replaced: no spare is left");
  if (gpu.repair_pending.value_or(false))
    add(Outcome::fail, "ecc", "bad memory is to be replaced at the next reset", "the administrator resets the GPU");
  if (gpu.uncorrected_errors.value_or(0) == 0 && gpu.uncorrected_errors_ever.value_or(0) > 0)
    add(Outcome::warn, "ecc",
        fmt::format("{} memory errors in its life that could not be corrected", *gpu.uncorrected_errors_ever));
  if (!gpu.xids.empty())
    add(Outcome::warn, "xid",
        fmt::format("{} in the kernel log, the last: {}", plural(gpu.xids.size(), "error"), gpu.xids.back()));
  return findings;
}

}  // namespace

std::optional<std::size_t> own_gpu(const RankFacts& facts) {
  if (!facts.by_nvml || facts.gpus.empty()) return std::nullopt;
  if (!facts.visible_gpus) {
    const std::size_t chosen = facts.gpus.size() == 1 ? 0 : static_cast<std::size_t>(facts.local_rank);
    return chosen < facts.gpus.size() ? std::optional(chosen) : std::nullopt;
  }
  const std::string entry = own_entry(facts);
  std::size_t number = 0;
  const auto [end, problem] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  if (problem == std::errc() && end == entry.data() + entry.size())
    return number < facts.gpus.size() ? std::optional(number) : std::nullopt;
  if (entry.empty()) return std::nullopt;
  for (std::size_t i = 0; i < facts.gpus.size(); ++i)
    if (facts.gpus[i].uuid.starts_with(entry)) return i;
  return std::nullopt;
}

std::string kind_of(const RankFacts& facts, const GpuCatalogue& gpus) {
  if (const auto own = own_gpu(facts)) {
    const GpuFacts& gpu = facts.gpus[*own];
    const GpuType* type = match_device(gpus, gpu.name, gpu.memory_total);
    return type == nullptr ? gpu.name : type->name;
  }
  if (!facts.gres_type.empty() && facts.gres_type != "-") {
    const GpuType* type = gpus.find_gres(facts.gres_type);
    return type == nullptr ? facts.gres_type : type->name;
  }
  return facts.cpu;
}

void judge_gpu_types(Judge& judge) {
  judge_presence(judge);
  std::map<std::string, std::vector<int>> not_compared;
  for (const RankFacts& facts : judge.ranks())
    if (facts.planned && facts.planned->on_gpu) judge_type(judge, facts, not_compared);
  for (const auto& [why, ranks] : not_compared)
    judge.not_checked("gpu-type",
                      ranks.size() == judge.ranks().size() ? why : fmt::format("{}: {}", rank_words(ranks), why));
}

void judge_gpu_sharing(Judge& judge) {
  constexpr const char* remedy =
      "give the step a GPU for each rank (srun --gpus-per-node=N), and start ranks with sailor-launch";
  std::vector<int> blind;
  for (const auto& ranks : judge.nodes()) {
    const RankFacts& first = *ranks.front();
    std::map<std::string, std::vector<int>> by_uuid;
    std::map<std::string, std::vector<int>> by_entry;  // of CUDA_VISIBLE_DEVICES, where nothing better is known
    std::vector<int> without;
    for (const RankFacts* facts : ranks) {
      if (!wants_gpu(*facts)) continue;
      const auto own = own_gpu(*facts);
      if (own && !facts->gpus[*own].uuid.empty())
        by_uuid[facts->gpus[*own].uuid].push_back(facts->rank);
      else if (const std::string entry = own_entry(*facts); !entry.empty())
        by_entry[entry].push_back(facts->rank);
      else if (facts->visible_gpus && !facts->visible_gpus->empty())
        without.push_back(facts->rank);
      else
        blind.push_back(facts->rank);
    }
    for (const auto& [uuid, sharing] : by_uuid)
      if (sharing.size() > 1)
        judge.job({.outcome = Outcome::fail,
                   .check = "gpu-sharing",
                   .what = fmt::format("{} share {} of {}", rank_words(sharing), uuid, first.node),
                   .remedy = remedy});
    // With a control group for each rank, every rank sees its GPU as number 0. As many GPUs as ranks: this is possible.
    const std::size_t given = first.step_gpus ? split(*first.step_gpus, ',').size() : 0;
    for (const auto& [entry, sharing] : by_entry) {
      if (sharing.size() < 2) continue;
      const bool certain = given > 0 && given < ranks.size();
      judge.job({.outcome = certain ? Outcome::fail : Outcome::warn,
                 .check = "gpu-sharing",
                 .what = certain
                             ? fmt::format("{} share {} of {} (CUDA_VISIBLE_DEVICES={})", rank_words(sharing),
                                           plural(given, "GPU"), first.node, entry)
                             : fmt::format("{} of {} all see GPU {} only: the same one, unless Slurm keeps each to its "
                                           "own (ConstrainDevices)",
                                           rank_words(sharing), first.node, entry),
                 .remedy = remedy});
    }
    if (!without.empty())
      judge.job({.outcome = Outcome::fail,
                 .check = "gpu-sharing",
                 .what = fmt::format("no GPU is left for {} of {} (CUDA_VISIBLE_DEVICES={})", rank_words(without),
                                     first.node, first.visible_gpus.value_or("")),
                 .remedy = "srun --gpus-per-node=N with as many as ranks"});
  }
  if (!blind.empty())
    judge.job({.outcome = Outcome::fail,
               .check = "gpu-sharing",
               .what = fmt::format("{} {} no GPU (CUDA_VISIBLE_DEVICES is not set)", rank_words(blind),
                                   blind.size() == 1 ? "sees" : "see"),
               .remedy = "srun --gpus-per-node=N with as many as ranks"});
}

/// Reports ranks of a node that may use fewer of its GPUs than the job has there: each is in a control group of its own
/// (--gpus-per-task, --gpu-bind), in which NCCL finds no NVLink path to the others' GPUs.
void judge_gpu_visibility(Judge& judge) {
  std::vector<int> unknown;
  for (const auto& ranks : judge.nodes()) {
    std::vector<int> confined;
    std::int64_t visible = 0;
    std::int64_t there = 0;
    std::size_t on_gpus = 0;
    for (const RankFacts* facts : ranks) {
      if (!wants_gpu(*facts)) continue;
      ++on_gpus;
      const std::int64_t most = facts->gpus_of_job.value_or(facts->gpus_of_node.value_or(0));
      const auto entries = static_cast<std::int64_t>(split(facts->visible_gpus.value_or(""), ',').size());
      const std::int64_t seen = facts->by_nvml ? static_cast<std::int64_t>(facts->gpus.size()) : entries;
      if (seen == 0 || seen >= most) continue;
      // Without the driver's library, only a variable that names one GPU may hide the others from the rank.
      if (!facts->by_nvml)
        unknown.push_back(facts->rank);
      else
        confined.push_back(facts->rank);
      visible = seen;
      there = most;
    }
    if (confined.empty() || on_gpus < 2) continue;
    judge.job(
        {.outcome = Outcome::warn,
         .check = "gpu-visibility",
         .what = fmt::format("{} {} only {} of the {} GPUs that {} on {}: NCCL cannot use NVLink between them",
                             rank_words(confined), confined.size() == 1 ? "may use" : "may each use", visible, there,
                             ranks.front()->gpus_of_job ? "the job has" : "there are", ranks.front()->node),
         .remedy = "start them without --gpus-per-task and --gpu-bind (and one_gpu_per_task in the site file): "
                   "sailor-launch and the plugin give each rank its GPU"});
  }
  if (!unknown.empty())
    judge.not_checked(
        "gpu-visibility",
        fmt::format("whether {} may use the other GPUs of the node: there is no driver to ask", rank_words(unknown)));
}

namespace {

/// Reports GPUs whose power limits are all below the default: perhaps the site's choice.
void judge_power_limits(Judge& judge, const std::map<std::string, std::vector<const GpuFacts*>>& by_name) {
  for (const auto& [name, gpus] : by_name) {
    const GpuFacts& first = *gpus.front();
    if (!first.power_limit_watts || !first.default_power_limit_watts) continue;
    const bool alike = std::all_of(gpus.begin(), gpus.end(), [&](const GpuFacts* gpu) {
      return gpu->power_limit_watts == first.power_limit_watts;
    });
    if (alike && *first.power_limit_watts < *first.default_power_limit_watts)
      judge.job({.outcome = Outcome::warn,
                 .check = "power",
                 .what = fmt::format("each {} may draw {:.0f} W of its usual {:.0f} W", name, *first.power_limit_watts,
                                     *first.default_power_limit_watts)});
  }
}

/// Reports ranks that were given an instance of a GPU (CUDA_VISIBLE_DEVICES=MIG-...).
void judge_instances(Judge& judge) {
  for (const auto& ranks : judge.nodes()) {
    std::vector<int> with_instance;
    bool planned = false;
    for (const RankFacts* facts : ranks)
      if (own_entry(*facts).starts_with("MIG-")) {
        with_instance.push_back(facts->rank);
        planned = planned || facts->planned;
      }
    if (!with_instance.empty())
      judge.node(ranks.front()->node, {.outcome = planned ? Outcome::fail : Outcome::warn,
                                       .check = "mig",
                                       .what = fmt::format("{} {} a part of a GPU (MIG)", rank_words(with_instance),
                                                           with_instance.size() == 1 ? "has" : "have")});
  }
}

}  // namespace

void judge_gpu_health(Judge& judge) {
  const slurm::CheckThresholds& thresholds = judge.allocation().site.check;
  std::map<std::string, std::vector<const GpuFacts*>> by_name;  // of the ranks' GPUs
  for (const RankFacts& facts : judge.ranks())
    if (const auto own = own_gpu(facts)) by_name[facts.gpus[*own].name].push_back(&facts.gpus[*own]);
  const auto usual = [](const std::vector<const GpuFacts*>& gpus, auto value) -> std::optional<double> {
    std::vector<std::string> values;
    for (const GpuFacts* gpu : gpus)
      if (gpu->*value) values.push_back(fmt::format("{:.0f}", static_cast<double>(*(gpu->*value))));
    return values.empty() ? std::nullopt : std::optional(std::stod(commonest(values)));
  };
  std::map<std::string, Limits> limits;  // by name
  for (const auto& [name, gpus] : by_name)
    limits[name] = {.temperature_celsius = thresholds.idle_temperature_celsius,
                    .used_share = thresholds.used_memory_share,
                    .usual_clock_hz = usual(gpus, &GpuFacts::highest_clock_hz),
                    .usual_power_watts = usual(gpus, &GpuFacts::power_limit_watts),
                    .usual_nvlinks = usual(gpus, &GpuFacts::nvlinks_up),
                    .usual_pcie_generation = usual(gpus, &GpuFacts::highest_pcie_generation),
                    .usual_unreadable_peers = usual(gpus, &GpuFacts::unreadable_peers)};
  bool some = false;
  for (const auto& ranks : judge.nodes()) {
    std::vector<std::string> seen;
    for (const RankFacts* facts : ranks) {
      const auto own = own_gpu(*facts);
      if (!own || !wants_gpu(*facts)) continue;
      some = true;
      const GpuFacts& gpu = facts->gpus[*own];
      if (std::find(seen.begin(), seen.end(), gpu.uuid) != seen.end()) continue;  // two ranks share the GPU
      seen.push_back(gpu.uuid);
      for (Finding& finding : findings_of(*facts, gpu, limits.at(gpu.name)))
        judge.node(facts->node, std::move(finding));
    }
  }
  judge_instances(judge);
  if (!some) return;
  judge_power_limits(judge, by_name);
  if (!thresholds.idle_temperature_celsius)
    judge.not_checked("temperature", "the site file gives no idle_temperature_celsius");
  if (!thresholds.used_memory_share) judge.not_checked("gpu-memory", "the site file gives no used_memory_share");
}

}  // namespace sailor::preflight
