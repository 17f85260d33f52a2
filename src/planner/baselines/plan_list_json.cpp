#include "planner/baselines/plan_list_json.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/terminal.hpp"
#include "plan/json_value.hpp"
#include "plan/original_plan.hpp"

namespace sailor::planner::baselines {

namespace plan_list_json_detail {

using Json = nlohmann::ordered_json;
using GpuName = std::function<Result<std::string>(std::string_view)>;

constexpr std::int64_t most_devices = 1 << 20;

/// [[[gpu, GPUs, zone], ...], tensor parallel degree].
Result<Replica> read_replica(const JsonValue& group, const GpuName& gpu_name) {
  const auto parts = group.size();
  if (!parts) return fail(parts.error());
  if (*parts != 2) return group.invalid("must be [[[gpu, GPUs, zone], ...], tensor parallel degree]");
  const JsonValue machines = group[0];
  const auto count = machines.size();
  if (!count) return fail(count.error());
  Replica replica;
  for (std::size_t i = 0; i < *count; ++i) {
    const JsonValue machine = machines[i];
    const auto fields = machine.size();
    if (!fields) return fail(fields.error());
    if (*fields != 3) return machine.invalid("must be [gpu, GPUs, zone]");
    const auto name = machine[0].text();
    if (!name) return fail(name.error());
    auto gpu = gpu_name(*name);
    if (!gpu) return fail(gpu.error(), machine[0].where());
    const auto gpus = machine[1].integer(1, most_devices);
    if (!gpus) return fail(gpus.error());
    auto zone = machine[2].text();
    if (!zone) return fail(zone.error());
    replica.machines.push_back({.gpu = *std::move(gpu), .gpus_per_node = *gpus, .zone = *std::move(zone)});
  }
  const auto degree = group[1].integer(1, 1024);
  if (!degree) return fail(degree.error());
  replica.tensor_parallel = *degree;
  return replica;
}

Result<ListPipeline> read_pipeline(const JsonValue& value, const GpuName& gpu_name, std::int64_t& devices) {
  const auto stages = value.integer_at("num_stages", 1, most_devices);
  if (!stages) return fail(stages.error());
  const auto count = static_cast<std::size_t>(*stages);
  const auto layers = per_stage(value, "layers_per_stage", count);
  if (!layers) return fail(layers.error());
  const auto groups = per_stage(value, "tmp_per_stage", count);
  if (!groups) return fail(groups.error());
  ListPipeline pipeline;
  for (std::size_t i = 0; i < count; ++i) {
    ListStage stage;
    const auto range = layer_range_of((*layers)[i]);
    if (!range) return fail(range.error());
    stage.layers = *range;
    const int before = i == 0 ? 0 : pipeline.stages.back().layers.last;
    if (range->first != before)
      return (*layers)[i].invalid(fmt::format("begins with layer {}, but the next is {}", range->first, before),
                                  "the stages of a pipeline hold every layer once");
    const JsonValue replicas = (*groups)[i];
    const auto size = replicas.size();
    if (!size) return fail(size.error());
    for (std::size_t j = 0; j < *size; ++j) {
      auto replica = read_replica(replicas[j], gpu_name);
      if (!replica) return fail(replica.error());
      devices += replica->tensor_parallel;
      if (devices > most_devices)
        return replicas[j].invalid(fmt::format("the plan has more than {} devices", most_devices));
      stage.replicas.push_back(*std::move(replica));
    }
    pipeline.stages.push_back(std::move(stage));
  }
  if (!value.has("dp")) return pipeline;
  const auto degrees = per_stage(value, "dp", count);
  if (!degrees) return fail(degrees.error());
  for (std::size_t i = 0; i < count; ++i) {
    const auto degree = (*degrees)[i].integer(1, most_devices);
    if (!degree) return fail(degree.error());
    if (const std::size_t replicas = pipeline.stages[i].replicas.size(); static_cast<std::size_t>(*degree) != replicas)
      return (*degrees)[i].invalid(
          fmt::format("is {} but tmp_per_stage has {}", *degree, plural(replicas, "data-parallel replica")));
  }
  return pipeline;
}

}  // namespace plan_list_json_detail

std::string plan_list_to_json(const PlanList& list, int global_batch) {
  using plan_list_json_detail::Json;
  Json pipelines = Json::array();
  for (const ListPipeline& pipeline : list.pipelines) {
    Json layers = Json::array();
    Json groups = Json::array();
    Json degrees = Json::array();
    for (const ListStage& stage : pipeline.stages) {
      Json held = Json::array();
      for (int layer = stage.layers.first; layer < stage.layers.last; ++layer) held.push_back(layer);
      layers.push_back(std::move(held));
      Json replicas = Json::array();
      for (const Replica& replica : stage.replicas) {
        Json machines = Json::array();
        for (const Machine& machine : replica.machines)
          machines.push_back(Json::array({original_gpu_name(machine.gpu), machine.gpus_per_node, machine.zone}));
        replicas.push_back(Json::array({std::move(machines), replica.tensor_parallel}));
      }
      groups.push_back(std::move(replicas));
      degrees.push_back(stage.replicas.size());
    }
    pipelines.push_back({{"num_stages", pipeline.stages.size()},
                         {"layers_per_stage", std::move(layers)},
                         {"tmp_per_stage", std::move(groups)},
                         {"dp", std::move(degrees)}});
  }
  return Json{{"pipeline_list", std::move(pipelines)}, {"mbs", list.micro_batch}, {"gbs", global_batch}}.dump() + "\n";
}

Result<PlanListFile> parse_plan_list(std::string_view text, std::string_view source_name,
                                     const std::function<Result<std::string>(std::string_view)>& gpu_name) {
  using namespace plan_list_json_detail;
  const auto json = parse_json(text, source_name);
  if (!json) return fail(json.error());
  const JsonValue root(*json, source_name, "");
  PlanListFile file;
  const auto micro_batch = root.integer_at("mbs", 1, most_devices);
  if (!micro_batch) return fail(micro_batch.error());
  file.list.micro_batch = *micro_batch;
  const auto global_batch = root.integer_at("gbs", 1, 1 << 28);
  if (!global_batch) return fail(global_batch.error());
  file.global_batch = *global_batch;
  const auto pipelines = root.at("pipeline_list");
  if (!pipelines) return fail(pipelines.error());
  const auto count = pipelines->size();
  if (!count) return fail(count.error());
  std::int64_t devices = 0;
  for (std::size_t p = 0; p < *count; ++p) {
    auto pipeline = read_pipeline((*pipelines)[p], gpu_name, devices);
    if (!pipeline) return fail(pipeline.error());
    file.list.pipelines.push_back(*std::move(pipeline));
  }
  for (const auto& [key, take] : {std::pair<const char*, std::function<void(double)>>{
                                      "real", [&](double value) { file.measured_time = Seconds(value); }},
                                  {"max_mem", [&](double value) { file.measured_memory = Bytes(value); }}}) {
    if (!root.has(key)) continue;
    const auto value = root.at(key)->positive_number();
    if (!value) return fail(value.error());
    take(*value);
  }
  return file;
}

}  // namespace sailor::planner::baselines
