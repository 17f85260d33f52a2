#include "slurm/task_role.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "cluster/gpu_match.hpp"
#include "cluster/host_list.hpp"
#include "core/parse.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "plan/placement.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

namespace {

using Kind = std::pair<std::string, std::string>;  // GPU type and zone

Result<std::string> variable(const Lookup& environment, const std::string& name) {
  if (auto value = environment(name); value && !value->empty()) return *std::move(value);
  return fail(ErrorCode::unavailable, fmt::format("this is no task of a Slurm job step: {} is not set", name),
              "start it with srun");
}

Result<int> number_variable(const Lookup& environment, const std::string& name) {
  const auto text = variable(environment, name);
  if (!text) return fail(text.error());
  if (const auto number = parse_count(*text)) return *number;
  return fail(ErrorCode::invalid_input, fmt::format("{}='{}' is no number", name, *text));
}

/// "4(x2),2" -> {4, 4, 2}
Result<std::vector<int>> expand_counts(std::string_view text) {
  constexpr std::size_t most_nodes = 1'000'000;
  std::vector<int> counts;
  for (const std::string& part : split(text, ',')) {
    const std::size_t open = part.find("(x");
    const auto count = parse_count(std::string_view(part).substr(0, open));
    std::optional<int> times = 1;
    if (open != std::string::npos)
      times = part.ends_with(')') ? parse_count(std::string_view(part).substr(open + 2, part.size() - open - 3))
                                  : std::nullopt;
    if (!count || !times || counts.size() + static_cast<std::size_t>(*times) > most_nodes)
      return fail(ErrorCode::invalid_input, fmt::format("SLURM_STEP_TASKS_PER_NODE='{}' is not readable", text));
    counts.insert(counts.end(), static_cast<std::size_t>(*times), *count);
  }
  return counts;
}

/// Numbers the components that take part in the step, and brings their nodes together.
Result<void> find_components(Step& step, const Lookup& environment) {
  const auto size = environment("SLURM_HET_SIZE");
  const auto groups = size ? parse_count(*size) : std::optional(1);
  constexpr int most_components = 128;  // Slurm's own limit
  if (groups && *groups > most_components)
    return fail(ErrorCode::invalid_input, fmt::format("SLURM_HET_SIZE={} is more than Slurm allows", *groups));
  if (!groups) return fail(ErrorCode::invalid_input, fmt::format("SLURM_HET_SIZE='{}' is no number", *size));
  if (*groups < 2) return {};
  std::map<std::string, int> component_of;
  for (int group = 0; group < *groups; ++group) {
    auto list = environment(fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", group));
    // The old name: `srun A : B` without an allocation of its own, in Slurm 22.05.
    if (!list) list = environment(fmt::format("SLURM_JOB_NODELIST_PACK_GROUP_{}", group));
    if (!list) continue;
    const auto names = expand_host_list(*list);
    if (!names) return fail(names.error(), fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", group));
    for (const std::string& name : *names) component_of.emplace(name, group);
  }
  for (StepNode& node : step.nodes) {
    const auto found = component_of.find(node.name);
    if (found == component_of.end())
      return fail(
          ErrorCode::invalid_input,
          fmt::format("node {} of the step is in no component of the job (SLURM_JOB_NODELIST_HET_GROUP_*)", node.name));
    node.component = found->second;
  }
  std::stable_sort(step.nodes.begin(), step.nodes.end(),
                   [](const StepNode& a, const StepNode& b) { return a.component < b.component; });
  int group = -1;
  step.components = 0;
  for (StepNode& node : step.nodes) {
    if (node.component != group) ++step.components;
    group = std::exchange(node.component, step.components - 1);
  }
  return {};
}

bool runs_on_gpu(const std::string& device, const GpuCatalogue* gpus) {
  if (gpus == nullptr) return !device.starts_with("cpu");
  const auto type = gpus->find(device);
  return type && type->kind == DeviceKind::gpu;
}

/// The device of a node by slurm.conf, under its name in the catalogue; empty: not known.
std::string device_name(const StepNode& node, const GpuCatalogue& gpus) {
  if (node.gres_type.empty()) return {};
  if (node.gres_type == "-") return gpus.cpu() == nullptr ? "" : gpus.cpu()->name;
  const GpuType* type = gpus.find_gres(node.gres_type);
  return type == nullptr ? node.gres_type : type->name;
}

/// Whether a node can have this device, as far as slurm.conf says: a site may use the GRES type for other GPUs.
bool may_have(const StepNode& node, const std::string& device, const GpuCatalogue& gpus) {
  const std::string has = device_name(node, gpus);
  return has.empty() || has == device || (node.gres_type != "-" && may_be(gpus, node.gres_type, device));
}

/// The kind of every node when all GPU types are known and each is of one kind of the plan; else std::nullopt.
std::optional<std::vector<std::size_t>> kinds_by_device(const Step& step, const std::vector<Kind>& kinds,
                                                        const GpuCatalogue* gpus) {
  if (gpus == nullptr) return std::nullopt;
  std::vector<std::size_t> chosen;
  for (const StepNode& node : step.nodes) {
    const std::string device = device_name(node, *gpus);
    if (device.empty()) return std::nullopt;
    const auto is_it = [&](const Kind& kind) { return kind.first == device; };
    const auto may_be_it = [&](const Kind& kind) {
      return runs_on_gpu(kind.first, gpus) && may_have(node, kind.first, *gpus);
    };
    std::vector<std::size_t> fits;
    for (std::size_t kind = 0; kind < kinds.size(); ++kind)
      if (is_it(kinds[kind])) fits.push_back(kind);
    for (std::size_t kind = 0; kind < kinds.size() && fits.empty(); ++kind)
      if (std::count_if(kinds.begin(), kinds.end(), may_be_it) == 1 && may_be_it(kinds[kind])) fits.push_back(kind);
    if (fits.size() != 1) return std::nullopt;
    chosen.push_back(fits.front());
  }
  return chosen;
}

/// Assigns the components to the kinds in order: to each kind as many as hold its ranks.
Result<std::vector<std::size_t>> kinds_by_component(const Plan& plan, const Step& step,
                                                    const std::vector<Kind>& kinds) {
  std::vector<int> missing(kinds.size(), 0);  // ranks
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      missing[static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), Kind(stage.gpu, stage.zone)) -
                                       kinds.begin())] += plan.ranks_of(stage) * pipeline.count;
  std::vector<std::size_t> chosen;
  std::size_t kind = 0;
  for (std::size_t i = 0; i < step.nodes.size();) {
    const int component = step.nodes[i].component;
    while (kind + 1 < kinds.size() && missing[kind] == 0) ++kind;
    int tasks = 0;
    for (; i < step.nodes.size() && step.nodes[i].component == component; ++i) {
      tasks += step.nodes[i].tasks;
      chosen.push_back(kind);
    }
    missing[kind] -= tasks;
    if (missing[kind] < 0)
      return fail(ErrorCode::invalid_input,
                  fmt::format("component {} of the job has {} tasks, {} more than the plan has ranks left for {}",
                              component, tasks, -missing[kind], name_of_kind(kinds[kind])),
                  "sailor-submit writes a job script with the components in the order of the plan");
  }
  return chosen;
}

Result<std::vector<std::size_t>> kinds_of_nodes(const Plan& plan, const Step& step, const std::vector<Kind>& kinds,
                                                const GpuCatalogue* gpus) {
  if (kinds.size() == 1) return std::vector<std::size_t>(step.nodes.size(), 0);
  if (auto by_device = kinds_by_device(step, kinds, gpus)) return *std::move(by_device);
  if (step.components > 1) return kinds_by_component(plan, step, kinds);
  std::vector<std::string> names;
  for (const Kind& kind : kinds) names.push_back(name_of_kind(kind));
  return fail(ErrorCode::unavailable,
              fmt::format("the plan has ranks on {}, and nothing says which nodes of this job are which",
                          join(names, " and on ")),
              "start it as a heterogeneous job, as sailor-submit does");
}

/// Refuses nodes whose device is known and differs from the plan's.
Result<void> check_devices(const Step& step, const std::vector<Kind>& kinds, const std::vector<std::size_t>& kind_of,
                           const GpuCatalogue& gpus) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> wrong;  // has, needs -> nodes
  for (std::size_t i = 0; i < step.nodes.size(); ++i) {
    const std::string has = device_name(step.nodes[i], gpus);
    const std::string& needs = kinds[kind_of[i]].first;
    const auto type = gpus.find(needs);
    if (!type || type->kind == DeviceKind::cpu) continue;  // any node has cores
    if (may_have(step.nodes[i], needs, gpus)) continue;
    wrong[{has, needs}].push_back(step.nodes[i].name);
  }
  if (wrong.empty()) return {};
  std::string list;
  for (const auto& [types, names] : wrong)
    list += fmt::format("{}{} on {} {}, which {} {}", list.empty() ? "" : ", and ", types.second,
                        names.size() == 1 ? "node" : "nodes", name_some(names), names.size() == 1 ? "has" : "have",
                        types.first);
  return fail(ErrorCode::invalid_input, "the plan needs " + list,
              "ask for nodes of the plan's GPU type (--partition, --gres), or make a plan for these with sailor-plan");
}

/// Number of ranks of a kind that a node of this cluster holds: its GPUs by slurm.conf, else the max tasks of the step
/// on a node, or on cores at least its share of all ranks.
int devices_per_node(const Plan& plan, const Step& step, const Kind& kind, const GpuCatalogue* gpus) {
  const bool on_gpu = runs_on_gpu(kind.first, gpus);
  int known = 0;
  int tasks = 1;
  for (const StepNode& node : step.nodes) {
    tasks = std::max(tasks, node.tasks);
    if (on_gpu && (gpus == nullptr || may_have(node, kind.first, *gpus))) known = std::max(known, node.gpus);
  }
  if (!on_gpu && !step.nodes.empty())
    tasks = std::max(tasks, (plan.ranks() - 1) / static_cast<int>(step.nodes.size()) + 1);
  int devices = known > 0 ? known : tasks;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (Kind(stage.gpu, stage.zone) == kind) devices = std::max(devices, stage.tensor_parallel);
  return devices;
}

/// Nodes of one kind with the same number of ranks.
struct Share {
  std::size_t kind = 0;
  std::int64_t nodes = 0;
  int ranks = 0;  ///< on each
};

/// Whether the plan's tensor-parallel groups fit onto these nodes.
bool fits(const Plan& plan, const std::vector<Kind>& kinds, const std::vector<Share>& shares) {
  std::vector<PlacementNode> nodes;
  for (const Share& share : shares)
    for (std::int64_t i = 0; i < share.nodes; ++i)
      nodes.push_back({.name = std::to_string(nodes.size()),
                       .gpu = kinds[share.kind].first,
                       .zones = {kinds[share.kind].second},
                       .devices = share.ranks});
  return place_on_nodes(plan, nodes).has_value();
}

/// The options with which srun starts a task for each rank: "--nodes=2 --ntasks-per-node=4"; for several kinds of
/// nodes, or groups that do not divide evenly, those of each component, with " : " between, and then the kinds.
std::string options_for(const Plan& plan, const Step& step, const GpuCatalogue* gpus) {
  constexpr int most_ranks = 1 << 16;  // for which an even distribution is tried
  const std::vector<Kind> kinds = kinds_of(plan);
  NodeSizes sizes;
  for (const Kind& kind : kinds) sizes.add(kind.first, kind.second, devices_per_node(plan, step, kind, gpus), 0);
  NodeUse use;
  if (!use.place(plan, sizes)) return fmt::format("--ntasks={}", plan.ranks());
  std::vector<Kind> kind_of_stage;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) kind_of_stage.emplace_back(stage.gpu, stage.zone);
  std::vector<Share> shares;
  for (const NodeUse::Node& node : use.nodes()) {
    const Kind& kind = kind_of_stage[static_cast<std::size_t>(use.groups_of(node).front().stage)];
    const auto index = static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
    auto same = std::find_if(shares.begin(), shares.end(),
                             [&](const Share& share) { return share.kind == index && share.ranks == node.ranks; });
    if (same == shares.end()) same = shares.insert(shares.end(), Share{.kind = index, .nodes = 0, .ranks = node.ranks});
    same->nodes += node.count;
  }
  std::sort(shares.begin(), shares.end(),
            [](const Share& a, const Share& b) { return a.kind != b.kind ? a.kind < b.kind : a.ranks > b.ranks; });
  for (std::size_t kind = 0; kind < kinds.size() && plan.ranks() <= most_ranks; ++kind) {
    std::vector<Share> even;
    Share all{.kind = kind};
    std::int64_t ranks = 0;
    for (const Share& share : shares) {
      if (share.kind != kind) even.push_back(share);
      if (share.kind != kind) continue;
      all.nodes += share.nodes;
      ranks += share.nodes * share.ranks;
    }
    if (ranks % all.nodes != 0) continue;
    all.ranks = static_cast<int>(ranks / all.nodes);
    even.insert(std::find_if(even.begin(), even.end(), [&](const Share& share) { return share.kind > kind; }), all);
    if (even.size() < shares.size() && fits(plan, kinds, even)) shares = std::move(even);
  }
  std::vector<std::string> components;
  std::vector<std::string> names;
  for (const Share& share : shares) {
    components.push_back(fmt::format("--nodes={} --ntasks-per-node={}", share.nodes, share.ranks));
    names.push_back(name_of_kind(kinds[share.kind]));
  }
  return fmt::format("{}{}", join(components, " : "),
                     kinds.size() == 1 ? "" : fmt::format(" ({})", join(names, " : ")));
}

/// Whether SLURM_CPU_BIND decides it: "quiet,mask_cpu:0x3,0xC" gives each task its own cores, a single mask is for all.
bool bound_by_slurm(std::string_view bind) {
  for (const std::string_view word : {"none", "rank", "cores", "sockets", "ldoms", "threads"})
    for (const std::string& part : split(bind, ','))
      if (part == word) return true;
  const std::size_t list = std::min(bind.find("mask_"), bind.find("map_"));
  if (list == std::string_view::npos) return false;
  const std::size_t colon = bind.find(':', list);
  if (colon == std::string_view::npos) return false;
  const std::vector<std::string> masks = split(bind.substr(colon + 1), ',');
  return std::any_of(masks.begin(), masks.end(), [&](const std::string& mask) { return mask != masks.front(); });
}

}  // namespace

Lookup lookup_in(const std::map<std::string, std::string>& environment) {
  return [&environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
}

int Step::tasks() const {
  return std::accumulate(nodes.begin(), nodes.end(), 0, [](int sum, const StepNode& node) { return sum + node.tasks; });
}

Result<Step> read_step(const Lookup& environment) {
  const auto list = variable(environment, "SLURM_STEP_NODELIST");
  if (!list) return fail(list.error());
  const auto per_node = variable(environment, "SLURM_STEP_TASKS_PER_NODE");
  if (!per_node) return fail(per_node.error());
  const auto own_name = variable(environment, "SLURMD_NODENAME");
  if (!own_name) return fail(own_name.error());
  const auto local = number_variable(environment, "SLURM_LOCALID");
  if (!local) return fail(local.error());
  const auto names = expand_host_list(*list);
  if (!names) return fail(names.error(), "SLURM_STEP_NODELIST");
  const auto counts = expand_counts(*per_node);
  if (!counts) return fail(counts.error());
  if (names->size() != counts->size())
    return fail(ErrorCode::invalid_input,
                fmt::format("SLURM_STEP_NODELIST='{}' has {} nodes but SLURM_STEP_TASKS_PER_NODE='{}' has {}", *list,
                            names->size(), *per_node, counts->size()));
  Step step;
  step.local_task = *local;
  for (std::size_t i = 0; i < names->size(); ++i) step.nodes.push_back({.name = (*names)[i], .tasks = (*counts)[i]});
  SAILOR_CHECK(find_components(step, environment));
  const auto own =
      std::find_if(step.nodes.begin(), step.nodes.end(), [&](const StepNode& node) { return node.name == *own_name; });
  if (own == step.nodes.end())
    return fail(ErrorCode::invalid_input,
                fmt::format("SLURMD_NODENAME={} is not among the step's nodes {}", *own_name, *list));
  step.own_node = static_cast<std::size_t>(own - step.nodes.begin());
  if (*local >= own->tasks)
    return fail(ErrorCode::invalid_input,
                fmt::format("SLURM_LOCALID={} but node {} has {} tasks", *local, own->name, own->tasks));
  return step;
}

Result<TaskRole> find_role(const Plan& plan, const Step& step, const GpuCatalogue* gpus) {
  if (step.tasks() != plan.ranks())
    return fail(ErrorCode::invalid_input,
                fmt::format("the plan has {} but the job step has {}",
                            plan.ranks() == 1 ? "1 rank" : fmt::format("{} ranks", plan.ranks()),
                            step.tasks() == 1 ? "1 task" : fmt::format("{} tasks", step.tasks())),
                fmt::format("start it with srun {}, or make another plan", options_for(plan, step, gpus)));
  const std::vector<Kind> kinds = kinds_of(plan);
  const auto kind_of = kinds_of_nodes(plan, step, kinds, gpus);
  if (!kind_of) return fail(kind_of.error());
  if (gpus != nullptr) SAILOR_CHECK(check_devices(step, kinds, *kind_of, *gpus));
  for (std::size_t i = 0; i < step.nodes.size(); ++i)
    if (const StepNode& node = step.nodes[i];
        node.gpus > 0 && node.tasks > node.gpus && runs_on_gpu(kinds[(*kind_of)[i]].first, gpus))
      return fail(ErrorCode::invalid_input,
                  fmt::format("node {} has {} tasks but {} GPUs", node.name, node.tasks, node.gpus),
                  fmt::format("start at most {} on a node: --ntasks-per-node={}", node.gpus, node.gpus));
  std::vector<PlacementNode> nodes;
  for (std::size_t i = 0; i < step.nodes.size(); ++i) {
    const auto& [gpu, zone] = kinds[(*kind_of)[i]];
    nodes.push_back({.name = step.nodes[i].name,
                     .gpu = gpu,
                     .zones = {zone},
                     .devices = step.nodes[i].tasks,
                     .leaf_switch = step.nodes[i].leaf_switch});
  }
  const auto places = place_on_nodes(plan, nodes);
  if (!places) return fail(places.error());
  const RankPlace own{static_cast<int>(step.own_node), step.local_task};
  const auto found = std::find(places->begin(), places->end(), own);
  if (found == places->end())
    return fail(ErrorCode::invalid_input,
                fmt::format("node {} has more tasks than the plan has ranks for it", step.nodes[step.own_node].name));
  const RankRole role = rank_roles(plan)[static_cast<std::size_t>(found - places->begin())];
  const std::string& gpu = stage_of(plan, role).gpu;
  return TaskRole{.role = role,
                  .ranks = plan.ranks(),
                  .local_rank = own.device,
                  .local_ranks = step.nodes[step.own_node].tasks,
                  .gpu = gpu,
                  .on_gpu = runs_on_gpu(gpu, gpus),
                  .first_node = step.nodes[static_cast<std::size_t>(places->front().node)].name};
}

Result<std::vector<std::pair<std::string, std::string>>> role_environment(const TaskRole& task, const Plan& plan,
                                                                          const std::filesystem::path& plan_path,
                                                                          const Lookup& environment) {
  std::vector<std::pair<std::string, std::string>> variables{
      {"SAILOR_PLAN", plan_path.string()},
      {"SAILOR_PLAN_FINGERPRINT", plan_fingerprint(plan)},
      {"SAILOR_RANK", std::to_string(task.role.rank)},
      {"SAILOR_RANKS", std::to_string(task.ranks)},
      {"SAILOR_PIPELINE", std::to_string(task.role.pipeline)},
      {"SAILOR_STAGE", std::to_string(task.role.stage)},
      {"SAILOR_TENSOR_PARALLEL_INDEX", std::to_string(task.role.tensor_parallel_index)},
      {"SAILOR_LOCAL_RANK", std::to_string(task.local_rank)},
  };
  if (const std::string step = step_name(environment); !step.empty()) variables.emplace_back("SAILOR_STEP", step);
  const auto visible = environment("CUDA_VISIBLE_DEVICES");
  if (!task.on_gpu || !visible) return variables;
  const std::vector<std::string> devices = split(*visible, ',');
  const auto on_node = parse_count(environment("SLURM_GPUS_ON_NODE").value_or("-"));
  const bool enough = !on_node || *on_node >= task.local_ranks;
  if (devices.size() == 1 && enough) return variables;  // Slurm has chosen (--gpus-per-task=1)
  if (devices.size() < static_cast<std::size_t>(task.local_ranks))
    return fail(ErrorCode::unavailable,
                fmt::format("the task sees {} GPUs (CUDA_VISIBLE_DEVICES={}) for the {} ranks of its node",
                            devices.size(), *visible, task.local_ranks),
                fmt::format("ask for --gpus-per-node={}", task.local_ranks));
  variables.emplace_back("CUDA_VISIBLE_DEVICES", devices[static_cast<std::size_t>(task.local_rank)]);
  return variables;
}

namespace {

/// The rank's number when ranks are counted by stage, then pipeline: that of rank 0 is 0 in both orders.
int rank_by_stage(const Plan& plan, const RankRole& role) {
  int before = 0;
  for (const RankRole& other : rank_roles(plan))
    if (std::pair(other.stage, other.rank) < std::pair(role.stage, role.rank)) ++before;
  return before;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> torch_environment(
    const TaskRole& task, const Plan& plan, const Step& step, const TorchRanks& ranks,
    const std::vector<std::pair<std::string, std::string>>& role, const Lookup& environment) {
  std::string visible = environment("CUDA_VISIBLE_DEVICES").value_or("");
  for (const auto& [name, value] : role)
    if (name == "CUDA_VISIBLE_DEVICES") visible = value;
  const bool sees_one = task.on_gpu && !visible.empty() && split(visible, ',').size() == 1;
  return {{"RANK", std::to_string(ranks.by_stage ? rank_by_stage(plan, task.role) : task.role.rank)},
          {"WORLD_SIZE", std::to_string(task.ranks)},
          {"LOCAL_RANK", std::to_string(sees_one ? 0 : task.local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(task.local_ranks)},
          {"GROUP_RANK", std::to_string(step.own_node)},
          {"MASTER_ADDR", task.first_node},
          {"MASTER_PORT", std::to_string(ranks.port)},
          {"TORCHELASTIC_RUN_ID", fmt::format("{}.{}", environment("SLURM_JOB_ID").value_or("0"),
                                              environment("SLURM_STEP_ID").value_or("0"))}};
}

std::string step_name(const Lookup& environment) {
  const auto job = environment("SLURM_JOB_ID");
  const auto step = environment("SLURM_STEP_ID");
  const auto task = environment("SLURM_PROCID");
  return job && step && task ? fmt::format("{}.{}.{}", *job, *step, *task) : "";
}

std::vector<int> cores_of_task(const TaskRole& task, const std::vector<int>& allowed, const Lookup& environment) {
  const auto ranks = static_cast<std::size_t>(std::max(task.local_ranks, 1));
  if (ranks == 1 || allowed.size() < ranks) return allowed;
  if (const auto bind = environment("SLURM_CPU_BIND"); bind && bound_by_slurm(*bind)) return allowed;
  if (const auto cores = environment("SLURM_CPUS_PER_TASK"))
    if (const auto number = parse_count(*cores); number && allowed.size() <= static_cast<std::size_t>(*number))
      return allowed;
  const auto share = static_cast<std::ptrdiff_t>(allowed.size() / ranks);
  const auto first = allowed.begin() + share * task.local_rank;
  return {first, first + share};
}

std::string describe(const TaskRole& task, const Step& step) {
  return fmt::format("rank {} of {}: pipeline {}, stage {}, tensor-parallel index {}, {} {} of {}", task.role.rank,
                     task.ranks, task.role.pipeline, task.role.stage, task.role.tensor_parallel_index, task.gpu,
                     task.local_rank, step.nodes[step.own_node].name);
}

}  // namespace sailor::slurm
