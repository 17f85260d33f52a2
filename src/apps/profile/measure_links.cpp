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

CommandLine links_command_line() {
  return {
      .program = "sailor-profile links",
      .purpose = "measures messages and collectives between ranks and adds them to a profile store",
      .positionals = {},
      .options = {gpu_option(),
                  {.name = "zone",
                   .value_name = "NAME",
                   .help = "zone in which this rank runs; ranks may differ (SAILOR_ZONE)"},
                  store_option(),
                  samples_option(),
                  warm_up_option(),
                  time_budget_option("60"),
                  {.name = "max-message",
                   .type = OptionType::integer,
                   .value_name = "BYTES",
                   .help = "largest message, bytes; sizes are 1 KiB, 4 KiB, 16 KiB, ...; none: what a quarter of "
                           "the memory allows, up to 1 GiB",
                   .minimum = 1024,
                   .maximum = 1 << 30},
                  {.name = "scope",
                   .value_name = "SCOPE",
                   .help = "what the link is; auto: by Slurm node names, else host names",
                   .default_value = "auto",
                   .choices = {"auto", "intra-node", "inter-node"}},
                  timeout_option(),
                  shared::gpus_file()},
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
  spdlog::warn(
      "{} of {} curves end before the largest message, as more would exceed their share of --time-budget ({:g} s): "
      "{} {} of {} and more ({} each); larger messages are predicted with the bandwidth of the largest measured",
      left_out.size(), series, budget.value(), to_string(first->key.scope), to_string(first->key.operation),
      format_bytes(first->smallest), format_time(first->expected));
}

Result<void> measure_links(const Options& options, const Environment& environment, const runtime::World& started) {
  SAILOR_CHECK(same_on_all_ranks(options, started.control));
  const auto named = measured_device(options, environment);
  SAILOR_CHECK(agree(started.control, named));
  SAILOR_CHECK(agree(started.control, started.rank() == 0 ? check_store(options) : Result<void>()));
  const auto opened = open_measured(options, environment, Precision::fp32, *named, started.control);
  if (!opened) return fail(opened.error());  // agreed on
  const runtime::World world = opened->world(started);
  profiler::LinkSettings settings{
      .rank = {.node = node_name(environment, world.control), .gpu = named->type.name, .zone = options.text("zone")},
      .samples = static_cast<int>(options.integer("samples")),
      .warm_up = static_cast<int>(options.integer("warm-up")),
      .time_budget = Seconds(options.number("time-budget"))};
  if (options.has("max-message")) settings.largest_message = Bytes(static_cast<double>(options.integer("max-message")));
  if (options.text("scope") == "intra-node") settings.scope = LinkScope::intra_node;
  if (options.text("scope") == "inter-node") settings.scope = LinkScope::inter_node;
  const auto plan = profiler::plan_links(settings, *opened->device, world.control);
  SAILOR_CHECK(agree(world.control, plan));
  if (world.rank() == 0)
    spdlog::info("links: {}, {} x {} to {}, at most {:g} s", plural(plan->groups.size(), "group"),
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
  const std::string& store = options.text("store");
  if (const auto all = load_profile(store)) suggest_next(commands_after_storing(*all, store));
  return {};
}

Result<void> links(const Options& options, const Environment& environment) {
  return with_mpi(options, environment, measure_links);
}

#else

Result<void> links(const Options& options, const Environment& environment) { return needs_mpi(options, environment); }

#endif

}  // namespace

SubCommand links_command() { return {links_command_line(), links}; }

}  // namespace sailor::apps
