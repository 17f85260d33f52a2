#include "planner/baselines/plan_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>

#include "core/terminal.hpp"
#include "core/text.hpp"

namespace sailor::planner::baselines {

namespace plan_list_detail {

tl::unexpected<Error> no_plan(std::string what) {
  return fail(ErrorCode::invalid_input, std::move(what) + ", which plan.toml cannot say",
              "write the list itself with --format sailor-json");
}

tl::unexpected<Error> no_list(std::string what) {
  return fail(ErrorCode::invalid_input, std::move(what) + ", which the artifact's lists of pipelines cannot say",
              "use Sailor's own simulator");
}

/// Whether the layers are divided in a standard way, which need not be shown.
bool is_even(const ListPipeline& pipeline) {
  const int stages = static_cast<int>(pipeline.stages.size());
  const int layers = pipeline.stages.back().layers.last;
  const auto same = [&](const std::vector<LayerRange>& ranges) {
    return std::equal(ranges.begin(), ranges.end(), pipeline.stages.begin(), pipeline.stages.end(),
                      [](const LayerRange& range, const ListStage& stage) { return range == stage.layers; });
  };
  return same(partition_uniform(layers, stages)) || same(partition_sailor(layers, stages));
}

/// Consecutive equal replicas are grouped: "20 V100-16 T4".
std::string replicas_text(const ListStage& stage, bool with_zones) {
  std::vector<std::string> parts;
  for (std::size_t j = 0; j < stage.replicas.size();) {
    const Replica& replica = stage.replicas[j];
    std::size_t count = 0;
    while (j < stage.replicas.size() && stage.replicas[j] == replica) ++j, ++count;
    std::vector<std::string> where;
    for (const Machine& machine : replica.machines) {
      std::string name = with_zones ? fmt::format("{} {}", machine.gpu, machine.zone) : machine.gpu;
      if (std::find(where.begin(), where.end(), name) == where.end()) where.push_back(std::move(name));
    }
    parts.push_back(fmt::format("{} {} T{}", count, join(where, " + "), replica.tensor_parallel));
  }
  return join(parts, ", ");
}

/// The tensor-parallel group to which all replicas of all stages are equal, on one GPU type in one zone; std::nullopt
/// if they differ.
std::optional<Replica> only_replica(const ListPipeline& pipeline) {
  std::optional<Replica> only;
  for (const ListStage& stage : pipeline.stages)
    for (const Replica& replica : stage.replicas) {
      if (only && !(*only == replica)) return std::nullopt;
      only = replica;
    }
  for (const Machine& machine : only->machines)
    if (machine.gpu != only->machines.front().gpu || machine.zone != only->machines.front().zone) return std::nullopt;
  return only;
}

/// Shows for each stage only what differs between stages: "P3 T1 A100-40, layers 7/6/13, D 8/8/16".
std::string pipeline_text(const ListPipeline& pipeline, bool with_zones) {
  std::vector<std::string> stages;
  if (!only_replica(pipeline)) {
    for (const ListStage& stage : pipeline.stages)
      stages.push_back(fmt::format("{} on {}", plural(static_cast<std::size_t>(stage.layers.size()), "layer"),
                                   replicas_text(stage, with_zones)));
    return fmt::format("P{}: {}", pipeline.stages.size(), join(stages, "; "));
  }
  std::vector<int> layers;
  std::vector<std::size_t> replicas;
  for (const ListStage& stage : pipeline.stages) {
    layers.push_back(stage.layers.size());
    replicas.push_back(stage.replicas.size());
  }
  const Replica only = *only_replica(pipeline);
  const Machine& machine = only.machines.front();
  const bool same_number = std::count(replicas.begin(), replicas.end(), replicas.front()) == std::ssize(replicas);
  std::string text = fmt::format("P{}", pipeline.stages.size());
  if (same_number) text += fmt::format(" D{}", replicas.front());
  text += fmt::format(" T{} {}", only.tensor_parallel, machine.gpu);
  if (with_zones) text += " " + machine.zone;
  if (pipeline.stages.size() > 1) text += fmt::format(", layers {}", join(layers, "/"));
  if (!same_number) text += fmt::format(", D {}", join(replicas, "/"));
  return text;
}

}  // namespace plan_list_detail

int devices_per_machine(const Replica& replica) {
  const int machines = static_cast<int>(replica.machines.size());
  const int degree = replica.tensor_parallel;
  if (machines <= 1) return degree;
  if (machines < degree) return (degree + machines - 1) / machines;
  const bool alike = std::all_of(replica.machines.begin(), replica.machines.end(),
                                 [&](const Machine& machine) { return machine == replica.machines.front(); });
  return alike ? std::clamp(replica.machines.front().gpus_per_node, 1, degree) : 1;
}

int nodes_of(const Replica& replica) {
  const int devices = devices_per_machine(replica);
  return (replica.tensor_parallel + devices - 1) / devices;
}

std::map<std::string, int> devices_of(const Replica& replica) {
  std::map<std::string, int> counts;
  const int machines = static_cast<int>(replica.machines.size());
  for (int i = 0; i < machines; ++i)
    counts[replica.machines[i].gpu] +=
        replica.tensor_parallel / machines + (i < replica.tensor_parallel % machines ? 1 : 0);
  return counts;
}

std::map<std::string, int> PlanList::gpus() const {
  std::map<std::string, int> counts;
  for (const ListPipeline& pipeline : pipelines)
    for (const ListStage& stage : pipeline.stages)
      for (const Replica& replica : stage.replicas)
        for (const auto& [gpu, count] : devices_of(replica))
          if (count > 0) counts[gpu] += count;
  return counts;
}

int PlanList::data_parallel() const {
  if (pipelines.empty() || pipelines.back().stages.empty()) return 0;
  return static_cast<int>(pipelines.back().stages.front().replicas.size());
}

PlanList grid_plan(int layers, int stages, int replicas, int tensor_parallel, int micro_batch, const Machine& machine) {
  PlanList plan{.pipelines = {{}}, .micro_batch = micro_batch, .grid = true};
  const std::vector<Replica> alike(static_cast<std::size_t>(replicas),
                                   Replica{.machines = {machine}, .tensor_parallel = tensor_parallel});
  for (const LayerRange& range : partition_uniform(layers, stages))
    plan.pipelines.front().stages.push_back({.layers = range, .replicas = alike});
  return plan;
}

std::string describe(const PlanList& plan) {
  if (plan.pipelines.empty() || plan.pipelines.front().stages.empty()) return "no stages";
  std::set<std::string> zones;
  std::set<std::string> gpus;
  std::set<int> degrees;
  std::set<std::size_t> replicas;
  for (const ListPipeline& pipeline : plan.pipelines)
    for (const ListStage& stage : pipeline.stages) {
      replicas.insert(stage.replicas.size());
      for (const Replica& replica : stage.replicas) {
        degrees.insert(replica.tensor_parallel);
        for (const Machine& machine : replica.machines) {
          zones.insert(machine.zone);
          gpus.insert(machine.gpu);
        }
      }
    }
  const ListPipeline& first = plan.pipelines.front();
  if (plan.pipelines.size() == 1 && gpus.size() == 1 && degrees.size() == 1 && replicas.size() == 1) {
    std::string text =
        fmt::format("P{} D{} T{} b{}", first.stages.size(), *replicas.begin(), *degrees.begin(), plan.micro_batch);
    if (!plan_list_detail::is_even(first)) {
      std::vector<int> sizes;
      for (const ListStage& stage : first.stages) sizes.push_back(stage.layers.size());
      text += fmt::format(", layers {}", join(sizes, "/"));
    }
    return zones.size() > 1 ? fmt::format("{}, {} zones", text, zones.size()) : text;
  }
  std::vector<std::pair<std::string, int>> texts;
  for (const ListPipeline& pipeline : plan.pipelines) {
    std::string text = plan_list_detail::pipeline_text(pipeline, zones.size() > 1);
    const auto same = std::find_if(texts.begin(), texts.end(), [&](const auto& entry) { return entry.first == text; });
    if (same != texts.end())
      ++same->second;
    else
      texts.emplace_back(std::move(text), 1);
  }
  std::vector<std::string> parts;
  for (const auto& [text, count] : texts) parts.push_back(count > 1 ? fmt::format("{} x ({})", count, text) : text);
  return fmt::format("{}, b{}", join(parts, " and "), plan.micro_batch);
}

Result<Plan> to_plan(const PlanList& list, const TrainingJob& job) {
  using plan_list_detail::no_plan;
  if (list.micro_batch < 1 || job.global_batch % list.micro_batch != 0)
    return no_plan(fmt::format("the global batch of {} is no multiple of the micro-batch of {}", job.global_batch,
                               list.micro_batch));
  std::vector<std::vector<Stage>> chains;
  std::vector<int> given;  // micro-batches, by chain
  for (std::size_t p = 0; p < list.pipelines.size(); ++p) {
    const auto& stages = list.pipelines[p].stages;
    if (stages.empty()) return no_plan(fmt::format("pipeline {} has no stages", p));
    const std::size_t replicas = stages.front().replicas.size();
    const std::size_t first = chains.size();
    chains.resize(first + replicas);
    if (list.pipelines[p].micro_batches > 0) given.resize(chains.size(), list.pipelines[p].micro_batches);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const ListStage& stage = stages[i];
      if (stage.layers.size() <= 0) return no_plan(fmt::format("stage {} of pipeline {} holds no layer", i, p));
      if (stage.replicas.size() != replicas)
        return no_plan(fmt::format("stage {} of pipeline {} has {} and stage 0 has {}", i, p,
                                   plural(stage.replicas.size(), "replica"), replicas));
      for (std::size_t j = 0; j < replicas; ++j) {
        const Replica& replica = stage.replicas[j];
        if (replica.machines.empty()) return no_plan(fmt::format("stage {} of pipeline {} has no machine", i, p));
        const Machine& machine = replica.machines.front();
        for (const Machine& other : replica.machines)
          if (other.gpu != machine.gpu || other.zone != machine.zone)
            return no_plan(fmt::format("a tensor-parallel group of stage {} is on {} in zone '{}' and {} in zone '{}'",
                                       i, machine.gpu, machine.zone, other.gpu, other.zone));
        if (nodes_of(replica) > 1)
          return no_plan(fmt::format("a tensor-parallel group of stage {} is on {}", i,
                                     plural(static_cast<std::size_t>(nodes_of(replica)), "node")));
        chains[first + j].push_back({.layers = stage.layers,
                                     .gpu = machine.gpu,
                                     .tensor_parallel = replica.tensor_parallel,
                                     .zone = machine.zone});
      }
    }
  }
  const int replicas = static_cast<int>(chains.size());
  const int batches = job.global_batch / list.micro_batch;
  if (replicas == 0) return no_plan("the list has no pipeline");
  if (batches < replicas)
    return no_plan(fmt::format("the batch has {} micro-batches for {}", batches, plural(chains.size(), "replica")));
  if (!given.empty() && (given.size() != chains.size() || std::accumulate(given.begin(), given.end(), 0) != batches))
    return no_plan(fmt::format("its pipelines have {} micro-batches of the {} of a batch",
                               std::accumulate(given.begin(), given.end(), 0), batches));
  Plan plan;
  plan.job = job;
  plan.micro_batch = list.micro_batch;
  for (int i = 0; i < replicas; ++i) {
    const int mine = given.empty() ? batches / replicas + (i < batches % replicas ? 1 : 0) : given[i];
    const auto same = std::find_if(plan.pipelines.begin(), plan.pipelines.end(), [&](const Pipeline& pipeline) {
      return pipeline.micro_batches == mine && pipeline.stages == chains[i];
    });
    if (same != plan.pipelines.end())
      ++same->count;
    else
      plan.pipelines.push_back({.count = 1, .micro_batches = mine, .stages = std::move(chains[i])});
  }
  SAILOR_CHECK(check_plan(plan));
  return plan;
}

Result<PlanList> from_plan(const Plan& plan, const std::map<std::string, int>& devices_per_node) {
  using plan_list_detail::no_list;
  if (plan.pipelines.empty()) return no_list("the plan has no pipelines");
  if (plan.schedule != Schedule::one_f_one_b)
    return no_list(fmt::format("the plan's schedule is {}", to_string(plan.schedule)));
  if (plan.optimizer_sharding != OptimizerSharding::none)
    return no_list(fmt::format("the plan's optimizer_sharding is {}", to_string(plan.optimizer_sharding)));
  const auto [fewest, most] =
      std::minmax_element(plan.pipelines.begin(), plan.pipelines.end(),
                          [](const Pipeline& a, const Pipeline& b) { return a.micro_batches < b.micro_batches; });
  if (most->micro_batches - fewest->micro_batches > 1)
    return no_list(
        fmt::format("the plan's pipelines have {} to {} micro-batches", fewest->micro_batches, most->micro_batches));
  std::map<std::string, int> node_size = devices_per_node;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      int& devices = node_size[stage.gpu];
      devices = std::max(devices, stage.tensor_parallel);
    }
  PlanList list{.pipelines = {}, .micro_batch = plan.micro_batch_of(plan.pipelines.front())};
  for (const Pipeline& pipeline : plan.pipelines) {
    if (plan.micro_batch_of(pipeline) != list.micro_batch) return no_list("the plan has several micro-batch sizes");
    for (const Stage& stage : pipeline.stages) {
      if (!stage.later_chunks.empty()) return no_list("a stage holds several chunks of layers");
      if (stage.recompute != Recompute::none)
        return no_list(fmt::format("a stage recomputes activations ({})", to_string(stage.recompute)));
    }
    const auto alike = [&](const ListPipeline& other) {
      return std::equal(other.stages.begin(), other.stages.end(), pipeline.stages.begin(), pipeline.stages.end(),
                        [](const ListStage& a, const Stage& b) { return a.layers == b.layers; });
    };
    auto entry = std::find_if(list.pipelines.begin(), list.pipelines.end(), alike);
    if (entry == list.pipelines.end()) {
      entry = list.pipelines.insert(entry, ListPipeline{});
      for (const Stage& stage : pipeline.stages) entry->stages.push_back({.layers = stage.layers, .replicas = {}});
    }
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const Stage& stage = pipeline.stages[i];
      const Replica replica{.machines = {{.gpu = stage.gpu, .gpus_per_node = node_size[stage.gpu], .zone = stage.zone}},
                            .tensor_parallel = stage.tensor_parallel};
      auto& replicas = entry->stages[i].replicas;
      replicas.insert(replicas.end(), static_cast<std::size_t>(pipeline.count), replica);
    }
  }
  return list;
}

std::vector<LayerRange> partition_sailor(int layers, int stages) {
  std::vector<LayerRange> ranges;
  for (int stage = 0, first = 0; stage < stages; ++stage) {
    const int size = layers / stages + (stage >= stages - layers % stages ? 1 : 0);
    ranges.push_back({first, first + size});
    first += size;
  }
  return ranges;
}

std::vector<LayerRange> partition_uniform(int layers, int stages) {
  std::vector<LayerRange> ranges;
  for (int stage = 0, first = 0; stage < stages; ++stage) {
    const int size = layers / stages + (stage < layers % stages ? 1 : 0);
    ranges.push_back({first, first + size});
    first += size;
  }
  return ranges;
}

}  // namespace sailor::planner::baselines
