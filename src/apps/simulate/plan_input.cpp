#include "apps/simulate/plan_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "apps/inputs.hpp"
#include "apps/plan/precision_choice.hpp"
#include "cluster/gpu_counts.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"
#include "plan/original_plan.hpp"
#include "plan/plan_origin.hpp"
#include "planner/considered_nodes.hpp"
#include "planner/request.hpp"

namespace sailor::apps {

namespace {

bool is_original_json(const std::string& path, std::string_view text) {
  return to_lower(std::filesystem::path(path).extension().string()) == ".json" || begins_json_object(text);
}

/// Errors: invalid_input (JSON that is something else).
Result<void> check_original(const std::string& path, std::string_view text) {
  if (text.find("\"plans\"") != std::string_view::npos && text.find("\"bound\"") != std::string_view::npos)
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' is what sailor-plan --format json prints, not a plan", path),
                "let sailor-plan --output plan.toml write the plan");
  if (text.find("\"mbs\"") == std::string_view::npos)
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' is no plan of the original Sailor: it has no \"mbs\"", path),
                "sailor-plan --output plan.toml writes plans");
  return {};
}

/// The model by --model: the original's format does not contain it. Errors: usage.
Result<Model> model_of_original(const std::string& path, const PlanInputOptions& options, const std::string& models) {
  if (!options.model.has())
    return fail(ErrorCode::usage,
                fmt::format("'{}' is a plan of the original Sailor, which does not say its model", path),
                "name it with --model");
  return find_model(*options.model, models);
}

std::function<Result<std::string>(std::string_view)> names_of(const GpuCatalogue& gpus) {
  return [&gpus](std::string_view name) -> Result<std::string> {
    auto gpu = gpus.find(name);
    if (!gpu) return fail(gpu.error());
    return gpu->name;
  };
}

/// The model of a plan.toml, which --model must not contradict. A file that --model names may describe a model that the
/// plan names without saying where it is.
Result<Model> model_of(const Plan& plan, const std::string& path, const PlanInputOptions& options,
                       const std::string& models) {
  std::optional<Model> asked;
  if (options.model.has()) {
    auto found = find_model(*options.model, models);
    if (!found) return fail(found.error());
    if (found->name == plan.job.model) return found;
    asked = *std::move(found);
  }
  auto model = find_model(plan, models);
  if (!model) return fail(model.error(), path);
  if (asked && asked->name != model->name)
    return fail(ErrorCode::usage,
                fmt::format("'{}' is a plan for {}, but --model says {}", path, model->name, asked->name),
                "leave out --model, or make a plan for it");
  return model;
}

/// Checks that --precision does not contradict that of a plan.toml.
Result<void> check_not_contradicted(const Plan& plan, const std::string& path, const PlanInputOptions& options) {
  if (options.precision.has() && *options.precision != to_string(plan.job.precision))
    return fail(ErrorCode::usage,
                fmt::format("'{}' is a plan in {}, but --precision says {}", path, to_string(plan.job.precision),
                            *options.precision),
                "leave out --precision, or edit the plan");
  return {};
}

}  // namespace

void use_catalogue_names(Plan& plan, const GpuCatalogue& gpus) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      if (const auto type = gpus.find(stage.gpu)) stage.gpu = type->name;
}

Result<PlanInput> read_plan_input(const std::string& path, const PlanInputOptions& options,
                                  const Environment& environment, const GpuCatalogue& gpus, const Profile& profile) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  const std::string models = models_folder(options.models, environment);
  if (is_original_json(path, *text)) {
    SAILOR_CHECK(check_original(path, *text));
    auto model = model_of_original(path, options, models);
    if (!model) return fail(model.error());
    const auto precision = read_precision(options.precision);
    if (!precision) return fail(precision.error());
    const auto gpu_name = names_of(gpus);
    auto original = parse_original_plan(*text, path, {.model = *model, .gpu_name = gpu_name});
    if (!original) return fail(original.error());
    std::set<std::string> types;
    for (const Pipeline& pipeline : original->plan.pipelines)
      for (const Stage& stage : pipeline.stages) types.insert(stage.gpu);
    const std::vector<std::string> on(types.begin(), types.end());
    original->plan.job.precision =
        usual_precision(precision_candidates(*precision, profile, model->name, nullptr, gpus, on), gpus, on);
    if (auto good = check_plan(original->plan, *model); !good) return fail(good.error(), path);
    return PlanInput{.plan = std::move(original->plan),
                     .model = *std::move(model),
                     .measured_time = original->measured_time,
                     .measured_memory = original->measured_memory};
  }
  auto plan = parse_plan(*text, path);
  if (!plan) return fail(plan.error());
  auto model = model_of(*plan, path, options, models);
  if (!model) return fail(model.error());
  plan->job.model = model->name;
  if (auto good = check_plan(*plan, *model); !good) return fail(good.error(), path);
  SAILOR_CHECK(check_not_contradicted(*plan, path, options));
  use_catalogue_names(*plan, gpus);
  return PlanInput{.plan = *std::move(plan),
                   .model = *std::move(model),
                   .measured_time = std::nullopt,
                   .measured_memory = std::nullopt};
}

std::string usual_profile(const std::string& path) {
  const auto plan = load_plan(path);
  return plan ? plan->origin.profile_store : "published";
}

Result<bool> is_original_plan(const std::string& path) {
  const auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return is_original_json(path, *text);
}

Result<ListInput> read_plan_list_input(const std::string& path, const PlanInputOptions& options,
                                       const Environment& environment, const GpuCatalogue& gpus,
                                       const Profile& profile) {
  const auto text = read_text_file(path);
  if (!text) return fail(text.error());
  auto model = model_of_original(path, options, models_folder(options.models, environment));
  if (!model) return fail(model.error());
  const auto precision = read_precision(options.precision);
  if (!precision) return fail(precision.error());
  auto file = planner::baselines::parse_plan_list(*text, path, names_of(gpus));
  if (!file) return fail(file.error());
  for (const auto& pipeline : file->list.pipelines)
    if (const int last = pipeline.stages.back().layers.last; last != model->layers())
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}: a pipeline has {} layers, but {} has {}", path, last, model->name, model->layers()),
                  "name the model that the plan is for");
  std::vector<std::string> on;
  for (const auto& [gpu, count] : file->list.gpus()) on.push_back(gpu);
  const TrainingJob job{.model = model->name,
                        .global_batch = file->global_batch,
                        .sequence_length = model->max_sequence_length,
                        .precision = usual_precision(
                            precision_candidates(*precision, profile, model->name, nullptr, gpus, on), gpus, on)};
  return ListInput{.file = *std::move(file), .job = job, .model = *std::move(model)};
}

std::optional<std::string> what_is_missing(const Plan& plan, const Cluster& cluster,
                                           const std::vector<std::string>& partitions) {
  const std::string where = planner::where_of({.partitions = partitions});
  const std::vector<PlacementNode> nodes = placement_nodes(cluster.usable(partitions, Availability::up));
  std::set<std::string_view> zones;
  for (const PlacementNode& node : nodes) zones.insert(node.zones.begin(), node.zones.end());
  Plan here = plan;
  for (Pipeline& pipeline : here.pipelines)
    for (Stage& stage : pipeline.stages)
      if (!zones.contains(stage.zone)) stage.zone.clear();  // unknown zone: any nodes will do
  const auto places = place_on_nodes(here, nodes);
  if (!places) return fmt::format("{} in {}", places.error().what, where);
  std::set<int> in_use;
  for (const RankPlace& place : *places) in_use.insert(place.node);
  std::vector<const Partition*> named;
  for (const std::string& name : partitions)
    if (const Partition* partition = cluster.find_partition(name)) named.push_back(partition);
  if (const auto most = planner::max_nodes_of(named); most && static_cast<int>(in_use.size()) > *most)
    return fmt::format("the plan takes {} nodes, but a job in {} may have {}", in_use.size(), where, *most);
  return std::nullopt;
}

Result<std::optional<Cluster>> read_cluster_for(const Plan& plan, const ClusterOptions& options,
                                                const Environment& environment, const GpuCatalogue& gpus) {
  auto cluster = read_cluster(options, environment, gpus, {.rules = rules_of_plan(plan, gpus)});
  if (!cluster || *cluster) return cluster;
  if (!are_gpu_counts(plan.origin.cluster)) return cluster_of_origin(plan, gpus);
  auto planned = cluster_of_gpu_counts(plan.origin.cluster, gpus);
  if (!planned) return cluster;  // the catalogue changed since
  log_info("on nodes of {}, for which the plan was made; --cluster or --partition name others", plan.origin.cluster);
  return std::optional<Cluster>(*std::move(planned));
}

}  // namespace sailor::apps
