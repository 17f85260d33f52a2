// sailor-train: runs a plan. One process per rank, started by srun or mpirun; a process trains on one GPU, or on
// the CPU cores that it is bound to.
//
// An error that all ranks see is printed once, by the lowest rank that sees it, and all ranks exit with its status. An
// error in the middle of training that only one rank sees (a dead neighbour, a bad token, no memory) ends the whole job
// with that rank's message.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "apps/options.hpp"
#include "apps/programs.hpp"
#include "apps/single_blas_thread.hpp"
#include "apps/stop_requests.hpp"
#include "apps/termination.hpp"
#include "apps/train/abilities.hpp"
#include "apps/train/checkpoints.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/elastic.hpp"
#include "apps/train/launcher.hpp"
#include "apps/train/recording.hpp"
#include "apps/train/rehearse.hpp"
#include "apps/train/socket_world.hpp"
#include "apps/train/training.hpp"
#include "core/log.hpp"
#include "runtime/mpi/mpi_session.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

namespace {

using runtime::MpiSession;
using runtime::Trainer;

std::string typed_command = "sailor-train";  // for provenance; set by main
int end_status = 0;                          // exit status of a run without errors; the same on all ranks

CommandLine command_line(TrainOptions& options) {
  CommandLine line{
      .program = "sailor-train",
      .purpose = purpose_of("sailor-train"),
      .positionals = {positional(options.plan, {.name = "PLAN", .help = "plan file (plan.toml)"})},
      .options =
          {option(options.data,
                  {.name = "data",
                   .value_name = "PREFIX",
                   .help = "tokens to train on: PREFIX.bin and PREFIX.idx in Megatron-LM's format (see sailor-data)"}),
           option(options.iterations, {.name = "iterations",
                                       .value_name = "N",
                                       .help = "train for N iterations",
                                       .default_value = "100",
                                       .minimum = 1}),
           option(options.learning_rate, {.name = "learning-rate",
                                          .value_name = "RATE",
                                          .help = "learning rate of AdamW after the warm-up",
                                          .default_value = "0.0006",
                                          .minimum = 0,
                                          .maximum = 1e6}),
           option(options.warm_up_iterations,
                  {.name = "warm-up-iterations",
                   .value_name = "N",
                   .help = "let the learning rate rise linearly over the first N iterations",
                   .default_value = "0",
                   .minimum = 0}),
           option(options.decay_iterations,
                  {.name = "decay-iterations",
                   .value_name = "N",
                   .help = "let the learning rate fall as a cosine from the warm-up to iteration N; 0: never",
                   .default_value = "0",
                   .minimum = 0}),
           option(options.min_learning_rate, {.name = "min-learning-rate",
                                              .value_name = "RATE",
                                              .help = "learning rate at the end of the decay",
                                              .default_value = "0",
                                              .minimum = 0,
                                              .maximum = 1e6}),
           option(options.clip_norm,
                  {.name = "clip-norm",
                   .value_name = "NORM",
                   .help = "scale gradients down when their norm, over all ranks, is larger; 0: never",
                   .default_value = "1",
                   .minimum = 0}),
           option(
               options.router_aux_loss,
               {.name = "router-aux-loss",
                .value_name = "COEFFICIENT",
                .help =
                    "of models with experts: add this times the load-balancing loss of their routers (of each "
                    "sequence, as DeepSeek-V3) to the loss that is trained, not to the one that is shown; at most 1000",
                .default_value = "0",
                .minimum = 0,
                .maximum = 1000}),
           option(options.loss_scale,
                  {.name = "loss-scale",
                   .value_name = "FACTOR",
                   .help = "of plans in fp16: what the loss is multiplied by at first; halved when gradients overflow",
                   .default_value = "65536",
                   .minimum = 1,
                   .maximum = 16777216}),
           option(options.loss_scale_window,
                  {.name = "loss-scale-window",
                   .value_name = "N",
                   .help = "iterations without overflow after which the loss scale is doubled",
                   .default_value = "1000",
                   .minimum = 1}),
           option(options.weight_decay, {.name = "weight-decay",
                                         .value_name = "RATE",
                                         .help = "decoupled weight decay of AdamW, on matrices only",
                                         .default_value = "0.1",
                                         .minimum = 0,
                                         .maximum = 1e6}),
           option(options.seed, {.name = "seed",
                                 .value_name = "N",
                                 .help = "seed of the initial parameters and of the order of samples",
                                 .default_value = "1",
                                 .minimum = 0}),
           option(options.run_file,
                  {.name = "run-file",
                   .value_name = "FILE",
                   .help = "keep times, losses and peak memory in this HDF5 file (for sailor-simulate --against)"}),
           option(options.log_every, {.name = "log-every",
                                      .value_name = "N",
                                      .help = "print every N-th iteration",
                                      .default_value = "1",
                                      .minimum = 1}),
           option(options.timeout, {.name = "timeout",
                                    .value_name = "SECONDS",
                                    .help = "give up when another rank does not answer for so many seconds",
                                    .default_value = "600",
                                    .minimum = 0.001}),
           option(options.transport, {.name = "transport",
                                      .value_name = "TRANSPORT",
                                      .help = "what moves tensors between CPUs: MPI, or TCP connections that MPI only "
                                              "helps to make; between GPUs, NCCL",
                                      .default_value = "mpi",
                                      .choices = {"mpi", "sockets"}}),
           option(options.device, device_option()),
           option(options.deterministic, {.name = "deterministic",
                                          .help = "on GPUs: the same losses, bit for bit, in every run of a plan, with "
                                                  "a slower attention; CPUs always give them"}),
           option(options.models, shared::models_folder()),
           option(options.gpus, shared::gpus_file())},
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
  std::vector<Option> more = checkpoint_options(options);
  const std::vector<Option> recording = recording_options(options);
  more.insert(more.end(), recording.begin(), recording.end());
  line.options.insert(place, more.begin(), more.end());
  const std::vector<Option> rehearsal = rehearsal_options(options);
  line.options.insert(line.options.end(), rehearsal.begin(), rehearsal.end());
  const std::vector<Option> elastic = elastic_options(options);
  line.options.insert(line.options.end(), elastic.begin(), elastic.end());
  return line;
}

/// The rank's main loop. Errors are agreed on: the same on all ranks, with a message on one of them.
Result<void> train(const TrainOptions& options, const Environment& environment, const runtime::World& started) {
  const bool speaks = started.rank() == 0;
  if (*options.rehearse) return rehearse(options, environment, started);
  if (options.data->empty())
    return agree(started.control, fail(ErrorCode::usage, "--data is missing", "make a token file with sailor-data"));
  const auto inputs = read_training_inputs(options, environment, started.size());
  SAILOR_CHECK(agree(started.control, inputs));
  const auto& [plan, model, catalogue, choice] = *inputs;
  const runtime::TrainerSettings settings = trainer_settings(options);
  auto samples = runtime::Samples::open(*options.data, plan.job.sequence_length, model.vocabulary, settings.seed);
  SAILOR_CHECK(agree(started.control, samples));
  if (speaks) warn_of_training_options(options, plan, model, *samples, settings);

  const auto opened = open_device({.on_gpus = choice.on_gpus,
                                   .precision = plan.job.precision,
                                   .deterministic = *options.deterministic,
                                   .timeout = Seconds(*options.timeout)},
                                  environment, started.control);
  if (!opened) return fail(opened.error());  // agreed on
  runtime::Device& device = *opened->device;
  const runtime::World world = opened->world(started);
  if (choice.on_gpus && choice.is_the_plans) warn_of_other_gpus(*opened, plan, catalogue, world.control);
  const std::string devices =
      fmt::format("{}, as {} says", describe(*opened, world.control), choice.is_the_plans ? "the plan" : "--device");
  RunFile run_file(options, typed_command, plan, device, world.transport.name());
  if (!choice.is_the_plans && run_file.is_wanted()) {
    if (speaks) log_warning("no run file is written: these times are not those of the plan's devices");
    run_file.forget();
  }
  SAILOR_CHECK(agree(world.control, speaks ? run_file.check(files_of_run(options)) : Result<void>()));
  Recording recording(options, plan, model, catalogue);
  SAILOR_CHECK(agree(world.control, speaks ? recording.open(files_of_run(options)) : Result<void>()));

  runtime::TrainingState state(plan, model, world.rank(), device);
  state.initialize(settings);
  Trainer trainer(state, settings, world, &*samples);
  Checkpoints checkpoints(options, environment, world.control, trainer);
  SAILOR_CHECK(checkpoints.resume());
  if (speaks && checkpoints.are_kept())
    if (const std::string warning = warning_of_kill(time_before_kill(environment, parameter_files(environment)));
        !warning.empty())
      log_warning("{}", warning);
  print_training_header(options, plan, devices, trainer, world.control);
  if (state.iteration() >= *options.iterations) {
    if (speaks) log_info("nothing to do: {} of {} iterations are done", state.iteration(), *options.iterations);
    return {};
  }
  const TrainingRun run{.options = options,
                        .control = world.control,
                        .trainer = trainer,
                        .checkpoints = checkpoints,
                        .recording = recording,
                        .run_file = run_file};
  const auto end = run_iterations(run);
  if (!end) return fail(end.error());
  const auto status = finish_training(run, *end);
  if (!status) return fail(status.error());
  end_status = *status;
  return {};
}

Result<void> run(const TrainOptions& options, const Environment& environment) {
  if (options.elastic.has()) {
    catch_stop_requests("sailor-train", {SIGINT, SIGTERM, SIGUSR2});
    const auto status = train_elastically(options, environment, typed_command);
    if (!status && runtime::is_reported_elsewhere(status.error())) std::exit(exit_status(status.error().code));
    if (!status) return fail(status.error());
    if (*status != 0) std::exit(*status);
    return {};
  }
  // A rehearsal has nothing to save.
  if (!*options.rehearse) catch_stop_requests("sailor-train", {SIGINT, SIGTERM, SIGUSR2});
  auto session = MpiSession::start(
      {.program = "sailor-train", .timeout = Seconds(*options.timeout), .idle_waits = *options.rehearse}, environment);
  if (!session) {
    if (runtime::is_reported_elsewhere(session.error())) std::exit(exit_status(session.error().code));
    return fail(session.error());
  }
  runtime::World world = (*session)->world();
  std::unique_ptr<SocketWorld> sockets;
  Result<void> done;
  if (*options.transport == "sockets" && *options.rehearse)
    done = agree(world.control, fail(ErrorCode::usage, "--transport sockets says nothing of a rehearsal",
                                     "leave it out: links are simulated"));
  try {
    if (done && *options.transport == "sockets") {
      auto joined = SocketWorld::join(world, "sailor-train", Seconds(*options.timeout));
      if (joined)
        sockets = *std::move(joined);
      else
        done = fail(joined.error());
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
  for (int i = 1; i < argc; ++i) apps::typed_command += std::string(" ") + argv[i];
  return apps::run_program(argc, argv, apps::command(apps::command_line, apps::run));
}
