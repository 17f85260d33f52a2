#include "apps/report/content.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "apps/inputs.hpp"
#include "apps/simulate/plan_input.hpp"
#include "core/files.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "elastic/folder.hpp"
#include "elastic/time_account.hpp"
#include "plan/cluster_nodes.hpp"
#include "plan/plan_origin.hpp"
#include "plan/trace_reader.hpp"

namespace sailor::apps {

namespace {

/// Whether the file is HDF5, as run files are, by its first bytes.
Result<bool> is_hdf5(const std::string& path) {
  constexpr std::string_view signature{"\x89HDF\r\n\x1a\n", 8};
  const auto file = open_to_read(path);
  if (!file) return fail(file.error());
  std::array<char, signature.size()> start{};
  const ssize_t size = ::read(file->get(), start.data(), start.size());
  return size == static_cast<ssize_t>(start.size()) && std::string_view(start.data(), start.size()) == signature;
}

/// The inputs of a prediction.
struct ReportInputs {
  GpuCatalogue gpus;
  Model model;
  std::optional<Profile> profile;
  std::optional<Cluster> cluster;
};

Result<PlanInput> read_plan_of_run(const std::string& path, const RunRecord& run, const ReportOptions& options,
                                   const Environment& environment, const GpuCatalogue& gpus) {
  auto plan = parse_plan(run.plan_toml, path);
  if (!plan) return fail(plan.error());
  auto model = find_model(*plan, models_folder(options.models, environment));
  if (!model) return fail(model.error(), path);
  if (auto good = check_plan(*plan, *model); !good) return fail(good.error(), path);
  use_catalogue_names(*plan, gpus);
  return PlanInput{.plan = *std::move(plan),
                   .model = *std::move(model),
                   .measured_time = std::nullopt,
                   .measured_memory = std::nullopt};
}

/// The store of --profile, else the one that the plan was made with, if it can be read. Errors: a store of --profile
/// that cannot be read.
Result<std::optional<Profile>> find_profile(const std::string& usual, const ReportOptions& options,
                                            const Environment& environment, ReportContent& content) {
  content.profile = options.profile.has() ? *options.profile : usual;
  if (content.profile.empty()) {
    content.notes.emplace_back("Not simulated: the plan does not say its profile store (--profile names one).");
    return std::nullopt;
  }
  auto profile = read_profile(options.profile, environment, content.profile);
  if (profile) return std::optional<Profile>(*std::move(profile));
  if (options.profile.has()) return fail(profile.error());
  content.notes.push_back(
      fmt::format("Not simulated: {} (--profile names another profile store).", profile.error().what));
  return std::nullopt;
}

/// Plan, model and profile of a plan file or run file.
Result<ReportInputs> read_inputs(const std::string& path, const ReportOptions& options, const Environment& environment,
                                 ReportContent& content) {
  auto gpus = GpuCatalogue::load(catalogue_file(options, environment));
  if (!gpus) return fail(gpus.error());
  const auto from_run = is_hdf5(path);
  if (!from_run) return fail(from_run.error());
  if (*from_run) {
    auto run = load_run(path);
    if (!run) return fail(run.error());
    content.run = *std::move(run);
    auto input = read_plan_of_run(path, *content.run, options, environment, *gpus);
    if (!input) return fail(input.error());
    content.plan = std::move(input->plan);
    auto profile = find_profile(content.plan.origin.profile_store, options, environment, content);
    if (!profile) return fail(profile.error());
    return ReportInputs{*std::move(gpus), std::move(input->model), *std::move(profile), std::nullopt};
  }
  auto profile = find_profile(usual_profile(path), options, environment, content);
  if (!profile) return fail(profile.error());
  const Profile none{ProfileData{}};
  auto input = read_plan_input(path, options, environment, *gpus, *profile ? **profile : none);
  if (!input) return fail(input.error());
  content.plan = std::move(input->plan);
  if (input->measured_time)
    content.notes.push_back(fmt::format("{} says that the plan was measured: {} per iteration{}.", path,
                                        format_time(*input->measured_time),
                                        input->measured_memory ? ", " + format_bytes(*input->measured_memory) : ""));
  return ReportInputs{*std::move(gpus), std::move(input->model), *std::move(profile), std::nullopt};
}

/// Names of the nodes by rank: those of the run, else those that placement takes.
std::vector<std::string> names_of_nodes(const ReportContent& content, const ReportOptions& options,
                                        const Cluster* cluster) {
  std::vector<std::string> names;
  if (content.run) {
    names.resize(static_cast<std::size_t>(content.plan.ranks()));
    for (const RankRecord& rank : content.run->ranks)
      if (rank.rank >= 0 && static_cast<std::size_t>(rank.rank) < names.size())
        names[static_cast<std::size_t>(rank.rank)] = rank.host;
    if (std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); })) names.clear();
    return names;
  }
  if (cluster == nullptr) return names;
  const std::vector<NodeGroup> groups = cluster->usable(partitions_of(options.partition), Availability::up);
  // Nodes of a hypothetical cluster have no names of their own.
  if (std::any_of(groups.begin(), groups.end(), [](const NodeGroup& group) { return group.nodes.empty(); }))
    return names;
  return nodes_of_ranks(content.plan, groups).value_or(names);
}

/// Plans for the job of the plan that no other beats in time, money and devices at once.
Result<std::vector<planner::Candidate>> find_front(const Plan& plan, const ReportOptions& options,
                                                   const simulator::Environment& simulated) {
  planner::Request request;
  request.job = plan.job;
  request.partitions = partitions_of(options.partition);
  request.pareto = true;
  auto found = planner::find_plans(request, simulated);
  if (!found) return fail(found.error(), "--pareto");
  return std::move(found->plans);
}

Result<void> predict(const ReportInputs& inputs, const ReportOptions& options, const Environment& environment,
                     ReportContent& content) {
  const Plan& plan = content.plan;
  content.framework = options.framework.has()          ? *options.framework
                      : !plan.origin.framework.empty() ? plan.origin.framework
                                                       : "sailor";
  const auto framework = simulator::find_framework(content.framework, frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  const simulator::Environment simulated{.model = inputs.model,
                                         .profile = *inputs.profile,
                                         .gpus = inputs.gpus,
                                         .framework = *framework,
                                         .cluster = inputs.cluster ? &*inputs.cluster : nullptr,
                                         .measured_only = *options.measured_only};
  Timeline timeline;
  auto prediction = simulator::simulate(plan, simulated, &timeline);
  if (!prediction) {
    if (options.profile.has() || *options.measured_only) return fail(prediction.error());
    content.notes.push_back(
        fmt::format("Not simulated: {} (--profile names another profile store).", prediction.error().what));
    return {};
  }
  content.memory_problem = simulator::memory_problem(plan, *prediction, simulated).value_or("");
  content.prediction = *std::move(prediction);
  content.timeline = std::move(timeline);
  if (!*options.pareto) return {};
  auto front = find_front(plan, options, simulated);
  if (!front) return fail(front.error());
  content.front = *std::move(front);
  return {};
}

reports::ElasticEvents account_of(const std::string& file, std::vector<nlohmann::json> lines) {
  elastic::TimeAccount account;
  for (const nlohmann::json& line : lines) account.add(line);
  return {.file = file,
          .lines = std::move(lines),
          .total = account.total(account.last()),
          .without_training = account.without_training(account.last()),
          .again = account.again(),
          .goodput = account.goodput(account.last())};
}

/// A controller's file ends with the last event, which may be long ago: the run file says until when the training went
/// on after it.
void add_end(std::vector<nlohmann::json>& lines, const std::string& of_run_file) {
  auto known = elastic::events_in(of_run_file);
  if (known.empty() || lines.empty() || known.back().value("what", "") != "written" ||
      lines.back().value("what", "") == "done")
    return;
  if (elastic::number_in(known.back(), "unix_time_s") > elastic::number_in(lines.back(), "unix_time_s"))
    lines.push_back(std::move(known.back()));
}

/// Reads what a run left besides its measurements: --trace, and the events of an elastic training.
Result<void> read_run_files(const std::string& path, const ReportOptions& options, ReportContent& content) {
  for (const auto* option : OptionList{&options.events, &options.trace, &options.elastic_trace})
    if (option->has() && !content.run)
      return fail(ErrorCode::usage, fmt::format("--{} is for the report of a run, not of a plan", option->name()),
                  "name the run file (run.h5) instead of the plan");
  if (options.trace.has()) {
    auto timeline = load_trace(*options.trace, content.plan);
    if (!timeline) return fail(timeline.error(), "--trace");
    content.measured_timeline = *std::move(timeline);
  }
  if (options.events.has()) {
    auto lines = elastic::read_json_lines(*options.events);
    if (!lines) return fail(lines.error(), "--events");
    for (const nlohmann::json& line : *lines)
      if (!line.is_object() || !line.contains("what"))
        return fail(ErrorCode::invalid_input,
                    fmt::format("--events: '{}' has a line that is no event", *options.events),
                    "name the events.jsonl of the folder of an elastic training");
    add_end(*lines, content.run->events);
    content.events = account_of(*options.events, *std::move(lines));
  } else if (content.run && !content.run->events.empty()) {
    content.events = account_of(path, elastic::events_in(content.run->events));
  }
  if (options.elastic_trace.has() && !content.events)
    return fail(ErrorCode::usage, fmt::format("--elastic-trace: '{}' is not the run of an elastic training", path),
                "name the run file of sailor-train --elastic, or its events with --events");
  return {};
}

}  // namespace

reports::PageInput ReportContent::page(const std::string& file, const std::string& made_by) const {
  const auto pointer = [](const auto& value) { return value ? &*value : nullptr; };
  return {.plan = plan,
          .file = file,
          .made_by = made_by,
          .profile = profile,
          .framework = framework,
          .cluster = cluster,
          .prediction = pointer(prediction),
          .prediction_is_stored = prediction_is_stored,
          .timeline = pointer(timeline),
          .memory_problem = memory_problem,
          .notes = notes,
          .nodes = nodes,
          .front = pointer(front),
          .run = pointer(run),
          .measured_timeline = pointer(measured_timeline),
          .events = pointer(events)};
}

Result<ReportContent> gather_report(const std::string& path, const ReportOptions& options,
                                    const Environment& environment) {
  ReportContent content;
  auto inputs = read_inputs(path, options, environment, content);
  if (!inputs) return fail(inputs.error());
  SAILOR_CHECK(read_run_files(path, options, content));
  auto cluster = read_cluster_for(content.plan, options, environment, inputs->gpus);
  if (!cluster) return fail(cluster.error());
  if (*cluster) {
    content.cluster = (*cluster)->name;
    if (const auto missing = what_is_missing(content.plan, **cluster, partitions_of(options.partition)))
      content.notes.push_back(*missing + ".");
  }
  if (*options.pareto && !*cluster)
    return fail(ErrorCode::usage, "--pareto searches plans for the nodes of a cluster, but none is given",
                "name it with --cluster or --partition");
  inputs->cluster = *std::move(cluster);
  if (inputs->profile) SAILOR_CHECK(predict(*inputs, options, environment, content));
  if (!content.prediction) {
    content.prediction = reports::stored_prediction(content.plan);
    content.prediction_is_stored = content.prediction.has_value();
  }
  if (*options.pareto && !content.front)
    return fail(ErrorCode::usage, "--pareto needs a prediction of the plan", "name a profile store with --profile");
  content.nodes = names_of_nodes(content, options, inputs->cluster ? &*inputs->cluster : nullptr);
  return content;
}

}  // namespace sailor::apps
