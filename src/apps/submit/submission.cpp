#include "apps/submit/submission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <system_error>

#include "apps/inputs.hpp"
#include "apps/submit/elastic.hpp"
#include "apps/submit/job_arrays.hpp"
#include "apps/submit/job_nodes.hpp"
#include "apps/submit/stop_lead.hpp"
#include "apps/submit/trainer.hpp"
#include "apps/training_program.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "plan/plan_origin.hpp"
#include "profile/advice.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/job_amounts.hpp"
#include "slurm/job_layout.hpp"
#include "slurm/jobs.hpp"
#include "slurm/near_nodes.hpp"
#include "slurm/reservations.hpp"
#include "slurm/site.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

fs::path from_here(const fs::path& path) { return fs::absolute(path).lexically_normal(); }

namespace {

/// Refuses options that sailor-submit sets itself: sailor-train takes an option only once, so the job would wait in the
/// queue only to fail.
Result<void> check_train_options(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    for (const std::string_view ours :
         {"--data", "--iterations", "--run-file", "--models", "--gpus", "--learning-rate", "--seed", "--checkpoints"})
      if (argument == ours || argument.starts_with(std::string(ours) + "="))
        return fail(ErrorCode::usage, fmt::format("--train-option: sailor-submit itself sets {}", ours),
                    "use its own option, see sailor-submit --help");
  return {};
}

/// Refuses options that sailor-submit sets itself: the job must ask for the partition and time that were checked.
Result<void> check_sbatch_options(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    // sbatch accepts abbreviated option names.
    if (const std::string name = argument.substr(0, argument.find('=')); name.size() > 2) {
      for (const std::string_view ours : {"--partition", "--reservation", "--time"})
        if (ours.starts_with(name))
          return fail(ErrorCode::usage, fmt::format("--sbatch-option: sailor-submit itself sets {}", ours),
                      fmt::format("use its own {}, which it also counts with", ours));
      if (std::string_view("--time-min").starts_with(name))
        return fail(ErrorCode::usage, "--sbatch-option: with --time-min Slurm would shorten the job's time",
                    "use a smaller --time");
      if (name.size() > 3 && std::string_view("--signal").starts_with(name))
        return fail(ErrorCode::usage, "--sbatch-option: sailor-submit itself sets --signal",
                    "use its own --stop-lead SECONDS");
      if (std::string_view("--clusters").starts_with(name))
        return fail(ErrorCode::usage, "--sbatch-option: with --clusters the job would run on nodes not counted with",
                    "run sailor-submit where that cluster is the default");
    }
  return {};
}

/// Whether one of the options is `name`.
bool says(const std::vector<std::string>& options, std::string_view name) {
  return std::any_of(options.begin(), options.end(), [&](const std::string& option) {
    return std::string_view(option).substr(0, option.find('=')) == name;
  });
}

/// "auto" chooses the plugin if sbatch has it; the plugin takes one plan per job.
slurm::Placer placer(const std::string& wanted, bool array, const fs::path& configuration) {
  if (wanted == "slurm") return slurm::Placer::slurm;
  if (wanted == "plugin") return slurm::Placer::plugin;
  if (wanted == "auto" && !array && slurm::check_configuration(configuration) && slurm::has_plugin())
    return slurm::Placer::plugin;
  return slurm::Placer::launcher;
}

/// Warns of unreliable predictions.
void warn_of_prediction(const Submission& submission) {
  const Plan& plan = submission.plan;
  if (plan.prediction_is_stale)
    log_warning(
        "{}: edited after its prediction was made: its memory is not known; see sailor-simulate, and --memory-per-cpu",
        submission.path);
  if (plan.prediction && plan.prediction->origin == to_string(Origin::estimated)) {
    const bool measurable = std::all_of(submission.devices.begin(), submission.devices.end(), can_be_measured);
    log_warning("{}: its time and memory are estimates, not from measurements of its devices; {}check --time{}",
                submission.path, measurable ? "measure them with sailor-profile layers, or " : "",
                measurable ? " and --memory-per-cpu" : "");
  }
}

/// Whether the user has given the host memory of the job elsewhere.
bool memory_is_given(const slurm::SbatchRequest& request, const Environment& environment) {
  return std::any_of(request.extra_options.begin(), request.extra_options.end(),
                     [](const std::string& option) {
                       return option.starts_with("--mem") && !option.starts_with("--mem-bind");
                     }) ||
         environment.contains("SBATCH_MEM_PER_CPU") || environment.contains("SBATCH_MEM_PER_GPU") ||
         environment.contains("SBATCH_MEM_PER_NODE");
}

/// Inputs that are read once for all plans, from Slurm and files.
struct Surroundings {
  PartitionChoice partitions;      ///< by --partition; else each plan's own
  std::optional<Cluster> cluster;  ///< std::nullopt: Slurm does not answer, and need not
  slurm::ControllerFacts facts;    ///< facts of a live cluster
  slurm::Site site;
  std::optional<slurm::SoftwareEnvironment> software;
  slurm::Placer placer = slurm::Placer::launcher;
};

/// The type of GPUs of otherwise unknown type: that of --gpu-type if it is a name of the catalogue, else that of the
/// plans, if they have GPUs of one type.
std::vector<slurm::GpuRule> rules_of(const SubmitOptions& options, const GpuCatalogue& gpus,
                                     const std::vector<Submission>& all) {
  if (const auto type = gpus.find(*options.gpu_type); type && type->kind == DeviceKind::gpu)
    return {{.gpu = type->name, .where_nothing_else_says_it = true}};
  std::vector<slurm::GpuRule> rules = rules_of_plan(all.front().plan, gpus);
  for (const Submission& one : all)
    if (const auto other = rules_of_plan(one.plan, gpus);
        other.empty() || rules.empty() || other.front().gpu != rules.front().gpu)
      return {};
  return rules;
}

/// The cluster by --cluster, else from Slurm. std::nullopt if Slurm does not answer and the command line is sufficient.
Result<std::optional<Cluster>> known_cluster(const SubmitOptions& options, const Environment& environment,
                                             const GpuCatalogue& gpus, const std::vector<Submission>& all,
                                             slurm::ControllerFacts& facts) {
  const bool several = std::any_of(all.begin(), all.end(), [](const Submission& one) { return one.kinds.size() > 1; });
  std::optional<Cluster> known;
  if (options.cluster.has()) {
    auto cluster = load_cluster(*options.cluster, gpus);
    if (!cluster) return fail(cluster.error());
    known = *std::move(cluster);
  } else if (auto cluster = ask_slurm(environment, gpus,
                                      {.reservation = *options.reservation,
                                       .site = *options.site,
                                       .rules = rules_of(options, gpus, all),
                                       .any_features = says(all.front().request.extra_options, "--constraint")},
                                      &facts)) {
    known = *std::move(cluster);
  } else if (cluster.error().code == ErrorCode::invalid_input || cluster.error().code == ErrorCode::not_found) {
    // The input of the user is wrong: the site file or the partition.
    return fail(cluster.error());
  } else if (!options.devices_per_node.has() || several) {
    Error error = cluster.error();
    error.hint = several ? "use --cluster FILE: for several kinds of nodes --devices-per-node alone does not say enough"
                         : "say how many devices a node has with --devices-per-node N, or use --cluster FILE";
    return fail(std::move(error), "cannot ask Slurm about the nodes");
  }
  if (!known || !options.reservation.has()) return known;
  SAILOR_CHECK(use_reservation(*options.reservation, partitions_of(options.partition), *known));
  if (const std::string problem = slurm::account_problem(*known, *options.reservation, *options.account);
      !problem.empty())
    log_warning("{}", problem);
  return known;
}

/// The partitions that the jobs may run in; empty: any.
std::vector<std::string> partitions_asked_for(const PartitionChoice& choice, const Cluster& cluster,
                                              const std::vector<Submission>& all) {
  if (choice.by_user) return choice.names;
  std::vector<std::string> names;
  for (const Submission& one : all) {
    for (std::string& name : split(one.plan.origin.partition, ',')) names.push_back(std::move(name));
    for (const auto& [gpu, zone] : one.kinds)
      if (cluster.find_partition(zone) != nullptr) names.push_back(zone);
  }
  for (const Partition& partition : cluster.partitions)
    if (names.empty() && partition.is_default) return {partition.name};
  return names;
}

Result<Surroundings> look_around(const SubmitOptions& options, const Environment& environment, const GpuCatalogue& gpus,
                                 const std::vector<Submission>& all) {
  Surroundings around;
  if (options.partition.has()) around.partitions = {.names = partitions_of(options.partition), .by_user = true};
  auto cluster = known_cluster(options, environment, gpus, all, around.facts);
  if (!cluster) return fail(cluster.error());
  around.cluster = *std::move(cluster);
  if (around.cluster) warn_of_left_out(*around.cluster, partitions_asked_for(around.partitions, *around.cluster, all));
  auto site = read_site(options.site, options.gpus, environment, gpus, around.cluster ? around.cluster->name : "");
  if (!site) return fail(site.error());
  around.site = *std::move(site);
  const auto software = slurm::choose_environment(around.site, *options.software);
  if (!software) return fail(software.error());
  if (*software != nullptr) around.software = **software;
  around.placer = placer(*options.placer, all.size() > 1, slurm_configuration(environment));
  return around;
}

/// Applies the settings of the site file for starting jobs.
Result<void> use_site(const SubmitOptions& options, const Surroundings& around, Submission& submission) {
  const slurm::Launch& launch = around.site.launch;
  const slurm::SoftwareEnvironment* software = around.software ? &*around.software : nullptr;
  slurm::SbatchRequest& request = submission.request;
  request.mpi = launch.mpi;
  if (software != nullptr && !software->mpi.empty()) request.mpi = software->mpi;
  if (request.framework && !request.check_nodes) request.mpi = "none";  // sailor-check is the only program of MPI
  if (options.mpi.has()) request.mpi = *options.mpi;
  request.exclusive = launch.exclusive_nodes;
  if (!says(request.extra_options, "--constraint")) request.constraint = launch.constraint;
  request.one_gpu_per_task = launch.one_gpu_per_task;
  request.extra_options.insert(request.extra_options.begin(), launch.sbatch_options.begin(),
                               launch.sbatch_options.end());
  request.srun_options = launch.srun_options;
  if (software != nullptr)
    request.srun_options.insert(request.srun_options.end(), software->srun_options.begin(),
                                software->srun_options.end());
  if (options.image.has()) {
    if (software == nullptr || software->image_option.empty())
      return fail(ErrorCode::usage, fmt::format("site '{}' does not say how srun takes an image", around.site.name),
                  "choose a software environment that does with --software, or use another --site");
    request.srun_options.push_back(software->image_option + "=" + *options.image);
    const std::string view = options.view.has() ? *options.view : software->view;
    if (!view.empty() && software->view_option.empty())
      return fail(ErrorCode::usage, fmt::format("site '{}' does not say how srun takes a view", around.site.name),
                  "leave out --view, or choose a software environment that does with --software");
    if (!view.empty()) request.srun_options.push_back(software->view_option + "=" + view);
    request.in_image = true;
    submission.program.inside = *options.image;
  }
  request.environment = slurm::variables_of(around.site, software, slurm::has_pipelines(submission.plan));
  request.no_core_files = launch.no_core_files;
  for (std::size_t kind = 0; kind < request.nodes.size(); ++kind)
    if (const slurm::NodeLayout* layout = around.site.find_layout(submission.devices[kind].name))
      request.nodes[kind].memory_nodes = layout->memory_nodes;
  return {};
}

/// The node request by the command line, for a kind of device.
slurm::NodeRequest nodes_asked_for(const SubmitOptions& options, const GpuType& device) {
  slurm::NodeRequest asked;
  asked.device_kind = device.kind;
  if (device.kind == DeviceKind::gpu) asked.gres_type = *options.gpu_type;
  asked.devices_per_node = *options.devices_per_node;
  if (options.cpus_per_rank.has()) asked.cpus_per_rank = *options.cpus_per_rank;
  if (options.memory_per_cpu.has()) {
    asked.memory_per_cpu = Bytes(static_cast<double>(*options.memory_per_cpu) * 0x1p20);
    asked.memory_reason = slurm::MemoryReason::given;
  }
  return asked;
}

/// The limits that hold in all of these partitions, "a,b": Slurm may take any of them.
std::optional<Partition> limits_of(const Cluster& cluster, const std::string& partitions) {
  std::optional<Partition> all;
  const auto lower = [](std::optional<Bytes>& limit, const std::optional<Bytes>& other) {
    if (other) limit = limit ? std::min(*limit, *other) : *other;
  };
  for (const std::string& name : split(partitions, ',')) {
    const Partition* one = cluster.find_partition(name);
    if (one == nullptr) continue;
    if (!all) all = *one;
    lower(all->most_memory_per_node, one->most_memory_per_node);
    lower(all->most_memory_per_cpu, one->most_memory_per_cpu);
    all->exclusive_nodes = all->exclusive_nodes && one->exclusive_nodes;
  }
  return all;
}

/// Chooses the host memory of every kind of node, unless the user has given it.
Result<void> settle_memory(const Surroundings& around, const Environment& environment, Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  SAILOR_CHECK(count_copies(submission));
  if (memory_is_given(request, environment)) return {};
  const auto layout = slurm::lay_out_job(submission.plan, request);
  if (!layout) return fail(layout.error());
  const Cluster nothing;
  const Cluster& cluster = around.cluster ? *around.cluster : nothing;
  const bool exclusive =
      request.exclusive || std::any_of(request.extra_options.begin(), request.extra_options.end(),
                                       [](const std::string& option) { return option == "--exclusive"; });
  const auto& prediction = submission.plan.prediction;
  const bool predicted = prediction && !submission.plan.prediction_is_stale;
  for (std::size_t kind = 0; kind < request.nodes.size(); ++kind) {
    slurm::NodeRequest& asked = request.nodes[kind];
    int most_ranks = 0;
    for (const slurm::JobComponent& component : layout->components)
      if (component.kind == kind) most_ranks = std::max(most_ranks, component.tasks_per_node);
    const std::optional<Partition> limits = limits_of(cluster, asked.partition);
    slurm::choose_memory(
        asked, around.site.launch.memory_per_node, predicted ? std::optional(prediction->peak_memory) : std::nullopt,
        most_ranks, exclusive || (limits && limits->exclusive_nodes),
        slurm::node_size(cluster, asked.partition, submission.devices[kind]), limits ? &*limits : nullptr);
  }
  return {};
}

/// Asks for nodes near each other. In a heterogeneous job each component would be near only to itself, so none is asked
/// for.
void settle_nearness(const Surroundings& around, Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  const auto layout = slurm::lay_out_job(submission.plan, request);
  if (!layout || layout->components.size() > 1 || !around.site.launch.near_nodes || request.elastic) return;
  const slurm::NodeRequest& asked = request.nodes.front();
  const slurm::NearNodes near = slurm::near_nodes(*around.cluster, around.facts,
                                                  {.partition = asked.partition,
                                                   .device = submission.devices.front().name,
                                                   .devices_per_node = asked.devices_per_node,
                                                   .nodes = layout->components.front().nodes + request.spare_nodes,
                                                   .pipelines = submission.plan.data_parallel()},
                                                  request.time_limit);
  if (!says(request.extra_options, "--switches")) request.switches = near.switches;
  if (!says(request.extra_options, "--segment")) request.segment = near.segment;
}

/// Gives each rank the cores that the site file has for a GPU, where Slurm is not asked about the nodes.
void choose_cores(const SubmitOptions& options, const Surroundings& around, Submission& submission) {
  const GpuType& device = submission.devices.front();
  if (options.cpus_per_rank.has() || device.kind == DeviceKind::cpu) return;
  slurm::NodeRequest& asked = submission.request.nodes.front();
  const slurm::NodeLayout* const layout = around.site.find_layout(device.name);
  if (layout == nullptr || layout->cores.empty()) {
    log_warning(
        "{}: Slurm is not asked about the nodes, and no site file has the cores of {}: each rank gets 1; see "
        "--cpus-per-rank",
        submission.path, device.name);
    return;
  }
  int cores = std::numeric_limits<int>::max();
  for (const slurm::CoreRange& range : layout->cores) cores = std::min(cores, range.last - range.first + 1);
  asked.cpus_per_rank = cores;
}

/// A name for the job from the plan's model, which may be the path of a file: of mixtral/config.json "mixtral".
std::string model_word(const std::string& model) {
  std::error_code code;
  const fs::path path = fs::absolute(model, code).lexically_normal();
  std::string word = path.filename() == "config.json" ? path.parent_path().filename().string()
                     : path.extension() == ".toml" || path.extension() == ".json" ? path.stem().string()
                                                                                  : path.filename().string();
  for (char& c : word)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::string_view("._-").find(c) == std::string_view::npos)
      c = '-';
  return word.empty() ? "model" : word;
}

/// Fills in the parts of the request that depend on the nodes, from the command line, else from the cluster.
Result<void> settle_nodes(const SubmitOptions& options, const Environment& environment, const Surroundings& around,
                          Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  PartitionChoice partitions = around.partitions;
  if (!partitions.by_user) partitions.names = split(submission.plan.origin.partition, ',');
  for (const GpuType& device : submission.devices) request.nodes.push_back(nodes_asked_for(options, device));
  SAILOR_CHECK(use_site(options, around, submission));
  // If the user gives everything, sbatch checks it.
  // The controller plans anew with the prices, links and memory of these nodes.
  if (request.elastic && around.cluster && !request.elastic->controller_arguments.empty()) {
    submission.cluster_text = cluster_to_toml(*around.cluster);
    request.elastic->controller_arguments.push_back("--cluster=" +
                                                    (request.run_directory / cluster_file_name).string());
  }
  if (!around.cluster || (options.devices_per_node.has() && !options.cluster.has() && submission.kinds.size() == 1)) {
    auto partition = find_partition(around.cluster ? &*around.cluster : nullptr, partitions, submission);
    if (!partition) return fail(partition.error());
    request.nodes.front().partition = *std::move(partition);
    choose_cores(options, around, submission);
    // The nodes are not known: host memory for ranks on CPUs is left to the default of the partition.
    if (submission.devices.front().kind == DeviceKind::cpu) return {};
    return settle_memory(around, environment, submission);
  }
  const auto found = find_nodes(*around.cluster, partitions, submission);
  if (!found) return fail(found.error());
  for (std::size_t kind = 0; kind < submission.kinds.size(); ++kind) {
    const bool on_gpu = submission.devices[kind].kind == DeviceKind::gpu;
    const Nodes& nodes = (*found)[kind];
    slurm::NodeRequest& asked = request.nodes[kind];
    asked.partition = nodes.partition;
    if (!options.devices_per_node.has()) asked.devices_per_node = nodes.devices_per_node;
    if (!options.cpus_per_rank.has() && on_gpu) asked.cpus_per_rank = nodes.cpus_per_device;
    // GPUs without a type cannot be requested by type. (A cluster file need not have the types.)
    const bool without_type = !nodes.has_gres_type && !options.cluster.has();
    if (on_gpu && (asked.gres_type.empty() || without_type)) asked.gres_type = nodes.gres_type;
  }
  SAILOR_CHECK(settle_memory(around, environment, submission));
  settle_nearness(around, submission);
  return check_limits(*around.cluster, *found, submission);
}

/// The value for a program that runs in another directory: a site may be a name or a path.
std::string path_or_name(const AnyOptionValue& option) {
  const std::string text = option.text();
  return option.name() == "gpus" || text.find('/') != std::string::npos || text.ends_with(".toml")
             ? from_here(text).string()
             : text;
}

/// Chooses when the job is told to stop, and a unique job name if the next job waits for the end of this one.
Result<void> settle_ending(const SubmitOptions& options, const Surroundings& around, bool array,
                           Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  if (request.continuation == slurm::Continuation::resubmit && !array)
    request.job_name += "-" + content_hash(request.run_directory.string()).substr(0, 8);
  if (options.stop_lead.has()) request.stop_lead = Seconds(static_cast<double>(*options.stop_lead));
  if (request.stop_lead || request.checkpoints.empty()) return {};
  std::optional<CheckpointTime> checkpoint;
  if (!array) checkpoint = measured_checkpoint_time(request.checkpoints);
  const auto layout = slurm::lay_out_job(submission.plan, request);
  if (!layout) return fail(layout.error());
  int nodes = 0;
  for (const slurm::JobComponent& component : layout->components) nodes += component.nodes;
  if (const auto rate = around.site.check.write_per_node; !checkpoint && rate)
    checkpoint = estimated_checkpoint_time(submission.model.total_parameters(), *rate, nodes);
  const auto& prediction = submission.plan.prediction;
  const StopLead lead = choose_stop_lead(
      checkpoint, prediction ? std::optional(prediction->iteration_time) : std::nullopt, request.time_limit);
  request.stop_lead = lead.time;
  request.stop_lead_reason = lead.reason;
  if (!lead.problem.empty()) log_warning("{}: {}; see --stop-lead", submission.path, lead.problem);
  return {};
}

Result<void> fill_request(const SubmitOptions& options, const Environment& environment, Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  if (!is_for_framework(options)) {
    auto data = required(options.data);
    if (!data) return fail(data.error());
    SAILOR_CHECK(required(options.iterations));
    request.data = from_here(*data).string();
    request.iterations = *options.iterations;
  }
  if (options.learning_rate.has()) request.learning_rate = *options.learning_rate;
  if (options.seed.has()) request.seed = *options.seed;
  request.job_name = options.job_name.has() ? *options.job_name : "sailor-" + model_word(submission.plan.job.model);
  request.account = *options.account;
  request.reservation = *options.reservation;
  request.qos = *options.qos;
  request.licenses = *options.licenses;
  request.mail_type = join(*options.mail_type, ",");
  request.mail_user = *options.mail_user;
  request.array_limit = *options.array_limit;
  if (options.time.has()) {
    auto time = slurm::parse_time_limit(*options.time);
    if (!time) return fail(Error{ErrorCode::usage, "--time: " + time.error().what, time.error().hint});
    request.time_limit = *time;
  }
  request.extra_options = passed_on(*options.sbatch_option);
  SAILOR_CHECK(check_sbatch_options(request.extra_options));
  if (options.comment.has())
    request.comment = *options.comment;
  else if (!says(request.extra_options, "--comment"))
    request.comment = "sailor plan " + plan_fingerprint(submission.plan);
  request.extra_arguments = passed_on(*options.train_option);
  SAILOR_CHECK(check_train_options(request.extra_arguments));
  if (options.gpus.has()) {
    request.gpus_file = from_here(*options.gpus);
    request.extra_arguments.push_back("--gpus=" + request.gpus_file.string());
  }
  if (options.checkpoints.has()) {
    request.checkpoints = from_here(*options.checkpoints);
    std::error_code code;
    if (std::filesystem::exists(request.checkpoints, code) && !std::filesystem::is_directory(request.checkpoints, code))
      return fail(ErrorCode::invalid_input, fmt::format("--checkpoints {}: that is no folder", *options.checkpoints),
                  "name one that is there or may be made");
  }
  const std::string when_stopped = *options.when_stopped;
  if (when_stopped == "requeue") request.continuation = slurm::Continuation::requeue;
  if (when_stopped == "resubmit") request.continuation = slurm::Continuation::resubmit;
  if (request.continuation != slurm::Continuation::none && request.checkpoints.empty())
    return fail(ErrorCode::usage, fmt::format("--when-stopped {} needs checkpoints to go on from", when_stopped),
                "use --checkpoints FOLDER");
  request.retries = *options.retries;
  request.check_nodes = *options.check;
  request.spare_nodes = *options.spare_nodes;
  if (request.spare_nodes > 0 && !request.check_nodes)
    return fail(ErrorCode::usage, "--spare-nodes are for nodes that a check finds unfit", "use --check too");
  request.checker = beside_this_program("sailor-check");
  for (const auto* name : OptionList{&options.site, &options.software, &options.gpus})
    if (name->given()) request.checker_arguments.push_back(fmt::format("--{}={}", name->name(), path_or_name(*name)));
  request.run_directory = from_here(options.run_directory.has() ? *options.run_directory
                                                                : "run-" + fs::path(submission.path).stem().string());
  std::error_code code;
  if (std::filesystem::exists(request.run_directory, code) &&
      !std::filesystem::is_directory(request.run_directory, code))
    return fail(ErrorCode::invalid_input,
                fmt::format("the run directory '{}' is a file", request.run_directory.string()),
                "use another one with --run-directory DIR");
  request.plan_path = request.run_directory / "plan.toml";
  request.models_folder = from_here(models_folder(options.models, environment));
  submission.program = training_program(options, environment);
  request.program = submission.program.path;
  request.runs_sailor_train = !options.program.has();
  request.launcher = beside_this_program("sailor-launch");
  if (is_for_framework(options)) return set_framework(options, submission);
  return make_elastic(options, environment, submission);
}

Result<Submission> read_submission(const SubmitOptions& options, const Environment& environment,
                                   const std::string& path, const GpuCatalogue& gpus) {
  Submission submission;
  submission.path = path;
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  submission.plan_text = *std::move(text);
  auto plan = parse_plan(submission.plan_text, path);
  if (!plan) return fail(plan.error());
  submission.plan = *std::move(plan);
  auto model = find_model(submission.plan, models_folder(options.models, environment));
  if (!model) return fail(model.error(), path);
  submission.model = *std::move(model);
  if (auto good = check_plan(submission.plan, submission.model); !good) return fail(good.error(), path);
  submission.kinds = kinds_of(submission.plan);
  for (const auto& [gpu, zone] : submission.kinds) {
    auto device = gpus.find(gpu);
    if (!device) return fail(device.error(), path);
    submission.devices.push_back(*std::move(device));
  }
  SAILOR_CHECK(fill_request(options, environment, submission));
  if (submission.request.runs_sailor_train) {
    if (auto good = check_trainable(submission.model); !good) return fail(good.error(), path);
    if (auto good = check_trainable(submission.plan); !good) return fail(good.error(), path);
  }
  return submission;
}

/// Checks that the ranks of a heterogeneous job can reach each other.
Result<void> check_components(const Surroundings& around, const Submission& submission) {
  const auto layout = slurm::lay_out_job(submission.plan, submission.request);
  if (!layout) return {};  // reported when the script is made
  if (auto problem = slurm::component_problem(layout->components.size(), around.facts, around.site))
    return fail(*std::move(problem), submission.path);
  return {};
}

}  // namespace

Result<std::vector<std::vector<Submission>>> prepare_all(const SubmitOptions& options, const Environment& environment) {
  SAILOR_CHECK(check_trainer_options(options));
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  std::vector<Submission> all;
  for (const std::string& path : *options.plan) {
    auto submission = read_submission(options, environment, path, *gpus);
    if (!submission) return fail(submission.error());
    all.push_back(*std::move(submission));
  }
  const auto around = look_around(options, environment, *gpus, all);
  if (!around) return fail(around.error());
  const bool array = all.size() > 1;
  for (Submission& one : all) {
    const bool launched = one.request.elastic || one.request.framework;
    one.request.placer = launched ? slurm::Placer::launcher : around->placer;
    if (auto settled = settle_nodes(options, environment, *around, one); !settled)
      return fail(settled.error(), array ? one.path : std::string());
    if (auto settled = settle_ending(options, *around, array, one); !settled)
      return fail(settled.error(), array ? one.path : std::string());
    SAILOR_CHECK(check_components(*around, one));
    warn_of_prediction(one);
  }
  if (array) return make_arrays(options, std::move(all));
  return std::vector<std::vector<Submission>>{std::move(all)};
}

}  // namespace sailor::apps
