// sailor-check: are the nodes of this allocation fit to train on? One process per rank, started by srun before
// training. Every rank gathers its facts, all measure together, rank 0 judges and prints. Exit status 5: a node must be
// excluded, or the job cannot run like this.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "apps/check/measure.hpp"
#include "apps/devices.hpp"
#include "apps/options.hpp"
#include "apps/programs.hpp"
#include "apps/single_blas_thread.hpp"
#include "apps/termination.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "core/shell.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "plan/plan.hpp"
#include "preflight/fabric.hpp"
#include "preflight/gather_facts.hpp"
#include "preflight/node_check.hpp"
#include "preflight/write_test.hpp"
#include "runtime/cpu/host_cpu.hpp"
#include "runtime/mpi/mpi_session.hpp"
#include "runtime/rank_watch.hpp"
#include "runtime/sockets/coordinator.hpp"
#include "runtime/sockets/member.hpp"
#include "slurm/node_records.hpp"
#include "slurm/site.hpp"
#include "slurm/task_role.hpp"

namespace sailor::apps {

namespace {

using preflight::Outcome;
using preflight::RankFacts;
using runtime::MpiSession;

struct CheckOptions : CommonOptions {
  OptionValue<std::string> plan, software, format, write_to, device, node_facts, site, gpus;
  OptionValue<bool> spare_nodes, strict, nhc;
  OptionValue<double> slower_than_median, time_budget, timeout;
  OptionValue<std::vector<std::string>> skip;
  OptionValue<int> message, gpus_per_node;
  OptionValue<std::int64_t> write_size;
};

CommandLine command_line(CheckOptions& options) {
  return {
      .program = "sailor-check",
      .purpose = purpose_of("sailor-check"),
      .options =
          {option(options.plan,
                  {.name = "plan",
                   .value_name = "FILE",
                   .help = "compare GPUs and memory with this plan (plan.toml); must be readable on the nodes"}),
           option(options.spare_nodes, {.name = "spare-nodes",
                                        .help = "the step has spare nodes, more tasks than the plan has ranks: every "
                                                "node must be fit for any rank"}),
           option(options.node_facts, shared::node_facts()),
           option(options.site, shared::site("what healthy nodes reach")),
           option(options.software, {.name = "software",
                                     .value_name = "NAME",
                                     .help = "software environment of the site file whose variables must be set "
                                             "[default: the site's usual one]"}),
           option(
               options.slower_than_median,
               {.name = "slower-than-median",
                .value_name = "SHARE",
                .help =
                    "by how much a rank or link may lag behind the median of those alike, 0 to 1 [default: the site's]",
                .minimum = 0,
                .maximum = 1}),
           option(options.skip, {.name = "skip",
                                 .value_name = "CHECK",
                                 .help = "leave out these checks",
                                 .choices = preflight::check_names()}),
           option(options.strict, {.name = "strict", .help = "fail for warnings too (exit status 5)"}),
           option(options.format, {.name = "format",
                                   .value_name = "FORMAT",
                                   .help = "how to write the result to stdout; json has all that was found out",
                                   .default_value = "table",
                                   .choices = {"table", "json"}}),
           option(options.time_budget, {.name = "time-budget",
                                        .value_name = "SECONDS",
                                        .help = "seconds to measure; what looks slow is measured again for as long",
                                        .default_value = "6",
                                        .minimum = 0.01,
                                        .maximum = 3600}),
           option(options.message, {.name = "message",
                                    .value_name = "BYTES",
                                    .help = "size of messages and of arrays that are summed, bytes",
                                    .default_value = "16777216",
                                    .minimum = 1024,
                                    .maximum = 1 << 30}),
           option(options.write_to, {.name = "write-to",
                                     .value_name = "DIR",
                                     .help = "measure too how fast each node writes to this folder, that of the run or "
                                             "of its checkpoints, while all others do; nothing stays in it"}),
           option(options.write_size, {.name = "write-size",
                                       .value_name = "BYTES",
                                       .help = "bytes that each node writes there; called a hang after 60 s and the "
                                               "time that this takes at 20 MB/s",
                                       .default_value = "67108864",
                                       .minimum = 4096,
                                       .maximum = 1e12}),
           option(options.timeout, {.name = "timeout",
                                    .value_name = "SECONDS",
                                    .help = "name the ranks that give no sign of life for so long",
                                    .default_value = "60",
                                    .minimum = 0.1,
                                    .maximum = 86400}),
           option(options.device,
                  {.name = "device",
                   .value_name = "DEVICE",
                   .help = "what computes and exchanges messages; auto: GPUs if every rank has one, else CPUs",
                   .default_value = "auto",
                   .choices = {"auto", "cpu", "gpu"}}),
           option(options.gpus_per_node, {.name = "gpus-per-node",
                                          .value_name = "N",
                                          .help = "with --nhc: GPUs that the node must have [default: the job's, in a "
                                                  "job; 1 with --device gpu; else whatever is there]",
                                          .minimum = 0,
                                          .maximum = 1024}),
           option(options.nhc,
                  {.name = "nhc",
                   .help = "check this node alone, without MPI, and say so in one line: for administrators' health "
                           "checks (exit status 0 fit or warnings only, 5 to be drained)"}),
           option(options.gpus, shared::gpus_file())},
      .examples = {{"srun --mpi=pmix -N 2 --ntasks-per-node=1 sailor-check", "are the nodes fit?"},
                   {"srun --mpi=pmix -n 2 sailor-check --plan plan.toml", "and are they what a plan needs?"},
                   {"srun --mpi=pmix -n 2 sailor-check --write-to . --format json >check.json",
                    "how fast can they write here? for another program"},
                   {"sailor-check --nhc", "is this node fit? for the script of HealthCheckProgram in slurm.conf"}},
      .exit_statuses = {{0, "all nodes are fit; with --nhc also: warnings only"},
                        {1, "the check could not be made (a rank that died or hangs is named)"},
                        {2, "wrong usage"},
                        {4, "warnings only"},
                        {5, "a node must be excluded, or the job cannot run like this; with --strict also: warnings"}},
      .notes =
          "Measured are matrix products and copies of every rank, messages around the ring of nodes, and all-reduces\n"
          "within nodes, between them and over all ranks, on GPUs (float16, over NCCL) or on CPU cores (float32, over\n"
          "MPI); with --write-to also files of one rank of each node. What is not there (a driver, fi_info, a card) "
          "is\n"
          "not checked, and named. The last line of the table is the option with which sbatch and srun leave out the\n"
          "nodes that failed: --exclude=gh3,gh7.\n"
          "With --nhc one process looks at all GPUs of its node, and multiplies matrices on those that nobody uses, "
          "if\n"
          "there are several to compare.",
      .one_per_rank = true};
}

std::string value_of(const Environment& environment, const std::string& name) {
  return slurm::lookup_in(environment)(name).value_or("");
}

/// Inputs that are the same on all ranks.
struct Inputs {
  GpuCatalogue gpus;
  slurm::Site site;
  slurm::Variables variables;
  std::optional<Plan> plan;
};

Result<Inputs> read_inputs(const CheckOptions& options, const Environment& environment) {
  Inputs inputs;
  auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  inputs.gpus = *std::move(gpus);
  auto site = slurm::choose_site(*options.site, value_of(environment, "SLURM_CLUSTER_NAME"), sites_folder(environment),
                                 inputs.gpus);
  if (!site) return fail(site.error());
  inputs.site = *std::move(site);
  if (options.slower_than_median.has()) inputs.site.check.slower_than_median = *options.slower_than_median;
  const auto software = slurm::choose_environment(inputs.site, *options.software);
  if (!software) return fail(software.error());
  inputs.variables = slurm::variables_of(inputs.site, *software);
  if (!options.plan.has()) return inputs;
  const std::string path = *options.plan;
  auto plan = load_plan(path);
  if (!plan) return fail(plan.error());
  SAILOR_CHECK(check_plan(*plan));
  inputs.plan = *std::move(plan);
  return inputs;
}

std::optional<Bytes> peak_memory_of(const Plan& plan) {
  return plan.prediction ? std::optional(plan.prediction->peak_memory) : std::nullopt;
}

/// Requirements of the plan for any rank on a node like this one: of several GPU types the type of the node, else the
/// first type of the plan.
preflight::PlannedRank any_rank_of(const Inputs& inputs, const slurm::StepNode& node) {
  const auto kinds = kinds_of(*inputs.plan);
  const GpuType* own = node.gres_type.empty() ? nullptr : inputs.gpus.find_gres(node.gres_type);
  std::string device = kinds.front().first;
  for (const auto& [gpu, zone] : kinds)
    if (own != nullptr && gpu == own->name) device = gpu;
  const auto type = inputs.gpus.find(device);
  return {.gpu = type ? type->name : device,
          .on_gpu = !type || type->kind == DeviceKind::gpu,
          .memory = peak_memory_of(*inputs.plan)};
}

/// Adds the role of this task by the plan. A node of another type than the plan's is a finding about this node: the
/// role is then determined without regard to the types.
void add_role(const Inputs& inputs, const Environment& environment, bool spare_nodes,
              const std::filesystem::path& facts_file, RankFacts& facts) {
  const slurm::Lookup lookup = slurm::lookup_in(environment);
  auto step = slurm::read_step(lookup);
  if (!step) {
    if (inputs.plan) facts.plan_problem = step.error().message();
    return;
  }
  const auto known =
      facts_file.empty() ? slurm::add_node_facts(*step, lookup) : slurm::read_node_facts(*step, facts_file);
  if (!known) facts.unknown.push_back({"gpu-type", known.error().message()});
  facts.gres_type = step->nodes[step->own_node].gres_type;
  facts.local_rank = step->local_task;
  if (!inputs.plan) return;
  if (spare_nodes && step->tasks() > inputs.plan->ranks()) {
    facts.planned = any_rank_of(inputs, step->nodes[step->own_node]);
    return;
  }
  auto task = slurm::find_role(*inputs.plan, *step, &inputs.gpus);
  if (!task) {
    const Error first = task.error();
    task = slurm::find_role(*inputs.plan, *step, nullptr);
    if (!task) {
      facts.plan_problem = first.message();
      return;
    }
  }
  const auto type = inputs.gpus.find(task->gpu);
  facts.local_rank = task->local_rank;
  facts.planned = {.gpu = type ? type->name : task->gpu,
                   .on_gpu = type ? type->kind == DeviceKind::gpu : task->on_gpu,
                   .pipeline = task->role.pipeline,
                   .stage = task->role.stage,
                   .tensor_parallel_index = task->role.tensor_parallel_index,
                   .memory = std::nullopt};
  facts.planned->memory = peak_memory_of(*inputs.plan);
  if (!facts.planned->memory)
    facts.unknown.push_back({"memory", "against the plan: it was not simulated, so it says nothing of memory"});
}

RankFacts facts_of_this_rank(const Inputs& inputs, const Environment& environment, bool spare_nodes,
                             const std::filesystem::path& facts_file, const runtime::Control& control) {
  RankFacts facts =
      preflight::gather_facts({.environment = environment,
                               .variables = inputs.variables,
                               .versions = {{"sailor", std::string(version())}, {"MPI", MpiSession::version()}}});
  facts.rank = control.rank();
  facts.host = control.host();
  facts.node = value_of(environment, "SLURMD_NODENAME");
  if (facts.node.empty()) facts.node = facts.host;
  add_role(inputs, environment, spare_nodes, facts_file, facts);
  return facts;
}

/// The facts of all ranks, on rank 0.
Result<std::vector<RankFacts>> gather(runtime::Control& control, const RankFacts& facts) {
  std::vector<RankFacts> all;
  for (const std::string& text : control.gather(preflight::to_json_text(facts))) {
    auto read = preflight::rank_facts_from_json(text);
    if (!read) return fail(read.error(), fmt::format("rank {}", all.size()));
    all.push_back(*std::move(read));
  }
  return all;
}

/// The providers that libfabric finds; std::nullopt on ranks that do not ask, since one per node is enough.
using Fabric = std::optional<Result<std::vector<preflight::FabricProvider>>>;

/// Must run before MPI starts: not every MPI library tolerates processes that are started later. The ranks that do not
/// ask wait in MPI's start for --timeout, and no longer.
Fabric ask_fabric(const CheckOptions& options, const Environment& environment) {
  const std::string local = value_of(environment, "SLURM_LOCALID");
  const std::vector<std::string> skip = *options.skip;
  if ((!local.empty() && local != "0") || std::find(skip.begin(), skip.end(), "fabric") != skip.end())
    return std::nullopt;
  return preflight::ask_fabric(Seconds(std::min(10.0, *options.timeout / 2.0)));
}

void add_fabric(const Result<std::vector<preflight::FabricProvider>>& found, RankFacts& facts) {
  if (found)
    facts.providers = *found;
  else
    facts.unknown.push_back({"fabric", found.error().what});
}

/// Names what comes after the verdict: a look at the nodes that fail, or the training.
void suggest_after(const CheckOptions& options, const Environment& environment, const preflight::Verdict& verdict) {
  std::vector<std::string> nodes;
  for (const preflight::NodeVerdict& node : verdict.nodes)
    if (node.outcome() == Outcome::fail) nodes.push_back(node.node);
  std::vector<std::string> commands;
  if (!nodes.empty() && environment.contains("SLURM_JOB_ID"))
    commands.push_back(fmt::format("scontrol show node={}", shell_quote(join(nodes, ","))));
  if (!nodes.empty()) commands.emplace_back("sailor-check --nhc --format json  # on a node that failed");
  if (verdict.outcome() != Outcome::fail && options.plan.has()) commands.push_back(submit_command(*options.plan));
  suggest_next(commands);
}

/// Prints the verdict, as JSON or by `text`, and returns its outcome, with --strict applied.
Outcome print_verdict(const CheckOptions& options, const Environment& environment,
                      const preflight::Allocation& allocation,
                      const std::function<std::string(const preflight::Verdict& verdict)>& text) {
  const preflight::Verdict verdict = preflight::judge(allocation);
  fmt::print("{}", *options.format == "json" ? preflight::report_json(verdict, allocation) : text(verdict));
  std::fflush(stdout);  // before another rank leaves: a task that fails may end the step
  if (*options.format == "table") suggest_after(options, environment, verdict);
  const Outcome outcome = verdict.outcome();
  return *options.strict && outcome == Outcome::warn ? Outcome::fail : outcome;
}

/// The check from the first question to the verdict.
class Check {
 public:
  Check(const CheckOptions& options, const Environment& environment, const Fabric& fabric, const runtime::World& world)
      : options_(options),
        environment_(environment),
        fabric_(fabric),
        world_(world),
        watch_("sailor-check", world, Seconds(*options.timeout)) {
    for (const std::string& name : *options.skip) skip_.insert(name);
  }

  /// The exit status, the same on all ranks. Errors are agreed on.
  Result<int> run() {
    try {
      return run_steps();
    } catch (const runtime::TransportError& error) {
      if (error.cause() != runtime::TransportError::Cause::aborted) throw;
      watch_.name_missing_ranks(nodes_);
    }
  }

 private:
  Result<int> run_steps() {
    watch_.enter("saying who it is");
    const std::string node = value_of(environment_, "SLURMD_NODENAME");
    nodes_ = runtime::all_texts(world_.control, node.empty() ? world_.control.host() : node);
    watch_.enter("reading the plan and the site file");
    auto inputs = read_inputs(options_, environment_);
    SAILOR_CHECK(runtime::agree(world_.control, inputs));

    watch_.enter("looking at its node and GPU");
    if (!skip_.contains("load")) load_ = measure_load(world_.control);
    RankFacts facts =
        facts_of_this_rank(*inputs, environment_, *options_.spare_nodes, *options_.node_facts, world_.control);
    facts.busy_cores = load_;
    if (fabric_) add_fabric(*fabric_, facts);
    SAILOR_CHECK(open(facts));
    if (!options_.write_to.has()) facts.unknown.push_back({"writing", "no folder is named (--write-to DIR)"});
    measure(facts);
    watch_.enter("sending what it found out to rank 0");
    auto all = gather(world_.control, facts);
    SAILOR_CHECK(runtime::agree(world_.control, all));
    const preflight::Allocation allocation{
        .ranks = *all, .speed = speed_, .site = inputs->site, .gpus = inputs->gpus, .skip = skip_};
    // A rank that was slow by chance is not slow twice.
    const bool again = world_.control.max(world_.rank() == 0 && preflight::looks_slow(allocation) ? 1.0 : 0.0) > 0.0;
    if (again) {
      measure(facts);
      watch_.enter("sending what it measured to rank 0");
      all = gather(world_.control, facts);
      SAILOR_CHECK(runtime::agree(world_.control, all));
    }
    int status = 0;
    if (world_.rank() == 0)
      status = preflight::exit_status(print_verdict(options_, environment_, allocation, [&](const auto& verdict) {
        return fitted(preflight::report(verdict, allocation));
      }));
    return static_cast<int>(world_.control.max(status));
  }

  /// Collective: opens the device to be measured. If only some ranks have a GPU, it is the CPU, and facts of the other
  /// ranks say so.
  Result<void> open(RankFacts& facts) {
    constexpr Seconds longest_start{30.0};  // start of CUDA and NCCL
    watch_.enter("looking for a GPU to compute on", longest_start);
    const std::string wanted = *options_.device;
    bool on_gpus = wanted == "gpu";
    if (wanted == "auto") {
      // The GPU module is large: it is not loaded where it has no use.
      const auto usable = [&]() -> Result<void> {
        if (!facts.has_driver && value_of(environment_, "SAILOR_GPU_MODULE").empty())
          return fail(ErrorCode::unavailable, "there is no driver of NVIDIA's");
        SAILOR_CHECK(visible_gpus(environment_));
        return {};
      }();
      const double with_gpu = world_.control.sum(usable ? 1.0 : 0.0);
      on_gpus = with_gpu == world_.size();
      if (!usable && (with_gpu > 0.0 || facts.has_driver))
        facts.unknown.push_back({"speed", "of GPUs: no usable GPU: " + usable.error().what});
    }
    auto opened = open_device({.on_gpus = on_gpus, .precision = Precision::fp16, .timeout = Seconds(*options_.timeout)},
                              environment_, world_.control);
    if (!opened && on_gpus && wanted == "auto") {
      if (!runtime::is_reported_elsewhere(opened.error()))
        facts.unknown.push_back({"speed", "of GPUs: " + opened.error().what});
      opened = open_device({}, environment_, world_.control);
    }
    if (!opened) return fail(opened.error());  // agreed on
    opened_ = *std::move(opened);
    return {};
  }

  /// Measures, and keeps the best of all measurements in the facts.
  void measure(RankFacts& facts) {
    const Seconds budget(*options_.time_budget);
    const int threads = opened_.gpu ? 0 : runtime::cpu::compute_threads(environment_);
    runtime::Device& device = *opened_.device;
    const auto throttles = preflight::thermal_throttles(facts.cores);
    if (!skip_.contains("speed")) {
      watch_.enter("multiplying matrices", budget * 0.3);
      const preflight::RankSpeed speed = measure_rank(world_.control, device, threads, budget * 0.3);
      facts.speed = facts.speed ? better(*facts.speed, speed) : speed;
    }
    if (!skip_.contains("links")) {
      watch_.enter("exchanging messages with other ranks", budget);
      const Bytes message(static_cast<double>(*options_.message));
      const preflight::JobSpeed speed =
          measure_links(opened_.world(world_), device, opened_.gpu.has_value(), nodes_, message, budget * 0.7);
      speed_ = speed_.links.empty() ? speed : better(std::move(speed_), speed);
    }
    if (options_.write_to.has() && !skip_.contains("writing")) {
      const std::string folder = std::filesystem::absolute(*options_.write_to).lexically_normal().string();
      const Bytes amount(static_cast<double>(*options_.write_size));
      watch_.enter("writing to " + slurm::printable(folder), preflight::longest_writing(amount));
      const auto speed = measure_writing(world_.control, nodes_, folder, amount);
      facts.writing = facts.writing && speed ? better(*facts.writing, *speed) : speed;
    }
    if (const auto after = preflight::thermal_throttles(facts.cores); after && throttles)
      facts.throttles_while_measuring = facts.throttles_while_measuring.value_or(0) + *after - *throttles;
  }

  const CheckOptions& options_;
  const Environment& environment_;
  const Fabric& fabric_;
  runtime::World world_;
  runtime::RankWatch watch_;
  std::set<std::string, std::less<>> skip_;
  std::vector<std::string> nodes_;  // by rank
  std::optional<double> load_;
  RankDevice opened_;
  preflight::JobSpeed speed_;
};

Result<std::unique_ptr<MpiSession>> start_mpi(const CheckOptions& options, const Environment& environment) {
  const double timeout = *options.timeout;
  const std::string task = value_of(environment, "SLURM_PROCID");
  const runtime::Deadline deadline(Seconds(timeout),
                                   task.empty() || task == "0"
                                       ? fmt::format("sailor-check: error: MPI did not start within {:g} s: a "
                                                     "task did not get that far",
                                                     timeout)
                                       : "");
  // The rank watch must notice first.
  return MpiSession::start({.program = "sailor-check", .timeout = Seconds(1e6), .idle_waits = false}, environment);
}

/// sailor-check --nhc: one rank per GPU of this node; this process is all of them.
class NodeHealth {
 public:
  NodeHealth(const CheckOptions& options, const Environment& environment)
      : options_(options), environment_(environment) {}

  /// The exit status.
  Result<int> run() {
    for (const auto* option : OptionList{&options_.plan, &options_.spare_nodes, &options_.write_to})
      if (option->given())
        return fail(ErrorCode::usage, fmt::format("--nhc and --{} exclude each other", option->name()),
                    "start it without --nhc, with srun");
    const Fabric fabric = ask_fabric(options_, environment_);
    const auto inputs = read_inputs(options_, environment_);
    if (!inputs) return fail(inputs.error());
    // The control plane of one rank.
    const auto coordinator = runtime::Coordinator::start({.members = 1});
    if (!coordinator) return fail(coordinator.error());
    const auto member = runtime::Member::join((*coordinator)->addresses(), {.program = "sailor-check"});
    if (!member) return fail(member.error());
    SAILOR_CHECK((*member)->begin_epoch());
    runtime::Control& control = (*member)->world().control;

    std::set<std::string, std::less<>> skip{"plan",  "gpu-type", "gpu-visibility", "gpu-sharing",
                                            "cores", "numa",     "links",          "writing"};
    for (const std::string& name : *options_.skip) skip.insert(name);
    RankFacts facts = facts_of_this_rank(*inputs, environment_, false, *options_.node_facts, control);
    if (!skip.contains("load")) facts.busy_cores = measure_load(control);
    if (fabric) add_fabric(*fabric, facts);
    const std::vector<RankFacts> ranks = by_gpu(facts, skip.contains("speed") ? nullptr : &control);
    const preflight::JobSpeed no_links;
    const preflight::Allocation allocation{.ranks = ranks,
                                           .speed = no_links,
                                           .site = inputs->site,
                                           .gpus = inputs->gpus,
                                           .skip = skip,
                                           .least_gpus = least_gpus(facts)};
    const Outcome outcome = print_verdict(options_, environment_, allocation,
                                          [](const auto& verdict) { return preflight::one_line(verdict) + "\n"; });
    return preflight::exit_status(outcome == Outcome::fail ? outcome : Outcome::ok);
  }

 private:
  [[nodiscard]] std::int64_t least_gpus(const RankFacts& facts) const {
    if (options_.gpus_per_node.has()) return *options_.gpus_per_node;
    return std::max<std::int64_t>(facts.gpus_of_job.value_or(0), *options_.device == "gpu" ? 1 : 0);
  }

  /// One rank per GPU, or a single one without GPUs. `control` measures; null: nothing is measured.
  [[nodiscard]] std::vector<RankFacts> by_gpu(RankFacts facts, runtime::Control* control) const {
    if (facts.gpus.empty()) return {std::move(facts)};
    std::vector<std::string> numbers;
    for (std::size_t i = 0; i < facts.gpus.size(); ++i) numbers.push_back(fmt::to_string(i));
    facts.visible_gpus = join(numbers, ",");
    std::vector<RankFacts> ranks(facts.gpus.size(), facts);
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].rank = ranks[i].local_rank = static_cast<int>(i);
    if (control == nullptr || ranks.size() < 2) return ranks;  // a single GPU has no other to be compared with
    const auto visible = visible_gpus(environment_);
    if (!visible) {
      ranks.front().unknown.push_back({"speed", "of GPUs: no usable GPU: " + visible.error().what});
      return ranks;
    }
    const Seconds each = Seconds(*options_.time_budget) / static_cast<double>(ranks.size());
    for (std::size_t i = 0; i < visible->gpus.size(); ++i)
      for (RankFacts& rank : ranks) {
        const preflight::GpuFacts& gpu = rank.gpus[static_cast<std::size_t>(rank.local_rank)];
        if (gpu.bus_id != visible->gpus[i].bus_id) continue;
        if (gpu.processes.value_or(0) > 0)
          rank.unknown.push_back({"speed", "of GPUs that are in use"});
        else
          measure_gpu(*visible->backend, static_cast<int>(i), each, *control, rank);
      }
    return ranks;
  }
  static void measure_gpu(const runtime::GpuBackend& backend, int index, Seconds time, runtime::Control& control,
                          RankFacts& rank) {
    try {
      const auto device = backend.make_device({.index = index, .tf32 = false});
      rank.speed = measure_rank(control, *device, 0, time);
    } catch (const std::runtime_error& error) {
      rank.unknown.push_back({"speed", fmt::format("of a GPU: {}", error.what())});
    }
  }

  const CheckOptions& options_;
  const Environment& environment_;
};

Result<int> run(const CheckOptions& options, const Environment& environment) {
  if (options.node_facts.typed() && !environment.contains("SLURM_STEP_ID"))
    log_warning("--node-facts is read only in a job step of Slurm (srun)");
  if (*options.nhc) return NodeHealth(options, environment).run();
  if (options.gpus_per_node.given())
    return fail(ErrorCode::usage, "--gpus-per-node goes with --nhc only", "compare with a plan (--plan) instead");
  const Fabric fabric = ask_fabric(options, environment);
  auto session = start_mpi(options, environment);
  if (!session) {
    if (runtime::is_reported_elsewhere(session.error())) std::exit(exit_status(session.error().code));
    return fail(session.error());
  }
  const runtime::World world = (*session)->world();
  Result<int> status = 0;
  try {
    status = Check(options, environment, fabric, world).run();
  } catch (const std::exception& error) {
    world.control.abort(error.what());  // the others wait for this rank
  }
  if (status) {
    if (*status != 0) keep_status_when_terminated(*status);
    session->reset();
    return status;
  }
  leave_together("sailor-check", status.error(), *session);
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  sailor::apps::use_a_single_blas_thread(argv);
  return sailor::apps::run_program(argc, argv, sailor::apps::command(sailor::apps::command_line, sailor::apps::run));
}
