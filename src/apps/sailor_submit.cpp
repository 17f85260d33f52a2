// sailor-submit: turns a plan into a batch script and hands it to Slurm. Runs on a login node. Prints the job's id on
// stdout. Failure: exit 1, also with --wait when the job failed; 2 for a wrong command line.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <system_error>

#include "apps/inputs.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "plan/plan.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/jobs.hpp"
#include "slurm/sbatch.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;

CommandLine command_line() {
  Option partition = shared::partition();
  partition.help = "Slurm partition [default: the one the plan was made for, else Slurm's default]";
  Option cluster = shared::cluster_file();
  cluster.help = "take the nodes' number of devices from this file (cluster.toml) instead of asking Slurm";
  return {
      .program = "sailor-submit",
      .purpose = "submits the job that trains a model as a plan says, and prints the job's id",
      .positionals = {{.name = "PLAN", .help = "the plan (plan.toml), written by sailor-plan"}},
      .options =
          {{.name = "data",
            .value_name = "PREFIX",
            .help = "what to train on: path prefix of the files that sailor-data wrote"},
           {.name = "remote-data",
            .type = OptionType::flag,
            .help = "do not look for the data here: only the nodes see it"},
           {.name = "iterations",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "optimizer steps to run",
            .minimum = 1},
           partition,
           shared::account(),
           shared::time_limit(),
           {.name = "job-name", .letter = 'J', .value_name = "NAME", .help = "name of the job [default: sailor-MODEL]"},
           {.name = "run-directory",
            .value_name = "DIR",
            .help = "where the job runs, with its plan, script, log and run file [default: run-PLAN, for plan.toml "
                    "run-plan]"},
           {.name = "dry-run", .type = OptionType::flag, .help = "print the script; write and submit nothing"},
           {.name = "test-only",
            .type = OptionType::flag,
            .help = "ask Slurm when and where the job would start; write and submit nothing"},
           {.name = "wait",
            .type = OptionType::flag,
            .help = "wait for the end of the job and fail if it failed; interrupting this leaves the job alone"},
           {.name = "devices-per-node",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "ranks that a node may take [default: its GPUs, or cores for a CPU plan, as Slurm says]",
            .minimum = 1,
            .maximum = 4096},
           {.name = "cpus-per-rank",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "CPUs for each rank [default: a GPU's share of the node's, or 1]",
            .minimum = 1,
            .maximum = 4096},
           {.name = "memory-per-cpu",
            .type = OptionType::integer,
            .value_name = "MIB",
            .help = "host memory for each CPU, MiB [default: for a CPU plan 1.2 times its prediction and 256 more, "
                    "else the "
                    "partition's]",
            .minimum = 1,
            .maximum = 1 << 30},
           {.name = "gpu-type",
            .value_name = "TYPE",
            .help = "GRES type to ask for, where a partition holds several: gh200, a100, ..."},
           {.name = "learning-rate",
            .type = OptionType::number,
            .value_name = "RATE",
            .help = "learning rate of the optimizer [default: sailor-train's]",
            .minimum = 0,
            .maximum = 1e6},
           {.name = "seed",
            .type = OptionType::integer,
            .value_name = "N",
            .help = "seed of the initial parameters and of the order of samples [default: sailor-train's]",
            .minimum = 0},
           {.name = "train-option",
            .value_name = "OPTION",
            .help = "further option of sailor-train, such as --train-option=--weight-decay=0",
            .repeatable = true},
           {.name = "program",
            .value_name = "FILE",
            .help = "what to run [default: the sailor-train beside this program, else the one in PATH]"},
           {.name = "mpi",
            .value_name = "TYPE",
            .help = "how srun starts MPI ranks, see srun --mpi=list",
            .default_value = "pmix"},
           {.name = "sbatch-option",
            .value_name = "OPTION",
            .help = "further option of sbatch, such as --sbatch-option=--qos=high",
            .repeatable = true},
           cluster,
           shared::models_folder(),
           shared::gpus_file()},
      .examples = {{"sailor-submit plan.toml --data corpus --iterations 100 --dry-run --devices-per-node 4",
                    "see the script"},
                   {"sailor-submit plan.toml --data corpus --iterations 100 -p normal -t 2:00:00 --wait",
                    "submit, and wait for the end"},
                   {"sailor-submit plan.toml --data corpus --iterations 100 --sbatch-option=--exclude=gh7 -J night-run",
                    "with a further option of sbatch"}},
      .notes = "Exit status: 0 submitted (with --wait: and succeeded), 1 failure, 2 wrong usage."};
}

/// Everything that is known before a script is written.
struct Submission {
  Plan plan;
  std::string plan_text;
  Model model;
  GpuType device;
  Bytes memory_per_cpu{};  ///< that the nodes have; 0: not known
  slurm::SbatchRequest request;
};

// What a rank needs beyond its prediction: what libraries allocate besides tensors differs from cluster to cluster.
constexpr double memory_factor = 1.2;
constexpr Bytes memory_reserve = 256.0 * mib;

fs::path from_here(const fs::path& path) { return fs::absolute(path).lexically_normal(); }

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
         {"--data", "--iterations", "--run-file", "--models", "--gpus", "--learning-rate", "--seed"})
      if (argument == ours || argument.starts_with(std::string(ours) + "="))
        return fail(ErrorCode::usage, fmt::format("--train-option: sailor-submit itself sets {}", ours),
                    "use its own option, see sailor-submit --help");
  return {};
}

fs::path default_program() {
  std::error_code code;
  const fs::path beside = fs::read_symlink("/proc/self/exe", code).parent_path() / "sailor-train";
  return !code && fs::exists(beside, code) ? beside : fs::path("sailor-train");
}

/// Nodes with the plan's device in the partition.
struct Nodes {
  int count = 0;
  int devices_per_node = 0;  ///< the fewest
  int cpus_per_device = 0;   ///< the fewest
  Bytes memory_per_cpu{};    ///< host memory, the least
  std::set<std::string> gpus_of_partition;
};

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

Result<Nodes> find_nodes(const Cluster& cluster, const std::string& partition, const GpuType& device) {
  Nodes nodes;
  for (const NodeGroup& group : cluster.usable(partition, false)) {
    nodes.gpus_of_partition.insert(group.gpu);
    if (group.gpu != device.name) continue;
    const int cpus = std::max(1, group.cpus_per_node / group.gpus_per_node);
    nodes.devices_per_node =
        nodes.count == 0 ? group.gpus_per_node : std::min(nodes.devices_per_node, group.gpus_per_node);
    nodes.cpus_per_device = nodes.count == 0 ? cpus : std::min(nodes.cpus_per_device, cpus);
    const Bytes memory = group.memory_per_node / std::max(group.cpus_per_node, 1);
    nodes.memory_per_cpu = nodes.count == 0 ? memory : std::min(nodes.memory_per_cpu, memory);
    nodes.count += group.count;
  }
  if (nodes.count > 0) return nodes;
  const std::string where = partition.empty() ? "the cluster" : fmt::format("partition '{}'", partition);
  return fail(
      ErrorCode::not_found,
      fmt::format(
          "{} has no usable node with {} (it has: {})", where, device.name,
          nodes.gpus_of_partition.empty() ? "none" : fmt::format("{}", fmt::join(nodes.gpus_of_partition, ", "))),
      "use another --partition, or another plan");
}

/// Refuses what Slurm might accept and then never start.
Result<void> check_limits(const Cluster& cluster, const Nodes& nodes, const Submission& submission) {
  const slurm::SbatchRequest& request = submission.request;
  auto layout = slurm::lay_out_tasks(submission.plan, request.devices_per_node);
  if (!layout) return fail(layout.error());
  const std::string where =
      request.partition.empty() ? "the cluster" : fmt::format("partition '{}'", request.partition);
  const std::string needs =
      fmt::format("the plan needs {} of {} {}", plural(static_cast<std::size_t>(layout->nodes), "node"),
                  request.devices_per_node, submission.device.name);
  if (layout->nodes > nodes.count)
    return fail(ErrorCode::unavailable, fmt::format("{} but {} has {} usable", needs, where, nodes.count),
                "use another --partition, or another plan");
  const Partition* partition = cluster.find_partition(request.partition);
  if (partition == nullptr) return {};
  if (partition->most_nodes && layout->nodes > *partition->most_nodes)
    return fail(ErrorCode::unavailable,
                fmt::format("{} but {} allows {} per job", needs, where, *partition->most_nodes),
                "use another --partition, or another plan");
  if (partition->time_limit && request.time_limit && *request.time_limit > *partition->time_limit)
    return fail(ErrorCode::invalid_input,
                fmt::format("time {} is over the limit of {}: {}", slurm::format_time_limit(*request.time_limit), where,
                            slurm::format_time_limit(*partition->time_limit)),
                "use a smaller --time, or another --partition");
  return {};
}

/// Fills in what depends on the nodes, from the command line, or else from Slurm.
Result<void> settle_nodes(const Options& options, const Environment& environment, const GpuCatalogue& gpus,
                          Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  request.devices_per_node = static_cast<int>(options.integer("devices-per-node"));
  if (options.has("cpus-per-rank")) request.cpus_per_rank = static_cast<int>(options.integer("cpus-per-rank"));
  if (options.has("devices-per-node") && !options.has("cluster")) return {};
  auto cluster = known_cluster(options, environment, gpus);
  if (!cluster) return fail(cluster.error());
  if (request.partition.empty()) {
    for (const Partition& partition : cluster->partitions)
      if (partition.is_default) request.partition = partition.name;
  } else {
    SAILOR_CHECK(slurm::require_partition(*cluster, request.partition));
  }
  auto nodes = find_nodes(*cluster, request.partition, submission.device);
  if (!nodes) return fail(nodes.error());
  submission.memory_per_cpu = nodes->memory_per_cpu;
  if (!options.has("devices-per-node")) request.devices_per_node = nodes->devices_per_node;
  if (!options.has("cpus-per-rank") && submission.device.kind == DeviceKind::gpu)
    request.cpus_per_rank = nodes->cpus_per_device;
  if (submission.device.kind == DeviceKind::gpu && request.gres_type.empty() && nodes->gpus_of_partition.size() > 1)
    return fail(ErrorCode::usage,
                fmt::format("partition '{}' has several device types ({})", request.partition,
                            fmt::join(nodes->gpus_of_partition, ", ")),
                fmt::format("say which GPUs to ask for with --gpu-type ({}: {})", submission.device.name,
                            fmt::join(submission.device.slurm_gres, ", ")));
  return check_limits(*cluster, *nodes, submission);
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
  request.partition = options.has("partition") ? options.text("partition") : submission.plan.origin.partition;
  request.account = options.text("account");
  if (options.has("time")) {
    auto time = slurm::parse_time_limit(options.text("time"));
    if (!time) return fail(Error{ErrorCode::usage, "--time: " + time.error().what, time.error().hint});
    request.time_limit = *time;
  }
  request.device_kind = submission.device.kind;
  request.gres_type = options.text("gpu-type");
  request.mpi = options.text("mpi");
  request.extra_options = passed_on(options, "sbatch-option");
  request.extra_arguments = passed_on(options, "train-option");
  SAILOR_CHECK(check_train_options(request.extra_arguments));
  if (options.has("gpus")) request.extra_arguments.push_back("--gpus=" + from_here(options.text("gpus")).string());
  request.run_directory = from_here(options.has("run-directory") ? options.text("run-directory")
                                                                 : "run-" + fs::path(plan_path).stem().string());
  request.plan_path = request.run_directory / "plan.toml";
  request.models_folder = from_here(models_folder(options, environment));
  request.program = options.has("program") ? fs::path(options.text("program")) : default_program();
  // A bare name is looked up in PATH by srun.
  if (request.program.has_parent_path()) request.program = from_here(request.program);
  return {};
}

void settle_memory(const Options& options, Submission& submission) {
  if (submission.plan.prediction_is_stale)
    spdlog::warn(
        "the plan was edited after its prediction was made: its memory is not known; see sailor-simulate, and "
        "--memory-per-cpu");
  if (submission.plan.prediction && submission.plan.prediction->origin == to_string(Origin::estimated))
    spdlog::warn(
        "the plan's time and memory are estimates, not from measurements of its devices; measure with sailor-profile "
        "layers, or check --time and --memory-per-cpu");
  slurm::SbatchRequest& request = submission.request;
  if (options.has("memory-per-cpu")) {
    request.memory_per_cpu = Bytes(static_cast<double>(options.integer("memory-per-cpu")) * 0x1p20);
  } else if (submission.device.kind == DeviceKind::cpu && submission.plan.prediction &&
             submission.plan.prediction->peak_memory > Bytes(0)) {
    Bytes memory = (submission.plan.prediction->peak_memory * memory_factor + memory_reserve) / request.cpus_per_rank;
    // Slurm would never start what asks for more than the nodes have.
    if (submission.memory_per_cpu >= mib) memory = std::min(memory, std::floor(submission.memory_per_cpu / mib) * mib);
    request.memory_per_cpu = memory;
  }
}

Result<Submission> prepare(const Options& options, const Environment& environment) {
  const std::string& plan_path = options.positional("PLAN").front();
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
  auto device = gpus->find(submission.plan.pipelines.front().stages.front().gpu);
  if (!device) return fail(device.error(), plan_path);
  submission.device = *std::move(device);
  SAILOR_CHECK(fill_request(options, environment, plan_path, submission));
  SAILOR_CHECK(slurm::check_uniform(submission.plan));
  SAILOR_CHECK(settle_nodes(options, environment, *gpus, submission));
  settle_memory(options, submission);
  return submission;
}

/// What is missing here is most often mistyped; --remote-data says that only the nodes see it.
Result<void> check_data(const Options& options, const std::string& prefix) {
  if (options.flag("remote-data")) return {};
  std::error_code code;
  for (const std::string& file : {prefix + ".bin", prefix + ".idx"})
    if (!fs::exists(file, code))
      return fail(ErrorCode::not_found, fmt::format("there is no file '{}'", file),
                  "correct --data, make it with sailor-data, or use --remote-data if only the nodes see it");
  return {};
}

/// Plan first, script last: where there is a script, it can run.
Result<fs::path> write_run_directory(const Submission& submission, const std::string& script) {
  const slurm::SbatchRequest& request = submission.request;
  std::error_code code;
  fs::create_directories(request.run_directory, code);
  if (code)
    return fail(ErrorCode::io,
                fmt::format("cannot make the run directory '{}': {}", request.run_directory.string(), code.message()));
  // Of two that begin at the same time one finds the other's plan.
  auto created = create_file_atomically(request.plan_path, submission.plan_text);
  if (!created) return fail(created.error());
  if (!*created) {
    auto there = read_text_file(request.plan_path);
    if (!there) return fail(there.error());
    if (*there != submission.plan_text)
      return fail(ErrorCode::invalid_input,
                  fmt::format("run directory '{}' belongs to another plan", request.run_directory.string()),
                  "use another one with --run-directory DIR");
  }
  const fs::path path = request.run_directory / "job.sbatch";
  SAILOR_CHECK(write_file_atomically(path, script));
  return path;
}

Result<void> follow(const slurm::JobHandle& job, const std::string& name) {
  auto status =
      slurm::wait_for(job, [&](const slurm::JobStatus& now) { spdlog::info("job {}: {}", job.id, now.describe()); });
  if (!status) return fail(status.error());
  if (status->phase == slurm::JobPhase::succeeded) return {};
  std::string what = fmt::format("job {} ({}): {}", job.id, name, status->describe());
  const auto lines = slurm::last_lines(status->log, 10);
  if (!lines.empty())
    what += fmt::format("; its log {} ends with:\n    {}", status->log.string(), fmt::join(lines, "\n    "));
  else if (!status->log.empty())
    what += fmt::format("; its log would be {}, which is empty or not there", status->log.string());
  return fail(ErrorCode::failure, what);
}

Result<void> run(const Options& options, const Environment& environment) {
  auto submission = prepare(options, environment);
  if (!submission) return fail(submission.error());
  auto script = slurm::sbatch_script(submission->plan, submission->model, submission->request);
  if (!script) return fail(script.error());
  if (options.flag("dry-run")) {
    fmt::print("{}", *script);
    return {};
  }
  SAILOR_CHECK(check_data(options, submission->request.data));
  if (options.flag("test-only")) {
    auto answer = slurm::test_submission(*script);
    if (!answer) return fail(answer.error());
    fmt::print("{}\n", *answer);
    return {};
  }
  auto path = write_run_directory(*submission, *script);
  if (!path) return fail(path.error());
  auto job = slurm::submit(*path, submission->request.run_directory);
  if (!job) return fail(job.error());
  fmt::print("{}\n", job->id);
  std::fflush(stdout);
  spdlog::info("submitted job {}, which runs in {}", job->id, submission->request.run_directory.string());
  return options.flag("wait") ? follow(*job, submission->request.job_name) : Result<void>{};
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::command_line(), sailor::apps::run);
}
