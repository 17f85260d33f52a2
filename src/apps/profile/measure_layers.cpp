// sailor-profile layers.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "apps/profile/commands.hpp"
#include "apps/profile/measuring.hpp"
#include "apps/profile/next_commands.hpp"
#include "apps/stop_requests.hpp"
#include "core/log.hpp"
#include "core/shell.hpp"
#include "core/terminal.hpp"

#ifdef SAILOR_HAVE_MPI
#include "profiler/layer_profiler.hpp"
#include "runtime/mpi/mpi_session.hpp"
#endif

namespace sailor::apps {

namespace {

struct LayersOptions : MeasuringOptions {
  OptionValue<std::string> model, models, precision;
  OptionValue<std::vector<int>> micro_batches, tensor_parallel, busy_ranks;
  OptionValue<std::vector<std::string>> layers, recompute;
  OptionValue<int> sequence_length, blocks;
  OptionValue<double> interval, memory_limit;
  OptionValue<bool> no_cold;
};

CommandLine layers_command_line(LayersOptions& options) {
  return {
      .program = "sailor-profile layers",
      .purpose = "measures the layers of a model on all ranks at once and adds them to a profile store",
      .positionals = {},
      .options =
          {option(options.model, shared::model()),
           option(options.micro_batches,
                  {.name = "micro-batches",
                   .value_name = "N",
                   .help = "micro-batch sizes to measure, sequences; those that do not fit are recorded as such",
                   .default_value = "1,2,4",
                   .minimum = 1,
                   .maximum = 1 << 20}),
           option(options.sequence_length,
                  {.name = "sequence-length",
                   .value_name = "N",
                   .help = "length of a sequence, tokens [default: the longest that the model allows]",
                   .minimum = 1,
                   .maximum = 1 << 24}),
           option(options.layers, {.name = "layers",
                                   .value_name = "KIND",
                                   .help = "kinds of layers to measure [default: all that the model has]",
                                   .choices = {"embedding", "block", "final_norm", "head"}}),
           option(options.blocks, {.name = "blocks",
                                   .value_name = "N",
                                   .help = "different blocks in a row, at most; one stands for all [default: 4 on "
                                           "CPUs; on GPUs as many as fit into memory, up to 16]",
                                   .minimum = 1,
                                   .maximum = 1 << 20}),
           option(options.tensor_parallel,
                  {.name = "tensor-parallel",
                   .value_name = "N",
                   .help = "ranks of a host that share a layer: neighbours, of one GPU type; one measurement each",
                   .default_value = "1",
                   .minimum = 1,
                   .maximum = 1 << 20}),
           option(options.recompute, {.name = "recompute",
                                      .value_name = "WHAT",
                                      .help = "what the backward pass of a block computes again; one measurement each",
                                      .default_value = "none",
                                      .choices = {"none", "selective", "full"}}),
           option(options.precision,
                  {.name = "precision",
                   .value_name = "NAME",
                   .help =
                       "number format of weights and activations; bf16 and fp16 with fp32 master weights, tf32 on GPUs",
                   .default_value = "fp32",
                   .choices = {"fp32", "tf32", "bf16", "fp16"}}),
           option(options.gpu, gpu_option()),
           option(options.store, store_option()),
           option(options.interval,
                  {.name = "interval",
                   .value_name = "PERCENT",
                   .help = "measure until each median is known to within this much, with 95% confidence",
                   .default_value = "5",
                   .minimum = 0}),
           option(options.time_budget, {.name = "time-budget",
                                        .value_name = "SECONDS",
                                        .help = "seconds for all measurements together: no batch begins that would "
                                                "end later; each measurement has at least 3 batches",
                                        .default_value = "60",
                                        .minimum = 0}),
           option(options.samples, {.name = "samples",
                                    .value_name = "N",
                                    .help = "rounds of a batch that count, at most; each batch has new memory",
                                    .default_value = "8",
                                    .minimum = 2,
                                    .maximum = 1e6}),
           option(options.warm_up, {.name = "warm-up",
                                    .value_name = "N",
                                    .help = "rounds of a batch before them that do not count",
                                    .default_value = "2",
                                    .minimum = 0,
                                    .maximum = 1e6}),
           option(options.no_cold,
                  {.name = "no-cold",
                   .help = "skip the passes with cold caches; rows that have such times lose them when replaced"}),
           option(options.busy_ranks, {.name = "busy-ranks",
                                       .value_name = "N",
                                       .help = "ranks that compute on a host at the same time, the others sleep; one "
                                               "measurement each [default: all]",
                                       .minimum = 1,
                                       .maximum = 1 << 20}),
           option(options.memory_limit,
                  {.name = "memory-limit",
                   .value_name = "BYTES",
                   .help = "memory of a rank for tensors [default: its share of what the host has available]",
                   .minimum = 1}),
           option(options.timeout, timeout_option()),
           option(options.models, shared::models_folder()),
           option(options.gpus, shared::gpus_file())},
      .examples = {{"srun --mpi=pmix -n 4 sailor-profile layers --model tiny-gpt --store store",
                    "measure a model with 4 ranks busy"},
                   {"mpirun -n 2 sailor-profile layers --model tiny-gpt --micro-batches 1,8 --busy-ranks 1,2",
                    "chosen sizes, alone and beside another rank, without Slurm"},
                   {"mpirun -n 2 sailor-profile layers --model tiny-gpt --micro-batches 1 --tensor-parallel 1,2 "
                    "--recompute none,full",
                    "for plans that divide layers between two ranks, or compute blocks again"},
                   {"sailor-profile layers --model my-model.toml --layers block --blocks 1 --time-budget 30",
                    "one rank, one block of a model of your own, half a minute"}},
      .notes =
          "Measure with as many ranks busy on a node as the plan will run there: they share caches and memory.\n"
          "Times are of one layer and one micro-batch; update is AdamW over the layer's parameters and setting\n"
          "its gradients to zero. Warm: the caches hold what the layers before left there, as in training;\n"
          "cold: nothing. Times of a tensor-parallel group include its all-reduces; numbers of busy ranks that "
          "groups\n"
          "of a degree do not fill are left out. Ctrl-C and SIGTERM stop it, and nothing is stored.",
      .one_per_rank = true};
}

#ifdef SAILOR_HAVE_MPI

std::vector<Recompute> recomputes_of(const std::vector<std::string>& names) {
  std::vector<Recompute> recomputes;
  for (const std::string& name : names)
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      if (name == to_string(recompute)) recomputes.push_back(recompute);
  return recomputes;
}

profiler::LayerSettings settings_of(const LayersOptions& options) {
  profiler::LayerSettings settings{.micro_batches = *options.micro_batches,
                                   .sequence_length = *options.sequence_length,
                                   .blocks = options.blocks.has() ? *options.blocks : 0,
                                   .tensor_parallel = *options.tensor_parallel,
                                   .recompute = recomputes_of(*options.recompute),
                                   .precision = parse_precision(*options.precision).value(),
                                   .samples = *options.samples,
                                   .warm_up = *options.warm_up,
                                   .cold = !*options.no_cold,
                                   .interval = *options.interval / 100.0,
                                   .time_budget = Seconds(*options.time_budget),
                                   .busy_ranks = *options.busy_ranks,
                                   .memory_limit = Bytes(*options.memory_limit)};
  if (options.layers.has()) {
    const auto names = *options.layers;
    std::erase_if(settings.kinds, [&](LayerKind kind) {
      return std::find(names.begin(), names.end(), to_string(kind)) == names.end();
    });
  }
  return settings;
}

/// "1.82 ms ±3%"
std::string with_interval(const TimeStatistics& time) {
  if (time.samples == 0) return "-";
  const double reach = time.relative_interval();
  return fmt::format("{} ±{}", format_time(time.median), reach > 1.0 ? ">100%" : fmt::format("{:.0f}%", 100.0 * reach));
}

std::string summary_of(const ProfileData& data, const profiler::LayerSettings& settings) {
  Table table({{"gpu", Align::left},
               {"busy ranks"},
               {"tensor parallel"},
               {"recompute", Align::left},
               {"micro-batch"},
               {"layer", Align::left},
               {"forward"},
               {"backward"},
               {"update"},
               {"cold forward"},
               {"cold backward"},
               {"activation"},
               {"samples"},
               {"aim", Align::left}});
  std::size_t missed = 0;
  for (const LayerTime& row : data.layer_times) {
    const bool met = profiler::meets(row, settings.interval);
    missed += met ? 0 : 1;
    LayerKey memory_key = row.key;
    memory_key.busy_ranks = 1;
    const auto memory = std::find_if(data.layer_memory.begin(), data.layer_memory.end(),
                                     [&](const LayerMemory& entry) { return entry.key == memory_key; });
    table.add_row({row.key.gpu, fmt::to_string(row.key.busy_ranks), fmt::to_string(row.key.tensor_parallel),
                   std::string(to_string(row.key.recompute)), fmt::to_string(row.key.micro_batch),
                   std::string(to_string(row.key.kind)), with_interval(row.forward), with_interval(row.backward),
                   with_interval(row.update), with_interval(row.cold_forward), with_interval(row.cold_backward),
                   memory == data.layer_memory.end() ? "-" : format_bytes(memory->activation),
                   fmt::to_string(row.forward.samples), met ? "met" : "missed"});
  }
  const std::string caption = table.fold_constant_columns({"gpu", "busy ranks", "tensor parallel", "recompute"});
  if (!settings.cold) (void)table.fold_constant_columns({"cold forward", "cold backward"});  // all "-"
  std::string text = fmt::format("{}, sequences of {} tokens{}{}\n", data.layer_times.front().key.model,
                                 settings.sequence_length, caption.empty() ? "" : "; ", caption);
  text += table.to_string();
  text += fmt::format("±: a repetition has its median within that (95%); aim: forward and backward within {:g}%\n",
                      100.0 * settings.interval);
  const Session& session = data.sessions.front();
  if (session.slowdown > 0.0)
    text += fmt::format("the device was at times {:.0f}% slower than usual{}\n", 100.0 * (session.slowdown - 1.0),
                        session.highest_clock_hz > 0.0
                            ? fmt::format("; its clock {:.2f} to {:.2f} GHz", session.lowest_clock_hz / 1e9,
                                          session.highest_clock_hz / 1e9)
                            : "");
  if (missed > 0)
    text += fmt::format(
        "{} of {} missed the aim: raise --time-budget ({:g} s), keep the nodes free of other work, or "
        "accept more with --interval\n",
        missed, plural(data.layer_times.size(), "row"), settings.time_budget.value());
  return text;
}

void warn_of_memory(const ProfileData& data) {
  for (const OutOfMemory& row : data.out_of_memory)
    log_warning(
        "micro-batch {} does not fit on {} with {} busy{}: the {} needs at least {} but {} are available; it was "
        "recorded, and larger ones were skipped",
        row.key.micro_batch, row.key.gpu, plural(static_cast<std::size_t>(row.key.busy_ranks), "rank"),
        row.key.tensor_parallel > 1 ? fmt::format(", tensor parallel {}", row.key.tensor_parallel) : "",
        to_string(row.key.kind), format_bytes(row.needed), format_bytes(row.available));
}

/// Collective: rank 0 warns of the combinations that are not measured.
void warn_of_left_out(const profiler::LayerSettings& settings, runtime::Control& control) {
  std::vector<profiler::Combination> left_out;
  static_cast<void>(profiler::combinations(settings, control, left_out));
  if (control.rank() != 0) return;
  for (const profiler::Combination& combination : left_out)
    log_warning("tensor parallel {} is not measured with {} busy: no multiple of {}", combination.tensor_parallel,
                plural(static_cast<std::size_t>(combination.busy_ranks), "rank"), combination.tensor_parallel);
}

Result<void> measure_layers(const LayersOptions& options, const Environment& environment,
                            const runtime::World& started) {
  catch_stop_requests("sailor-profile", {SIGINT, SIGTERM});  // after MPI_Init, which may set handlers of its own
  profiler::LayerSettings settings = settings_of(options);
  SAILOR_CHECK(same_on_all_ranks(options, started.control));
  const auto named = measured_device(options, environment);
  SAILOR_CHECK(agree(started.control, named));
  settings.gpu = named->type.name;
  SAILOR_CHECK(agree(started.control, check_precision(settings.precision, named->type.kind == DeviceKind::gpu)));
  if (!options.model.has())
    return agree(started.control, fail(ErrorCode::usage, "--model is missing", "name a model or a model file"));
  auto model = find_model(*options.model, models_folder(options.models, environment));
  SAILOR_CHECK(agree(started.control, model));
  if (settings.sequence_length == 0) settings.sequence_length = model->max_sequence_length;
  SAILOR_CHECK(agree(started.control, profiler::check_layers(*model, settings, started.control)));
  SAILOR_CHECK(agree(started.control, started.rank() == 0 ? check_store(options) : Result<void>()));
  warn_of_left_out(settings, started.control);

  const auto opened = open_measured(options, environment, settings.precision, *named, started.control);
  if (!opened) return fail(opened.error());  // agreed on
  const runtime::World world = opened->world(started);
  ProfileData data;
  data.processes = profiler::measure_process(settings.gpu, world, *opened->device);
  Progress progress(fmt::format("layers of {}", model->name));
  auto layers = profiler::measure_layers(
      *model, settings, *opened->device, world,
      [&](const profiler::LayerProgress& now) { progress.update(now.share, now.left, now.what); },
      [] { return stop_request() != 0; });
  progress.finish();
  SAILOR_CHECK(agree(world.control, layers));
  data.layer_times = std::move(layers->times);
  data.layer_memory = std::move(layers->memory);
  data.out_of_memory = std::move(layers->out_of_memory);
  data.sessions = {{.lowest_clock_hz = layers->lowest_clock_hz,
                    .highest_clock_hz = layers->highest_clock_hz,
                    .slowdown = layers->slowdown}};
  const std::string summary = world.rank() == 0 ? summary_of(data, settings) : std::string();
  if (world.rank() == 0) warn_of_memory(data);
  const std::string& store = *options.store;
  const std::vector<std::string> next{
      fmt::format("sailor-profile show {}", shell_quote(store)),
      plan_command(*options.model, settings.gpu, settings.sequence_length, store, *options.models)};
  SAILOR_CHECK(store_and_print(options, environment, world.control, *opened->device, std::move(data), summary));
  if (world.rank() == 0) suggest_next(next);
  return {};
}

Result<void> layers(const LayersOptions& options, const Environment& environment) {
  return with_mpi(Seconds(*options.timeout), environment,
                  [&](const runtime::World& world) { return measure_layers(options, environment, world); });
}

#else

Result<void> layers(const LayersOptions&, const Environment&) { return needs_mpi(); }

#endif

}  // namespace

Command layers_command() { return command(layers_command_line, layers); }

}  // namespace sailor::apps
