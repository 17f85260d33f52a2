// sailor-profile links.
#include <fmt/format.h>

#include <algorithm>

#include "apps/profile/commands.hpp"
#include "apps/profile/measuring.hpp"
#include "apps/profile/next_commands.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "profile/store.hpp"

#ifdef SAILOR_HAVE_MPI
#include "profiler/link_profiler.hpp"
#include "runtime/mpi/mpi_session.hpp"
#endif

namespace sailor::apps {

namespace {

struct LinksOptions : MeasuringOptions {
  OptionValue<std::string> zone, scope;
  OptionValue<int> max_message;
};

CommandLine links_command_line(LinksOptions& options) {
  return {
      .program = "sailor-profile links",
      .purpose = "measures messages and collectives between ranks and adds them to a profile store",
      .positionals = {},
      .options = {option(options.gpu, gpu_option()),
                  option(options.zone, {.name = "zone",
                                        .value_name = "NAME",
                                        .help = "zone in which this rank runs; ranks may differ (SAILOR_ZONE)"}),
                  option(options.store, store_option()), option(options.samples, samples_option()),
                  option(options.warm_up, warm_up_option()), option(options.time_budget, time_budget_option("60")),
                  option(options.max_message, {.name = "max-message",
                                               .value_name = "BYTES",
                                               .help = "largest message, bytes; sizes are 1 KiB, 4 KiB, 16 KiB, ...; "
                                                       "none: what a quarter of the memory allows, up to 1 GiB",
                                               .minimum = 1024,
                                               .maximum = 1 << 30}),
                  option(options.scope, {.name = "scope",
                                         .value_name = "SCOPE",
                                         .help = "what the link is; auto: by Slurm node names, else host names",
                                         .default_value = "auto",
                                         .choices = {"auto", "intra-node", "inter-node"}}),
                  option(options.timeout, timeout_option()), option(options.gpus, shared::gpus_file())},
      .examples = {{"srun --mpi=pmix -N 2 --ntasks-per-node=2 sailor-profile links --store store",
                    "inside a node and between two"},
                   {"mpirun -n 4 sailor-profile links --max-message 1048576", "on this machine, messages to 1 MiB"},
                   {"srun --mpi=pmix -n 2 sailor-profile links --scope inter-node --zone east",
                    "two ranks, stored as a link between nodes of a zone"}},
      .notes =
          "For each GPU type in each zone: messages and collectives (all_reduce, all_gather, reduce_scatter) inside\n"
          "a node and between two; for each two types or zones between one node of each, messages in both\n"
          "directions; each with 1, 2, 4, ... and all ranks of a node at once. A size is done when its median is\n"
          "known to 3%. Sizes that would take too long for the time budget are left out, the largest first.",
      .one_per_rank = true};
}

#ifdef SAILOR_HAVE_MPI

/// Reports all curves that end early in one line: they have the same reason.
void report_left_out(const std::vector<profiler::LeftOut>& left_out, std::size_t series, Seconds budget) {
  if (left_out.empty()) return;
  const auto first = std::min_element(left_out.begin(), left_out.end(),
                                      [](const auto& a, const auto& b) { return a.smallest < b.smallest; });
  log_warning(
      "{} of {} curves end before the largest message, as more would exceed their share of --time-budget ({:g} s): "
      "{} {} of {} and more ({} each); larger messages are predicted with the bandwidth of the largest measured",
      left_out.size(), series, budget.value(), to_string(first->key.scope), to_string(first->key.operation),
      format_bytes(first->smallest), format_time(first->expected));
}

Result<void> measure_links(const LinksOptions& options, const Environment& environment, const runtime::World& started) {
  SAILOR_CHECK(same_on_all_ranks(options, started.control));
  const auto named = measured_device(options, environment);
  SAILOR_CHECK(agree(started.control, named));
  SAILOR_CHECK(agree(started.control, started.rank() == 0 ? check_store(options) : Result<void>()));
  const auto opened = open_measured(options, environment, Precision::fp32, *named, started.control);
  if (!opened) return fail(opened.error());  // agreed on
  const runtime::World world = opened->world(started);
  profiler::LinkSettings settings{
      .rank = {.node = node_name(environment, world.control), .gpu = named->type.name, .zone = *options.zone},
      .samples = *options.samples,
      .warm_up = *options.warm_up,
      .time_budget = Seconds(*options.time_budget)};
  if (options.max_message.has()) settings.largest_message = Bytes(static_cast<double>(*options.max_message));
  if (*options.scope == "intra-node") settings.scope = LinkScope::intra_node;
  if (*options.scope == "inter-node") settings.scope = LinkScope::inter_node;
  const auto plan = profiler::plan_links(settings, *opened->device, world.control);
  SAILOR_CHECK(agree(world.control, plan));
  if (world.rank() == 0)
    log_info("links: {}, {} x {} to {}, at most {:g} s", plural(plan->groups.size(), "group"),
             plural(plan->series(), "curve"), plural(plan->sizes.size(), "size"),
             format_bytes(Bytes(static_cast<double>(plan->sizes.back()))), settings.time_budget.value());
  Progress progress("links", world.rank() == 0 ? static_cast<std::size_t>(settings.warm_up + settings.samples) + 1 : 1);
  profiler::MeasuredLinks measured = profiler::measure_links(
      *plan, settings, *opened->device, world, [&](std::size_t done, std::size_t) { progress.update(done); });
  progress.finish();
  report_left_out(measured.left_out, plan->series(), settings.time_budget);
  ProfileData data;
  data.links = std::move(measured.links);
  data.fits = std::move(measured.fits);
  SAILOR_CHECK(store_and_print(options, environment, world.control, *opened->device, std::move(data)));
  if (world.rank() != 0) return {};
  const std::string& store = *options.store;
  if (const auto all = load_profile(store)) suggest_next(commands_after_storing(*all, store));
  return {};
}

Result<void> links(const LinksOptions& options, const Environment& environment) {
  return with_mpi(Seconds(*options.timeout), environment,
                  [&](const runtime::World& world) { return measure_links(options, environment, world); });
}

#else

Result<void> links(const LinksOptions&, const Environment&) { return needs_mpi(); }

#endif

}  // namespace

Command links_command() { return command(links_command_line, links); }

}  // namespace sailor::apps
