#include "apps/submit/submission.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <system_error>

#include "apps/inputs.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/jobs.hpp"
#include "slurm/site.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

fs::path from_here(const fs::path& path) { return fs::absolute(path).lexically_normal(); }

namespace {

/// Nodes for one kind of device of the plan, as far as the cluster says.
struct Nodes {
  std::string partition;
  int count = 0;
  int devices_per_node = 0;  ///< the fewest
  int cpus_per_device = 0;   ///< the fewest
  Bytes memory_per_cpu{};    ///< host memory, the least; 0: not known
  std::string gres_type;     ///< empty: no matter, or not known
};

// What a rank needs beyond its prediction: what libraries allocate besides tensors differs from cluster to cluster.
constexpr double memory_factor = 1.2;
constexpr Bytes memory_reserve = 256.0 * mib;

/// Options for other programs may hold commas (--exclude=gh1,gh2), at which lists are split: joined again here.
std::vector<std::string> passed_on(const Options& options, std::string_view name) {
  std::vector<std::string> joined;
  for (const std::string& part : options.texts(name)) {
    if (joined.empty() || part.starts_with("-"))
      joined.push_back(part);
    else
      joined.back() += "," + part;
  }
  return joined;
}

/// sailor-train takes an option once: a job that gets one twice would wait in the queue only to fail.
Result<void> check_train_options(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    for (const std::string_view ours :
         {"--data", "--iterations", "--run-file", "--models", "--gpus", "--learning-rate", "--seed", "--checkpoints"})
      if (argument == ours || argument.starts_with(std::string(ours) + "="))
        return fail(ErrorCode::usage, fmt::format("--train-option: sailor-submit itself sets {}", ours),
                    "use its own option, see sailor-submit --help");
  return {};
}

/// A program of this installation; a bare name when it is not beside this one.
fs::path beside_this_program(const char* name) {
  std::error_code code;
  const fs::path beside = fs::read_symlink("/proc/self/exe", code).parent_path() / name;
  return !code && fs::exists(beside, code) ? beside : fs::path(name);
}

/// "auto": the plugin where sbatch has it.
slurm::Placer placer(const std::string& wanted) {
  if (wanted == "slurm") return slurm::Placer::slurm;
  if (wanted == "plugin") return slurm::Placer::plugin;
  if (wanted == "auto" && slurm::has_plugin()) return slurm::Placer::plugin;
  return slurm::Placer::launcher;
}

Result<Cluster> known_cluster(const Options& options, const Environment& environment, const GpuCatalogue& gpus) {
  if (options.has("cluster")) return load_cluster(options.text("cluster"), gpus);
  auto cluster = ask_slurm(environment, gpus);
  if (!cluster) {
    Error error = cluster.error();
    error.hint = "say how many devices a node has with --devices-per-node N, or use --cluster FILE";
    return fail(std::move(error), "cannot ask Slurm about the nodes");
  }
  return cluster;
}

std::string where(const std::string& partition) {
  return partition.empty() ? "the cluster" : fmt::format("partition '{}'", partition);
}

/// What of the prediction is not to be relied on.
void warn_of_prediction(const Plan& plan) {
  if (plan.prediction_is_stale)
    spdlog::warn(
        "the plan was edited after its prediction was made: its memory is not known; see sailor-simulate, and "
        "--memory-per-cpu");
  if (plan.prediction && plan.prediction->origin == to_string(Origin::estimated))
    spdlog::warn(
        "the plan's time and memory are estimates, not from measurements of its devices; measure with sailor-profile "
        "layers, or check --time and --memory-per-cpu");
}

/// Host memory of a CPU plan's ranks, unless the user has said it.
void settle_memory(const Plan& plan, const Nodes& nodes, slurm::NodeRequest& asked) {
  if (asked.memory_per_cpu || asked.device_kind != DeviceKind::cpu || !plan.prediction ||
      plan.prediction->peak_memory <= Bytes(0))
    return;
  Bytes memory = (plan.prediction->peak_memory * memory_factor + memory_reserve) / asked.cpus_per_rank;
  // Slurm would never start what asks for more than the nodes have.
  if (nodes.memory_per_cpu >= mib) memory = std::min(memory, std::floor(nodes.memory_per_cpu / mib) * mib);
  asked.memory_per_cpu = memory;
}

/// Nodes with the device in one partition (all, if it is empty); and the GPU types that are there.
Nodes nodes_in(const Cluster& cluster, const std::string& partition, const GpuType& device,
               std::set<std::string>& gpus_of_partition) {
  Nodes nodes;
  nodes.partition = partition;
  std::set<std::string> types;
  for (const NodeGroup& group : cluster.usable(partition, false)) {
    gpus_of_partition.insert(group.gpu);
    types.insert(group.gpu);
    if (group.gpu != device.name) continue;
    const int cpus = std::max(1, group.cpus_per_node / group.gpus_per_node);
    const Bytes memory = group.memory_per_node / std::max(group.cpus_per_node, 1);
    const bool first = nodes.count == 0;
    nodes.devices_per_node = first ? group.gpus_per_node : std::min(nodes.devices_per_node, group.gpus_per_node);
    nodes.cpus_per_device = first ? cpus : std::min(nodes.cpus_per_device, cpus);
    nodes.memory_per_cpu = first ? memory : std::min(nodes.memory_per_cpu, memory);
    nodes.count += group.count;
    nodes.gres_type = group.gres_type;
  }
  if (types.size() < 2) nodes.gres_type.clear();  // there is but one
  return nodes;
}

/// Nodes for a kind: in the partition that its zone names, else in the first of `partitions` that has some.
Result<Nodes> find_nodes(const Cluster& cluster, const std::vector<std::string>& partitions, const std::string& zone,
                         const GpuType& device) {
  std::vector<std::string> candidates = partitions;
  if (!zone.empty() && cluster.find_partition(zone) != nullptr) {
    if (!partitions.empty() && std::find(partitions.begin(), partitions.end(), zone) == partitions.end())
      return fail(ErrorCode::invalid_input,
                  fmt::format("the plan has {} in partition '{}', which is not among {}", device.name, zone,
                              fmt::join(partitions, ", ")),
                  "name it with --partition too, or make another plan");
    candidates = {zone};
  }
  if (candidates.empty()) {
    candidates.emplace_back();
    for (const Partition& partition : cluster.partitions)
      if (partition.is_default) candidates = {partition.name};
  }
  std::set<std::string> there;
  for (const std::string& partition : candidates) {
    if (!partition.empty()) SAILOR_CHECK(slurm::require_partition(cluster, partition));
    if (Nodes nodes = nodes_in(cluster, partition, device, there); nodes.count > 0) return nodes;
  }
  return fail(
      ErrorCode::not_found,
      fmt::format("{} has no usable node with {} (it has: {})",
                  candidates.size() == 1 ? where(candidates.front())
                                         : fmt::format("none of the partitions {}", fmt::join(candidates, ", ")),
                  device.name, there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", "))),
      "use another --partition, or another plan");
}

/// Refuses what Slurm might accept and then never start. `nodes` by kind.
Result<void> check_limits(const Cluster& cluster, const std::vector<Nodes>& nodes, const Submission& submission) {
  const slurm::SbatchRequest& request = submission.request;
  std::vector<int> devices_per_node;
  for (const slurm::NodeRequest& asked : request.nodes) devices_per_node.push_back(asked.devices_per_node);
  const auto layout = slurm::lay_out_job(submission.plan, devices_per_node);
  if (!layout) return fail(layout.error());
  const auto needs = [&](int count, std::size_t kind) {
    return fmt::format("the plan needs {} of {} {}", plural(static_cast<std::size_t>(count), "node"),
                       devices_per_node[kind], submission.devices[kind].name);
  };
  std::vector<int> needed(nodes.size(), 0);
  for (const slurm::JobComponent& component : layout->components)
    for (std::size_t kind = 0; kind < nodes.size(); ++kind)  // zones may be in one partition
      if (nodes[kind].partition == nodes[component.kind].partition &&
          submission.devices[kind].name == submission.devices[component.kind].name)
        needed[kind] += component.nodes;
  for (std::size_t kind = 0; kind < nodes.size(); ++kind)
    if (needed[kind] > nodes[kind].count)
      return fail(ErrorCode::unavailable,
                  fmt::format("{} but {} has {} usable", needs(needed[kind], kind), where(nodes[kind].partition),
                              nodes[kind].count),
                  "use another --partition, or another plan");
  for (const slurm::JobComponent& component : layout->components) {
    const Partition* partition = cluster.find_partition(nodes[component.kind].partition);
    if (partition == nullptr) continue;
    if (partition->most_nodes && component.nodes > *partition->most_nodes)
      return fail(ErrorCode::unavailable,
                  fmt::format("{} but {} allows {} per job", needs(component.nodes, component.kind),
                              where(partition->name), *partition->most_nodes),
                  "use another --partition, or another plan");
    if (partition->time_limit && request.time_limit && *request.time_limit > *partition->time_limit)
      return fail(ErrorCode::invalid_input,
                  fmt::format("time {} is over the limit of {}: {}", slurm::format_time_limit(*request.time_limit),
                              where(partition->name), slurm::format_time_limit(*partition->time_limit)),
                  "use a smaller --time, or another --partition");
  }
  return {};
}

/// What the site file of the cluster, or the one that was asked for, says about starting jobs.
Result<void> use_site(const Options& options, const Environment& environment, const GpuCatalogue& gpus,
                      const std::string& cluster_name, Submission& submission) {
  const auto site = read_site(options, environment, gpus, cluster_name);
  if (!site) return fail(site.error());
  const auto software = slurm::choose_environment(*site, options.text("software"));
  if (!software) return fail(software.error());
  slurm::SbatchRequest& request = submission.request;
  request.mpi = site->launch.mpi;
  if (*software != nullptr && !(*software)->mpi.empty()) request.mpi = (*software)->mpi;
  if (options.has("mpi")) request.mpi = options.text("mpi");
  request.exclusive = site->launch.exclusive_nodes;
  request.constraint = site->launch.constraint;
  request.extra_options.insert(request.extra_options.begin(), site->launch.sbatch_options.begin(),
                               site->launch.sbatch_options.end());
  request.srun_options = site->launch.srun_options;
  if (*software != nullptr)
    request.srun_options.insert(request.srun_options.end(), (*software)->srun_options.begin(),
                                (*software)->srun_options.end());
  if (options.has("image")) {
    if (*software == nullptr || (*software)->image_option.empty())
      return fail(ErrorCode::usage, fmt::format("site '{}' does not say how srun takes an image", site->name),
                  "choose a software environment that does with --software, or use another --site");
    request.srun_options.push_back((*software)->image_option + "=" + options.text("image"));
  }
  request.environment = slurm::variables_of(*site, *software);
  for (std::size_t kind = 0; kind < request.nodes.size(); ++kind)
    if (const slurm::NodeLayout* layout = site->find_layout(submission.devices[kind].name))
      request.nodes[kind].memory_nodes = layout->memory_nodes;
  return {};
}

/// Fills in what depends on the nodes, from the command line, or else from Slurm.
Result<void> settle_nodes(const Options& options, const Environment& environment, const GpuCatalogue& gpus,
                          Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  const std::vector<std::string> partitions =
      options.has("partition") ? partitions_of(options) : split(submission.plan.origin.partition, ',');
  for (const GpuType& device : submission.devices) {
    slurm::NodeRequest asked;
    asked.partition = partitions.empty() ? "" : partitions.front();
    asked.device_kind = device.kind;
    if (device.kind == DeviceKind::gpu) asked.gres_type = options.text("gpu-type");
    asked.devices_per_node = static_cast<int>(options.integer("devices-per-node"));
    if (options.has("cpus-per-rank")) asked.cpus_per_rank = static_cast<int>(options.integer("cpus-per-rank"));
    if (options.has("memory-per-cpu"))
      asked.memory_per_cpu = Bytes(static_cast<double>(options.integer("memory-per-cpu")) * 0x1p20);
    request.nodes.push_back(asked);
  }
  if (options.has("devices-per-node") && !options.has("cluster") && submission.kinds.size() == 1) {
    const auto cluster = ask_slurm(environment, gpus);  // for its name; without Slurm the generic site
    return use_site(options, environment, gpus, cluster ? cluster->name : "", submission);
  }
  const auto cluster = known_cluster(options, environment, gpus);
  if (!cluster) return fail(cluster.error());
  std::vector<Nodes> found;
  for (std::size_t kind = 0; kind < submission.kinds.size(); ++kind) {
    const GpuType& device = submission.devices[kind];
    auto nodes = find_nodes(*cluster, partitions, submission.kinds[kind].second, device);
    if (!nodes) return fail(nodes.error());
    slurm::NodeRequest& asked = request.nodes[kind];
    asked.partition = nodes->partition;
    if (!options.has("devices-per-node")) asked.devices_per_node = nodes->devices_per_node;
    if (!options.has("cpus-per-rank") && device.kind == DeviceKind::gpu) asked.cpus_per_rank = nodes->cpus_per_device;
    if (device.kind == DeviceKind::gpu && asked.gres_type.empty()) asked.gres_type = nodes->gres_type;
    settle_memory(submission.plan, *nodes, asked);
    found.push_back(*std::move(nodes));
  }
  SAILOR_CHECK(use_site(options, environment, gpus, cluster->name, submission));
  return check_limits(*cluster, found, submission);
}

Result<void> fill_request(const Options& options, const Environment& environment, const std::string& plan_path,
                          Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  auto data = required(options, "data");
  if (!data) return fail(data.error());
  SAILOR_CHECK(required(options, "iterations"));
  request.data = from_here(*data).string();
  request.iterations = options.integer("iterations");
  if (options.has("learning-rate")) request.learning_rate = options.number("learning-rate");
  if (options.has("seed")) request.seed = options.integer("seed");
  request.job_name = options.has("job-name") ? options.text("job-name") : "sailor-" + submission.plan.job.model;
  request.account = options.text("account");
  if (options.has("time")) {
    auto time = slurm::parse_time_limit(options.text("time"));
    if (!time) return fail(Error{ErrorCode::usage, "--time: " + time.error().what, time.error().hint});
    request.time_limit = *time;
  }
  request.extra_options = passed_on(options, "sbatch-option");
  request.extra_arguments = passed_on(options, "train-option");
  SAILOR_CHECK(check_train_options(request.extra_arguments));
  if (options.has("gpus")) {
    request.gpus_file = from_here(options.text("gpus"));
    request.extra_arguments.push_back("--gpus=" + request.gpus_file.string());
  }
  if (options.has("checkpoints")) request.checkpoints = from_here(options.text("checkpoints"));
  const std::string when_stopped = options.text("when-stopped");
  if (when_stopped == "requeue") request.continuation = slurm::Continuation::requeue;
  if (when_stopped == "resubmit") request.continuation = slurm::Continuation::resubmit;
  if (request.continuation != slurm::Continuation::none && request.checkpoints.empty())
    return fail(ErrorCode::usage, fmt::format("--when-stopped {} needs checkpoints to go on from", when_stopped),
                "use --checkpoints FOLDER");
  request.run_directory = from_here(options.has("run-directory") ? options.text("run-directory")
                                                                 : "run-" + fs::path(plan_path).stem().string());
  request.plan_path = request.run_directory / "plan.toml";
  request.models_folder = from_here(models_folder(options, environment));
  request.program = options.has("program") ? fs::path(options.text("program")) : beside_this_program("sailor-train");
  // A bare name is looked up in PATH by srun.
  if (request.program.has_parent_path()) request.program = from_here(request.program);
  request.launcher = beside_this_program("sailor-launch");
  request.placer = placer(options.text("placer"));
  return {};
}

Result<Submission> prepare(const Options& options, const Environment& environment, const std::string& plan_path) {
  Submission submission;
  auto text = read_text_file(plan_path);
  if (!text) return fail(text.error());
  submission.plan_text = *std::move(text);
  auto plan = parse_plan(submission.plan_text, plan_path);
  if (!plan) return fail(plan.error());
  submission.plan = *std::move(plan);
  auto model = find_model(submission.plan.job.model, models_folder(options, environment));
  if (!model) return fail(model.error(), plan_path);
  submission.model = *std::move(model);
  if (auto good = check_plan(submission.plan, submission.model); !good) return fail(good.error(), plan_path);
  auto gpus = GpuCatalogue::load(gpus_file(options, environment));
  if (!gpus) return fail(gpus.error());
  submission.kinds = kinds_of(submission.plan);
  for (const auto& [gpu, zone] : submission.kinds) {
    auto device = gpus->find(gpu);
    if (!device) return fail(device.error(), plan_path);
    submission.devices.push_back(*std::move(device));
  }
  SAILOR_CHECK(fill_request(options, environment, plan_path, submission));
  SAILOR_CHECK(settle_nodes(options, environment, *gpus, submission));
  warn_of_prediction(submission.plan);
  return submission;
}

bool same_layout(const Submission& a, const Submission& b) {
  const auto of = [](const Submission& submission) {
    std::vector<int> devices;
    for (const slurm::NodeRequest& nodes : submission.request.nodes) devices.push_back(nodes.devices_per_node);
    return slurm::lay_out_job(submission.plan, devices);
  };
  const auto first = of(a);
  const auto second = of(b);
  const auto partition_of = [](const slurm::NodeRequest& nodes) { return nodes.partition; };
  return a.kinds == b.kinds && first && second && first->components == second->components &&
         first->in_plan_order == second->in_plan_order &&
         std::ranges::equal(a.request.nodes, b.request.nodes, {}, partition_of, partition_of);
}

}  // namespace

Result<std::vector<Submission>> prepare_all(const Options& options, const Environment& environment) {
  std::vector<Submission> all;
  const std::vector<std::string>& paths = options.positional("PLAN");
  for (const std::string& path : paths) {
    auto submission = prepare(options, environment, path);
    if (!submission) return fail(submission.error());
    all.push_back(*std::move(submission));
  }
  if (all.size() == 1) return all;
  const fs::path top = from_here(options.has("run-directory") ? options.text("run-directory") : "run-array");
  std::set<std::string> names;
  if (all.front().kinds.size() > 1)
    return fail(ErrorCode::invalid_input,
                fmt::format("{} needs several kinds of nodes: Slurm has no arrays of heterogeneous jobs", paths[0]),
                "submit each plan by itself");
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!same_layout(all.front(), all[i]))
      return fail(ErrorCode::invalid_input,
                  fmt::format("{} needs other nodes than {}: the tasks of a job array are alike", paths[i], paths[0]),
                  "submit it by itself");
    const std::string name = fs::path(paths[i]).stem().string();
    if (name.starts_with('.') || name == "job.sbatch")
      return fail(ErrorCode::invalid_input, fmt::format("'{}' can be no folder of a plan", name), "rename the plan");
    if (!names.insert(name).second)
      return fail(ErrorCode::invalid_input, fmt::format("two plans are called {}: each has a folder of its name", name),
                  "rename one of them");
    all[i].request.run_directory = top / name;
    all[i].request.plan_path = top / name / "plan.toml";
  }
  slurm::SbatchRequest& request = all.front().request;
  for (const Submission& submission : all) {
    request.array_directories.push_back(submission.request.run_directory);
    for (std::size_t kind = 0; kind < request.nodes.size(); ++kind)
      request.nodes[kind].memory_per_cpu =
          std::max(request.nodes[kind].memory_per_cpu, submission.request.nodes[kind].memory_per_cpu);
  }
  request.run_directory = top;
  request.plan_path = "plan.toml";
  if (options.has("checkpoints")) request.checkpoints = options.text("checkpoints");
  if (options.text("placer") == "auto") request.placer = slurm::Placer::launcher;
  return all;
}

}  // namespace sailor::apps
