// sailor-profile: measures layers and links on this machine and shows what a store holds. `layers` and `links` run
// once per rank under srun or mpirun; rank 0 writes and prints. A mistake is printed once; a failure on one rank ends
// the job.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "apps/options.hpp"
#include "apps/profile_tables.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "profile/profile.hpp"

#ifdef SAILOR_HAVE_MPI
#include "profiler/layer_profiler.hpp"
#include "profiler/link_profiler.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/mpi/mpi_session.hpp"
#endif

namespace sailor::apps {

namespace {

std::string command = "sailor-profile";  // for provenance; set by main

// ---- Command lines

Option gpu() {
  return {.name = "gpu",
          .value_name = "NAME",
          .help = "name under which this rank's device is stored; ranks may differ (SAILOR_GPU)",
          .default_value = "cpu"};
}
Option store() {
  return {.name = "store",
          .value_name = "DIR",
          .help = "profile store: a folder to which one file is added",
          .default_value = "profile-store"};
}
Option samples() {
  return {.name = "samples",
          .type = OptionType::integer,
          .value_name = "N",
          .help = "rounds that count",
          .default_value = "20",
          .minimum = 1,
          .maximum = 1e6};
}
Option warm_up() {
  return {.name = "warm-up",
          .type = OptionType::integer,
          .value_name = "N",
          .help = "rounds before them that do not count",
          .default_value = "3",
          .minimum = 0,
          .maximum = 1e6};
}
Option time_budget(const std::string& seconds) {
  return {.name = "time-budget",
          .type = OptionType::number,
          .value_name = "SECONDS",
          .help = "begin no further round after so long, seconds; at least 3 rounds count",
          .default_value = seconds,
          .minimum = 0};
}
Option timeout() {
  return {.name = "timeout",
          .type = OptionType::number,
          .value_name = "SECONDS",
          .help = "give up when another rank does not answer for so many seconds",
          .default_value = "600",
          .minimum = 0.001};
}

CommandLine layers_command() {
  return {.program = "sailor-profile layers",
          .purpose = "measures the layers of a model on all ranks at once and adds them to a profile store",
          .positionals = {},
          .options = {shared::model(),
                      {.name = "micro-batches",
                       .type = OptionType::integer,
                       .value_name = "N",
                       .help = "micro-batch sizes to measure, sequences",
                       .default_value = "1,2,4",
                       .repeatable = true,
                       .minimum = 1,
                       .maximum = 1 << 20},
                      {.name = "sequence-length",
                       .type = OptionType::integer,
                       .value_name = "N",
                       .help = "length of a sequence, tokens [default: the longest that the model allows]",
                       .minimum = 1,
                       .maximum = 1 << 24},
                      gpu(),
                      store(),
                      samples(),
                      warm_up(),
                      time_budget("120"),
                      {.name = "busy-ranks",
                       .type = OptionType::integer,
                       .value_name = "N",
                       .help = "ranks that compute on a node at the same time, as stored [default: the most that "
                               "share a host]",
                       .minimum = 1,
                       .maximum = 1 << 20},
                      timeout(),
                      shared::models_folder()},
          .examples = {{"srun --mpi=pmix -n 4 sailor-profile layers --model tiny-gpt --store store",
                        "measure a model with 4 ranks busy"},
                       {"mpirun -n 2 sailor-profile layers --model tiny-gpt --micro-batches 1,8 --sequence-length 64",
                        "chosen sizes, without Slurm"},
                       {"sailor-profile layers --model my-model.toml --time-budget 30",
                        "one rank, a model of your own, half a minute"}},
          .notes =
              "Measure with as many ranks busy on a node as the plan will run there: they share caches and memory.\n"
              "Times are of one layer and one micro-batch; update is AdamW over the layer's parameters and setting\n"
              "its gradients to zero. Precision fp32, no recomputation, tensor parallel 1.",
          .one_per_rank = true};
}

CommandLine links_command() {
  return {.program = "sailor-profile links",
          .purpose = "measures messages and sums between ranks and adds them to a profile store",
          .positionals = {},
          .options = {gpu(),
                      store(),
                      samples(),
                      warm_up(),
                      time_budget("60"),
                      {.name = "max-message",
                       .type = OptionType::integer,
                       .value_name = "BYTES",
                       .help = "largest message, bytes; sizes are 1 KiB, 4 KiB, 16 KiB, ...",
                       .default_value = "67108864",
                       .minimum = 1024,
                       .maximum = 1 << 30},
                      {.name = "scope",
                       .value_name = "SCOPE",
                       .help = "what the link is; auto: by Slurm node names, else host names",
                       .default_value = "auto",
                       .choices = {"auto", "intra-node", "inter-node"}},
                      timeout()},
          .examples = {{"srun --mpi=pmix -N 2 --ntasks-per-node=2 sailor-profile links --store store",
                        "inside a node and between two"},
                       {"mpirun -n 4 sailor-profile links --max-message 1048576", "on this machine, messages to 1 MiB"},
                       {"srun --mpi=pmix -n 2 sailor-profile links --scope inter-node",
                        "two ranks, stored as a link between nodes"}},
          .notes =
              "Messages go from rank 0 to a rank of its node and to one of another node; sums run over these pairs,\n"
              "over all ranks of a node, one rank of each node, and all ranks.",
          .one_per_rank = true};
}

CommandLine show_command() {
  Option format = shared::format();
  format.choices = {"table", "json"};
  return {.program = "sailor-profile show",
          .purpose = "shows what a profile store holds",
          .positionals = {{.name = "STORE", .help = "a folder of *.h5 files, or one such file"}},
          .options = {format},
          .examples = {{"sailor-profile show store", "tables"},
                       {"sailor-profile show store --format json", "the same for programs, SI units in the names"},
                       {"sailor-profile show store/20260102T030405Z-nid001-77-0badcafe.h5", "one session"}},
          .notes = ""};
}

// ---- Commands

Result<void> show(const Options& options, const Environment&) {
  auto data = load_profile(options.positional("STORE").front());
  if (!data) return fail(data.error());
  if (options.text("format") == "json")
    fmt::print("{}", profile_json(*data));
  else
    fmt::print("{}\n{}", provenance_text(data->provenance), profile_tables(*data));
  return {};
}

#ifdef SAILOR_HAVE_MPI

using runtime::Communicator;
using runtime::MpiSession;

std::string node_name(const Environment& environment, const Communicator& world) {
  const auto node = environment.find("SLURMD_NODENAME");
  return node == environment.end() ? world.host() : node->second;
}

/// Before minutes are spent on measuring: can rank 0 add a file to the store, or make it?
Result<void> check_store(const Options& options) {
  namespace fs = std::filesystem;
  const fs::path store = fs::absolute(options.text("store"));
  std::error_code code;
  fs::path existing = store;
  while (!fs::exists(existing, code) && existing.has_relative_path()) existing = existing.parent_path();
  if (fs::is_directory(existing, code) && ::access(existing.c_str(), W_OK | X_OK) == 0) return {};
  return fail(
      ErrorCode::io,
      fmt::format("--store: cannot write to '{}'{}", store.string(),
                  fs::is_directory(existing, code) ? "" : fmt::format(": '{}' is no folder", existing.string())),
      "name another folder");
}

/// Runs `measure` between the start and the end of MPI. Its error must be agreed on, the same on all ranks.
Result<void> with_mpi(const Options& options, const Environment& environment,
                      Result<void> (*measure)(const Options&, const Environment&, Communicator&)) {
  auto session =
      MpiSession::start({.program = "sailor-profile", .timeout = Seconds(options.number("timeout"))}, environment);
  Result<void> done;
  if (!session) {
    done = fail(session.error());
  } else {
    try {
      done = measure(options, environment, (*session)->world());
    } catch (const std::exception& error) {
      (*session)->world().abort(error.what());  // the others wait for this rank
    }
    session->reset();
  }
  if (!done && runtime::is_reported_elsewhere(done.error())) std::exit(exit_status(done.error().code));
  return done;
}

/// A plan is as good as its block times.
void warn_of_noise(const ProfileData& data) {
  constexpr double noisy = 0.25;
  double worst = 0.0;
  for (const LayerMeasurement& row : data.layers)
    if (row.key.kind == LayerKind::block)
      worst = std::max({worst, row.forward.relative_spread(), row.backward.relative_spread()});
  if (worst > noisy)
    spdlog::warn(
        "block times spread by {:.0f}% (p10 to p90): was something else running on the nodes? measure again when "
        "they are quiet",
        worst * 100.0);
}

/// Collective: rank 0 adds the data to the store and prints it.
Result<void> store_and_print(const Options& options, const Environment& environment, Communicator& world,
                             const runtime::Device& device, ProfileData data) {
  std::set<std::string> nodes;
  for (std::string& node : world.gather(node_name(environment, world))) nodes.insert(std::move(node));
  Result<void> done;
  if (world.rank() == 0) {
    data.provenance = {.tool = fmt::format("sailor-profile {}", version()),
                       .command = command,
                       .host = fmt::format("{}", fmt::join(nodes, ",")),
                       .device = device.name(),
                       .versions = fmt::format("{}, {}", device.versions(), MpiSession::version())};
    auto path = add_to_store(options.text("store"), data);
    if (path) {
      fmt::print("{}\nadded {}\n", profile_tables(data), path->string());
      warn_of_noise(data);
    } else {
      done = fail(path.error());
    }
  }
  return agree(world, done);
}

Result<void> measure_layers(const Options& options, const Environment& environment, Communicator& world) {
  profiler::LayerSettings settings{.gpu = options.text("gpu"),
                                   .micro_batches = options.integers("micro-batches"),
                                   .sequence_length = static_cast<int>(options.integer("sequence-length")),
                                   .samples = static_cast<int>(options.integer("samples")),
                                   .warm_up = static_cast<int>(options.integer("warm-up")),
                                   .time_budget = Seconds(options.number("time-budget")),
                                   .busy_ranks = static_cast<int>(options.integer("busy-ranks"))};
  if (!options.has("model"))
    return agree(world, fail(ErrorCode::usage, "--model is missing", "name a model or a model file"));
  auto model = find_model(options.text("model"), models_folder(options, environment));
  SAILOR_CHECK(agree(world, model ? Result<void>() : fail(model.error())));
  if (settings.sequence_length == 0) settings.sequence_length = model->max_sequence_length;
  SAILOR_CHECK(agree(world, profiler::check_layers(*model, settings, world)));
  SAILOR_CHECK(agree(world, world.rank() == 0 ? check_store(options) : Result<void>()));

  ProfileData data;
  data.processes = profiler::measure_process(settings.gpu, world, runtime::make_cpu_device);
  const auto device = runtime::make_cpu_device();
  if (world.rank() == 0) {
    Progress progress(fmt::format("layers of {}", model->name),
                      static_cast<std::size_t>(settings.warm_up + settings.samples));
    data.layers = profiler::measure_layers(*model, settings, *device, world,
                                           [&](std::size_t done, std::size_t) { progress.update(done); });
  } else {
    profiler::measure_layers(*model, settings, *device, world, {});
  }
  return store_and_print(options, environment, world, *device, std::move(data));
}

Result<void> measure_links(const Options& options, const Environment& environment, Communicator& world) {
  profiler::LinkSettings settings{.gpu = options.text("gpu"),
                                  .node = node_name(environment, world),
                                  .scope = std::nullopt,
                                  .largest_message = Bytes(options.number("max-message")),
                                  .samples = static_cast<int>(options.integer("samples")),
                                  .warm_up = static_cast<int>(options.integer("warm-up")),
                                  .time_budget = Seconds(options.number("time-budget"))};
  if (options.text("scope") == "intra-node") settings.scope = LinkScope::intra_node;
  if (options.text("scope") == "inter-node") settings.scope = LinkScope::inter_node;
  SAILOR_CHECK(agree(world, world.rank() == 0 ? check_store(options) : Result<void>()));
  const auto device = runtime::make_cpu_device();
  Progress progress("links", world.rank() == 0 ? static_cast<std::size_t>(settings.warm_up + settings.samples) : 1);
  auto links =
      profiler::measure_links(settings, *device, world, [&](std::size_t done, std::size_t) { progress.update(done); });
  progress.finish();
  SAILOR_CHECK(agree(world, links ? Result<void>() : fail(links.error())));
  ProfileData data;
  data.links = *std::move(links);
  return store_and_print(options, environment, world, *device, std::move(data));
}

Result<void> layers(const Options& options, const Environment& environment) {
  return with_mpi(options, environment, measure_layers);
}
Result<void> links(const Options& options, const Environment& environment) {
  return with_mpi(options, environment, measure_links);
}

#else

Result<void> layers(const Options&, const Environment&) {
  return fail(ErrorCode::unavailable, "this Sailor was built without MPI and cannot measure",
              "build it with -DSAILOR_MPI=ON");
}
Result<void> links(const Options& options, const Environment& environment) { return layers(options, environment); }

#endif

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  namespace apps = sailor::apps;
  for (int i = 1; i < argc; ++i) apps::command += std::string(" ") + argv[i];
  return apps::run_program(argc, argv, "sailor-profile", "measures layers and links, and shows what was measured",
                           {{apps::layers_command(), apps::layers},
                            {apps::links_command(), apps::links},
                            {apps::show_command(), apps::show}});
}
