// sailor-train: runs a plan. One process per rank, started by srun or mpirun; a process trains on one CPU core.
//
// A mistake that all ranks see is printed once, by the lowest rank that sees it, and all ranks exit with its status.
// What only one rank can see in the middle of training (a dead neighbour, a bad token, no memory) ends the whole job
// with that rank's message.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "apps/options.hpp"
#include "apps/programs.hpp"
#include "apps/single_blas_thread.hpp"
#include "apps/stop_requests.hpp"
#include "apps/termination.hpp"
#include "apps/train/abilities.hpp"
#include "apps/train/checkpoints.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/launcher.hpp"
#include "apps/train/recording.hpp"
#include "apps/train/rehearse.hpp"
#include "apps/train/socket_world.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/stop_status.hpp"
#include "core/terminal.hpp"
#include "profile/run_file.hpp"
#include "runtime/mpi/mpi_session.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

namespace {

using runtime::MpiSession;
using runtime::Trainer;

constexpr std::int64_t run_file_interval = 20;  // iterations between two writes of the run file
constexpr std::int64_t statistics_warm_up = 2;  // first iterations connect ranks and touch memory for the first time

std::string command = "sailor-train";  // for provenance; set by main
int end_status = 0;                    // of a run without errors; the same on all ranks

CommandLine command_line() {
  CommandLine line{
      .program = "sailor-train",
      .purpose = purpose_of("sailor-train"),
      .positionals = {{.name = "PLAN", .help = "plan file (plan.toml)"}},
      .options = {{.name = "data",
                   .value_name = "PREFIX",
                   .help = "tokens to train on: PREFIX.bin and PREFIX.idx in Megatron-LM's format (see sailor-data)"},
                  {.name = "iterations",
                   .type = OptionType::integer,
                   .value_name = "N",
                   .help = "train for N iterations",
                   .default_value = "100",
                   .minimum = 1},
                  {.name = "learning-rate",
                   .type = OptionType::number,
                   .value_name = "RATE",
                   .help = "learning rate of AdamW after the warm-up",
                   .default_value = "0.0006",
                   .minimum = 0,
                   .maximum = 1e6},
                  {.name = "warm-up-iterations",
                   .type = OptionType::integer,
                   .value_name = "N",
                   .help = "let the learning rate rise linearly over the first N iterations",
                   .default_value = "0",
                   .minimum = 0},
                  {.name = "decay-iterations",
                   .type = OptionType::integer,
                   .value_name = "N",
                   .help = "let the learning rate fall as a cosine from the warm-up to iteration N; 0: never",
                   .default_value = "0",
                   .minimum = 0},
                  {.name = "min-learning-rate",
                   .type = OptionType::number,
                   .value_name = "RATE",
                   .help = "where it ends",
                   .default_value = "0",
                   .minimum = 0,
                   .maximum = 1e6},
                  {.name = "clip-norm",
                   .type = OptionType::number,
                   .value_name = "NORM",
                   .help = "scale gradients down when their norm, over all ranks, is larger; 0: never",
                   .default_value = "1",
                   .minimum = 0},
                  {.name = "loss-scale",
                   .type = OptionType::number,
                   .value_name = "FACTOR",
                   .help = "of plans in fp16: what the loss is multiplied by at first; halved when gradients overflow",
                   .default_value = "65536",
                   .minimum = 1,
                   .maximum = 16777216},
                  {.name = "loss-scale-window",
                   .type = OptionType::integer,
                   .value_name = "N",
                   .help = "iterations without overflow after which the loss scale is doubled",
                   .default_value = "1000",
                   .minimum = 1},
                  {.name = "weight-decay",
                   .type = OptionType::number,
                   .value_name = "RATE",
                   .help = "decoupled weight decay of AdamW, on matrices only",
                   .default_value = "0.1",
                   .minimum = 0,
                   .maximum = 1e6},
                  {.name = "seed",
                   .type = OptionType::integer,
                   .value_name = "N",
                   .help = "seed of the initial parameters and of the order of samples",
                   .default_value = "1",
                   .minimum = 0},
                  {.name = "run-file",
                   .value_name = "FILE",
                   .help = "keep times, losses and peak memory in this HDF5 file (for sailor-simulate --against)"},
                  {.name = "log-every",
                   .type = OptionType::integer,
                   .value_name = "N",
                   .help = "print every N-th iteration",
                   .default_value = "1",
                   .minimum = 1},
                  {.name = "timeout",
                   .type = OptionType::number,
                   .value_name = "SECONDS",
                   .help = "give up when another rank does not answer for so many seconds",
                   .default_value = "600",
                   .minimum = 0.001},
                  {.name = "transport",
                   .value_name = "TRANSPORT",
                   .help = "what moves tensors between CPUs: MPI, or TCP connections that MPI only helps to make; "
                           "between GPUs, NCCL",
                   .default_value = "mpi",
                   .choices = {"mpi", "sockets"}},
                  device_option(),
                  {.name = "deterministic",
                   .type = OptionType::flag,
                   .help =
                       "on GPUs: the same losses, bit for bit, in every run of a plan, with a slower attention; CPUs "
                       "always give them"},
                  shared::models_folder(),
                  shared::gpus_file()},
      .examples =
          {{"srun --mpi=pmix -n 2 sailor-train plan.toml --data corpus --iterations 100",
            "train for 100 iterations with the 2 ranks of a plan"},
           {"mpirun -n 2 sailor-train plan.toml --data corpus --iterations 20 --run-file run.h5",
            "keep what was measured"},
           {"mpirun -n 2 sailor-train plan.toml --data corpus --iterations 5 --metrics metrics.jsonl --trace "
            "trace.json",
            "a line of JSON per iteration, and the last one as a timeline"},
           {"mpirun --mca odls_base_sigkill_timeout 30 -n 2 sailor-train plan.toml --data corpus --iterations 20 "
            "--checkpoints checkpoints",
            "keep checkpoints, also when Ctrl-C ends it, and go on from the newest one"},
           {"sailor-simulate plan.toml --profile store --against run.h5", "compare it with the prediction"},
           {"mpirun -n 2 sailor-train --rehearse plan.toml --profile store",
            "run the plan without its devices or data: does it end, how long does it take, does it fit"}},
      .exit_statuses = {{0, "all iterations are done"},
                        {1, "failure"},
                        {2, "wrong usage"},
                        {3, "with --rehearse: the plan does not fit into memory"},
                        {6, "a signal stopped training, and no checkpoint was written"},
                        {69, "MPI crashed before training began"},
                        {75, "a signal stopped training; the same command goes on from the checkpoint"}},
      .notes =
          "Ctrl-C, SIGTERM and SIGUSR2 end training after the running iteration (Slurm: --signal=USR2@60): with\n"
          "--checkpoints a checkpoint is written and the exit status is 75: start the same command again, or requeue "
          "the\n"
          "job, to go on. Without, it is 6, and the progress is lost. Another Ctrl-C or SIGTERM more than 5 s later\n"
          "ends it at once. Open MPI's mpirun tells its ranks of Ctrl-C after odls_base_sigkill_timeout seconds, and\n"
          "kills them after as many again: more than an iteration and a checkpoint take. It then ends with status 1,\n"
          "and after any failure only when that time is over. kill -USR2 of mpirun tells them at once, kills nobody\n"
          "and leaves the status. sailor-train prints a line per iteration: its loss\n"
          "(mean cross-entropy per token, natural logarithm), its time (slowest rank) and the tokens per second of "
          "all\n"
          "ranks together.\n"
          "--version --format json says what this build can run: devices, precisions, schedules.",
      .one_per_rank = true,
      .abilities = train_abilities};
  const auto place = std::find_if(line.options.begin(), line.options.end(),
                                  [](const Option& option) { return option.name == "log-every"; });
  std::vector<Option> more = checkpoint_options();
  const std::vector<Option> recording = recording_options();
  more.insert(more.end(), recording.begin(), recording.end());
  line.options.insert(place, more.begin(), more.end());
  const std::vector<Option> rehearsal = rehearsal_options();
  line.options.insert(line.options.end(), rehearsal.begin(), rehearsal.end());
  return line;
}

/// What rank 0 keeps about the run. Collective where it says so.
class RunFile {
 public:
  RunFile(const Options& options, const Plan& plan, const runtime::Device& device, const std::string& transport)
      : path_(options.text("run-file")) {
    run_.provenance = {
        .tool = fmt::format("sailor-train {}", version()),
        .command = command,
        .device = device.name(),
        .versions = fmt::format("{}, {}", device.versions(), transport),
        .date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                            fmt::gmtime(std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now())))};
    run_.plan_toml = plan_to_toml(plan);
  }

  /// Before anything is computed: can it be written, and does it replace none of the run's inputs?
  [[nodiscard]] Result<void> check(const std::vector<std::string>& inputs) const {
    if (path_.empty()) return {};
    if (auto good = check_can_write(path_); !good) return fail(good.error(), "--run-file");
    std::error_code code;
    for (const std::string& input : inputs)
      if (std::filesystem::equivalent(path_, input, code))
        return fail(ErrorCode::usage, fmt::format("--run-file '{}' is an input of this run", path_),
                    "name another file");
    return {};
  }

  [[nodiscard]] bool is_wanted() const { return !path_.empty(); }
  void forget() { path_.clear(); }

  void add(std::int64_t iteration, const runtime::IterationResult& result,
           const std::optional<runtime::IterationSummary>& summary) {
    run_.iterations.push_back({.iteration = iteration, .loss = result.loss, .time = result.time});
    if (summary) run_.parts.push_back(parts_record(iteration, *summary));
  }

  /// Collective; rank 0 writes.
  [[nodiscard]] Result<void> write(Trainer& trainer) {
    run_.ranks.clear();
    for (const runtime::RankUse& use : trainer.rank_uses())
      run_.ranks.push_back({.rank = use.role.rank,
                            .pipeline = use.role.pipeline,
                            .stage = use.role.stage,
                            .tensor_parallel_index = use.role.tensor_parallel_index,
                            .host = use.host,
                            .peak_tensor_memory = use.peak_tensor_memory,
                            .peak_resident_memory = use.peak_resident_memory});
    run_.warm_up_iterations =
        static_cast<int>(std::min(statistics_warm_up, static_cast<std::int64_t>(run_.iterations.size()) - 1));
    if (trainer.role().rank != 0 || path_.empty()) return {};
    std::set<std::string> hosts;
    for (const RankRecord& rank : run_.ranks) hosts.insert(rank.host);
    run_.provenance.host.clear();
    for (const std::string& host : hosts) run_.provenance.host += (run_.provenance.host.empty() ? "" : ",") + host;
    return save_run(run_, path_);
  }

  [[nodiscard]] const RunRecord& record() const { return run_; }

 private:
  std::string path_;
  RunRecord run_;
};

/// `communicators`: that the rank with most of them is in.
void print_header(const Plan& plan, const Options& options, const std::string& devices, std::int64_t communicators) {
  fmt::print("# {}: {} in {}, {}; {}, {} x {} tokens per iteration; up to {} per rank\n",
             options.positional("PLAN").front(), plan.job.model, to_string(plan.job.precision), describe(plan),
             plural(static_cast<std::size_t>(plan.ranks()), "rank"), plan.job.global_batch, plan.job.sequence_length,
             plural(static_cast<std::size_t>(communicators), "communicator"));
  fmt::print("# on {}\n", devices);
  if (communicators > options.integer("max-communicators"))
    spdlog::warn("a rank is in {} communicators, more than {} (--max-communicators)", communicators,
                 options.integer("max-communicators"));
  fmt::print("# {:>9} {:>10} {:>10} {:>10}\n", "iteration", "loss", "time_ms", "tokens/s");
}

void print_summary(const RunRecord& run) {
  const TimeStatistics time = run.iteration_time();
  Bytes tensors;
  for (const RankRecord& rank : run.ranks) tensors = std::max(tensors, rank.peak_tensor_memory);
  fmt::print("# iteration time: median {}, p10 {}, p90 {} over {} after {} of warm-up\n", format_time(time.median),
             format_time(time.p10), format_time(time.p90), plural(static_cast<std::size_t>(time.samples), "iteration"),
             run.warm_up_iterations);
  fmt::print("# peak memory of a rank: {} in tensors, {} resident\n", format_bytes(tensors),
             format_bytes(run.peak_resident_memory()));
}

std::string describe_divergence(std::int64_t iteration, const runtime::IterationResult& result, bool in_fp16) {
  if (!std::isfinite(result.loss)) return fmt::format("the loss of iteration {} is {}", iteration, result.loss);
  return fmt::format("the gradient norm of iteration {} is {} (its loss is {:.6g}){}; the weights were not changed",
                     iteration, result.gradient_norm, result.loss,
                     in_fp16 ? ", and the loss scale cannot become smaller" : "");
}

void warn_of_learning_rate(const runtime::LearningRate& schedule) {
  if (schedule.decay_iterations <= 0) return;
  if (schedule.least > schedule.peak)
    spdlog::warn("--min-learning-rate {:g} is over --learning-rate {:g}: it rises where it should fall", schedule.least,
                 schedule.peak);
  if (schedule.decay_iterations <= schedule.warm_up_iterations)
    spdlog::warn("--decay-iterations {} ends with the warm-up ({}): the learning rate falls at once",
                 schedule.decay_iterations, schedule.warm_up_iterations);
}

/// A sample that is seen again teaches less.
void warn_of_little_data(const Plan& plan, const runtime::Samples& samples, const Options& options) {
  const std::int64_t iterations = options.integer("iterations");
  const double times = static_cast<double>(iterations) * plan.job.global_batch / static_cast<double>(samples.size());
  if (times <= 1.0) return;
  spdlog::warn("--data {} has {} samples of {} tokens: {} iterations of {} see each of them {:.1f} times",
               options.text("data"), samples.size(), plan.job.sequence_length, iterations, plan.job.global_batch,
               times);
}

/// The rank's main loop. Errors are agreed on: the same on all ranks, with a message on one of them.
Result<void> train(const Options& options, const Environment& environment, const runtime::World& started) {
  const bool speaks = started.rank() == 0;
  if (options.flag("rehearse")) return rehearse(options, environment, started);
  if (options.text("data").empty())
    return agree(started.control, fail(ErrorCode::usage, "--data is missing", "make a token file with sailor-data"));

  // Every rank reads the plan, the model and the data itself, so that each finds out what it cannot read.
  Plan plan;
  Model model;
  GpuCatalogue catalogue;
  DeviceChoice choice;
  const auto read_inputs = [&]() -> Result<void> {
    auto read_plan = load_plan(options.positional("PLAN").front());
    if (!read_plan) return fail(read_plan.error());
    plan = std::move(*read_plan);
    if (const auto placed = environment.find("SAILOR_PLAN_FINGERPRINT");
        placed != environment.end() && environment.contains("SAILOR_RANK") && placed->second != plan_fingerprint(plan))
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}: the ranks have been placed for another plan", options.positional("PLAN").front()),
                  "give sailor-launch (or --sailor-plan) the same plan");
    auto found = find_model(plan.job.model, models_folder(options, environment));
    if (!found) return fail(found.error(), options.positional("PLAN").front());
    model = std::move(*found);
    if (auto checked = runtime::check_trainable(plan, model, started.size()); !checked)
      return fail(checked.error(), options.positional("PLAN").front());
    auto gpus = GpuCatalogue::load(gpus_file(options, environment));
    if (!gpus) return fail(gpus.error());
    catalogue = std::move(*gpus);
    auto chosen = choose_devices(options, plan, catalogue);
    if (!chosen) return fail(chosen.error(), options.positional("PLAN").front());
    choice = *chosen;
    return {};
  };
  SAILOR_CHECK(agree(started.control, read_inputs()));
  const auto seed = static_cast<std::uint64_t>(options.integer("seed"));
  auto samples = runtime::Samples::open(options.text("data"), plan.job.sequence_length, model.vocabulary, seed);
  SAILOR_CHECK(agree(started.control, samples ? Result<void>() : fail(samples.error())));

  if (speaks) warn_of_little_data(plan, *samples, options);
  const auto opened = open_device({.on_gpus = choice.on_gpus,
                                   .precision = plan.job.precision,
                                   .deterministic = options.flag("deterministic"),
                                   .timeout = Seconds(options.number("timeout"))},
                                  environment, started.control);
  if (!opened) return fail(opened.error());  // agreed on
  runtime::Device& device = *opened->device;
  const runtime::World world = opened->world(started);
  if (choice.on_gpus && choice.is_the_plans) warn_of_other_gpus(*opened, plan, catalogue, world.control);
  const std::string devices =
      fmt::format("{}, as {} says", describe(*opened, world.control), choice.is_the_plans ? "the plan" : "--device");
  RunFile run_file(options, plan, device, world.transport.name());
  if (!choice.is_the_plans && run_file.is_wanted()) {
    if (speaks) spdlog::warn("no run file is written: these times are not those of the plan's devices");
    run_file.forget();
  }
  const std::string& prefix = options.text("data");
  const std::vector<std::string> inputs{options.positional("PLAN").front(), prefix + ".bin", prefix + ".idx"};
  SAILOR_CHECK(agree(world.control, speaks ? run_file.check(inputs) : Result<void>()));
  Recording recording(options, plan, model, catalogue);
  SAILOR_CHECK(agree(world.control, speaks ? recording.open(inputs) : Result<void>()));

  const runtime::TrainerSettings settings{
      .seed = seed,
      .optimizer = {.weight_decay = static_cast<float>(options.number("weight-decay"))},
      .learning_rate = {.peak = static_cast<float>(options.number("learning-rate")),
                        .least = static_cast<float>(options.number("min-learning-rate")),
                        .warm_up_iterations = options.integer("warm-up-iterations"),
                        .decay_iterations = options.integer("decay-iterations")},
      .clip_norm = options.number("clip-norm"),
      .loss_scale = {.initial = options.number("loss-scale"), .window = options.integer("loss-scale-window")}};
  if (speaks) warn_of_learning_rate(settings.learning_rate);
  runtime::TrainingState state(plan, model, world.rank(), device);
  state.initialize(settings);
  Trainer trainer(state, settings, world, &*samples);
  Checkpoints checkpoints(options, environment, world.control, trainer);
  SAILOR_CHECK(checkpoints.resume());
  if (speaks && checkpoints.are_kept())
    if (const std::string warning = warning_of_kill(time_before_kill(environment, parameter_files(environment)));
        !warning.empty())
      spdlog::warn("{}", warning);
  // Besides the one of all ranks.
  const auto communicators =
      static_cast<std::int64_t>(world.control.max(static_cast<double>(trainer.communicators()))) + 1;
  if (speaks) print_header(plan, options, devices, communicators);

  const double tokens = static_cast<double>(plan.job.global_batch) * plan.job.sequence_length;
  const std::int64_t iterations = options.integer("iterations");
  bool stopped = false;
  bool diverged = false;
  std::string why;  // it diverged
  std::int64_t iteration = state.iteration();
  if (iteration >= iterations) {
    if (speaks) spdlog::info("nothing to do: {} of {} iterations are done", iteration, iterations);
    return {};
  }
  for (; iteration < iterations && !stopped && !diverged; ++iteration) {
    recording.before(iteration, trainer);
    const runtime::IterationResult result = trainer.run(stop_request() != 0 || checkpoints.are_taken_over());
    stopped = result.stop;
    diverged = result.diverged;
    if (diverged) why = describe_divergence(iteration, result, plan.job.precision == Precision::fp16);
    if (!result.updated && !diverged && speaks)
      spdlog::info("iteration {}: gradients overflow in fp16; the step is skipped, the loss scale is now {:.0f}",
                   iteration, state.loss_scale().factor);
    run_file.add(iteration, result, recording.after(iteration, result, trainer, run_file.is_wanted()));
    if (speaks &&
        (iteration % options.integer("log-every") == 0 || iteration + 1 == iterations || stopped || diverged)) {
      fmt::print("{:>11} {:>10.5f} {:>10.1f} {:>10.0f}\n", iteration, result.loss, result.time.value() * 1e3,
                 tokens / result.time.value());
      std::fflush(stdout);
    }
    if (!diverged && !stopped && iteration + 1 < iterations) SAILOR_CHECK(checkpoints.after(iteration));
    if (stopped && speaks && !checkpoints.are_taken_over())
      spdlog::info("stopped after iteration {} on a signal ({} of {} iterations done){}", iteration, iteration + 1,
                   iterations,
                   checkpoints.are_kept()        ? "; a checkpoint is written now"
                   : iteration + 1 == iterations ? ""
                                                 : "; without --checkpoints what was learned is lost");
    if ((iteration + 1) % run_file_interval == 0 && iteration + 1 < iterations && !stopped && !diverged)
      if (const auto written = run_file.write(trainer); !written)  // training goes on; the last write counts
        spdlog::warn("{}", written.error().message());
  }
  // Weights that are no numbers would only take the place of good ones; one that was begun before is good.
  if (diverged)
    checkpoints.complete();
  else
    SAILOR_CHECK(checkpoints.finish(iteration));
  if (stopped && speaks && !diverged && checkpoints.are_kept())
    spdlog::info("the checkpoint of iteration {} is in {}{}", iteration, options.text("checkpoints"),
                 iteration < iterations ? ": the same command goes on from there" : "");
  // Twice in a short run: HDF5 stays in memory from its first file on, and the recorded peaks hold what is there
  // before.
  if (run_file.record().iterations.size() < static_cast<std::size_t>(run_file_interval))
    SAILOR_CHECK(agree(world.control, run_file.write(trainer)));
  SAILOR_CHECK(agree(world.control, run_file.write(trainer)));
  SAILOR_CHECK(agree(world.control, recording.finish(trainer)));
  if (speaks) print_summary(run_file.record());
  if (stopped && iteration < iterations)
    end_status = checkpoints.are_kept() ? stopped_with_checkpoint : stopped_without_checkpoint;
  if (!diverged) return {};
  return agree(world.control, fail(ErrorCode::failure, "training diverged: " + why,
                                   "use a smaller --learning-rate, or --warm-up-iterations"));
}

Result<void> run(const Options& options, const Environment& environment) {
  // A rehearsal has nothing to save.
  if (!options.flag("rehearse")) catch_stop_requests("sailor-train", {SIGINT, SIGTERM, SIGUSR2});
  auto session = MpiSession::start({.program = "sailor-train",
                                    .timeout = Seconds(options.number("timeout")),
                                    .idle_waits = options.flag("rehearse")},
                                   environment);
  if (!session) {
    if (runtime::is_reported_elsewhere(session.error())) std::exit(exit_status(session.error().code));
    return fail(session.error());
  }
  runtime::World world = (*session)->world();
  std::unique_ptr<SocketWorld> sockets;
  Result<void> done;
  if (options.text("transport") == "sockets" && options.flag("rehearse"))
    done = agree(world.control, fail(ErrorCode::usage, "--transport sockets says nothing of a rehearsal",
                                     "leave it out: links are simulated"));
  try {
    if (done && options.text("transport") == "sockets") {
      auto joined = SocketWorld::join(world, "sailor-train", Seconds(options.number("timeout")));
      if (joined) sockets = *std::move(joined);
      if (!joined) done = fail(joined.error());
    }
    if (done && sockets != nullptr) {
      // All ranks are here and stay until all are done.
      done = train(options, environment, sockets->world());
      sockets->world().control.barrier();
    } else if (done) {
      done = train(options, environment, world);
    }
  } catch (const std::exception& error) {
    // The others wait for this rank.
    if (sockets != nullptr) sockets->world().control.abort(error.what());
    world.control.abort(error.what());
  }
  sockets.reset();
  if (!done) leave_together("sailor-train", done.error(), *session);
  session->reset();
  if (end_status != 0) std::exit(end_status);
  return done;
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  namespace apps = sailor::apps;
  apps::use_a_single_blas_thread(argv);
  for (int i = 1; i < argc; ++i) apps::command += std::string(" ") + argv[i];
  return apps::run_program(argc, argv, apps::command_line(), apps::run);
}
