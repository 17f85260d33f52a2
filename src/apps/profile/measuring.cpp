#include "apps/profile/measuring.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "apps/profile/commands.hpp"
#include "apps/stop_requests.hpp"
#include "apps/termination.hpp"
#include "cluster/gpu_match.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "core/text.hpp"
#include "profile/advice.hpp"
#include "profile/store.hpp"
#include "reports/profile_tables.hpp"

#ifdef SAILOR_HAVE_MPI
#include "runtime/mpi/mpi_session.hpp"
#endif

namespace sailor::apps {

Option gpu_option() {
  return {.name = "gpu",
          .value_name = "NAME",
          .help =
              "name of this rank's device in the catalogue: of its cores, or of the GPU that measures; ranks may "
              "differ (SAILOR_GPU), but not some be CPUs and others GPUs",
          .default_value = "cpu"};
}
Option store_option() {
  return {.name = "store",
          .value_name = "DIR",
          .help = "profile store: a folder to which one file is added",
          .default_value = "profile-store"};
}
Option samples_option() {
  return {.name = "samples",
          .value_name = "N",
          .help = "rounds that count",
          .default_value = "20",
          .minimum = 1,
          .maximum = 1e6};
}
Option warm_up_option() {
  return {.name = "warm-up",
          .value_name = "N",
          .help = "rounds before them that do not count",
          .default_value = "3",
          .minimum = 0,
          .maximum = 1e6};
}
Option time_budget_option(const std::string& seconds) {
  return {.name = "time-budget",
          .value_name = "SECONDS",
          .help = "begin no further round after so long, seconds; at least 3 rounds count",
          .default_value = seconds,
          .minimum = 0};
}
Option timeout_option() {
  return {.name = "timeout",
          .value_name = "SECONDS",
          .help = "give up when another rank does not answer for so many seconds",
          .default_value = "600",
          .minimum = 0.001};
}

#ifdef SAILOR_HAVE_MPI

using runtime::MpiSession;

std::string node_name(const Environment& environment, const runtime::Control& control) {
  const auto node = environment.find("SLURMD_NODENAME");
  return node == environment.end() ? control.host() : node->second;
}

Result<MeasuredDevice> measured_device(const MeasuringOptions& options, const Environment& environment) {
  const std::string file = gpus_file(options.gpus, environment);
  auto catalogue = GpuCatalogue::load(file);
  if (!catalogue) return fail(catalogue.error());
  const std::string name = *options.gpu;
  auto type = catalogue->find(name);
  if (!type)
    return fail(ErrorCode::not_found, fmt::format("--gpu '{}' is not in the catalogue {}", name, file),
                "describe it there, or name another catalogue with --gpus FILE");
  if (!can_be_measured(*type))
    return fail(ErrorCode::usage, fmt::format("--gpu {}: Sailor computes on CPUs and NVIDIA's GPUs only", name),
                "times of others are estimated, or come from sailor-profile import");
  return MeasuredDevice{.catalogue = *std::move(catalogue), .type = *std::move(type)};
}

Result<RankDevice> open_measured(const MeasuringOptions& options, const Environment& environment, Precision precision,
                                 const MeasuredDevice& measured, runtime::Control& control) {
  const GpuType& type = measured.type;
  const bool on_gpus = type.kind == DeviceKind::gpu;
  const double gpus = control.sum(on_gpus ? 1.0 : 0.0);
  SAILOR_CHECK(agree(control, gpus == 0.0 || gpus == control.size()
                                  ? Result<void>()
                                  : fail(ErrorCode::usage, "--gpu: some ranks are on CPUs and some on GPUs",
                                         "measure the one kind, and then the other, into one store")));
  auto opened = open_device({.on_gpus = on_gpus, .precision = precision, .timeout = Seconds(*options.timeout)},
                            environment, control);
  if (!opened || !on_gpus) return opened;
  // Times of one GPU type must not be taken for those of another.
  const auto check_type = [&]() -> Result<void> {
    const runtime::GpuDescription& gpu = *opened->gpu;
    const GpuType* const here = match_device(measured.catalogue, gpu.name, gpu.memory);
    if (here == nullptr)
      log_warning("rank {} on {}: the catalogue does not know '{}': its times are stored as those of {}",
                  control.rank(), control.host(), gpu.name, type.name);
    if (here == nullptr || here->name == type.name) return {};
    return fail(ErrorCode::usage,
                fmt::format("--gpu {}: the GPU of rank {} on {} is {}, in the catalogue {}", type.name, control.rank(),
                            control.host(), gpu.name, here->name),
                fmt::format("measure it as --gpu {}", here->name));
  };
  SAILOR_CHECK(agree(control, check_type()));
  return opened;
}

Result<void> check_store(const MeasuringOptions& options) {
  namespace fs = std::filesystem;
  const fs::path store = fs::absolute(*options.store);
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

Result<void> with_mpi(Seconds timeout, const Environment& environment,
                      const std::function<Result<void>(const runtime::World&)>& measure) {
  auto session = MpiSession::start({.program = "sailor-profile", .timeout = timeout}, environment);
  if (!session) {
    if (runtime::is_reported_elsewhere(session.error())) std::exit(exit_status(session.error().code));
    return fail(session.error());
  }
  Result<void> done;
  try {
    done = measure((*session)->world());
  } catch (const std::exception& error) {
    (*session)->world().control.abort(error.what());  // the others wait for this rank
  }
  if (!done) {
    const int stopped = stop_request();
    leave_together("sailor-profile", done.error(), *session,
                   stopped != 0 ? 128 + stopped : exit_status(done.error().code));  // as in shells
  }
  session->reset();
  return done;
}

Result<void> same_on_all_ranks(const MeasuringOptions& options, runtime::Control& control) {
  const std::vector<std::string> all = control.gather(options.effective_values);
  std::string different;  // on rank 0; empty elsewhere
  for (std::size_t rank = 1; rank < all.size() && different.empty(); ++rank) {
    const std::vector<std::string> here = split(all[0], '\n');
    const std::vector<std::string> there = split(all[rank], '\n');
    for (std::size_t i = 0; i < std::min(here.size(), there.size()) && different.empty(); ++i) {
      // "name = value  # who set it"
      const std::string value_here = here[i].substr(0, here[i].rfind("  #"));
      const std::string value_there = there[i].substr(0, there[i].rfind("  #"));
      if (value_here == value_there || value_here.starts_with("gpu = ") || value_here.starts_with("zone = ")) continue;
      different =
          fmt::format("rank {} was given other options than rank 0: {} instead of {}", rank, value_there, value_here);
    }
  }
  return agree(control, different.empty() ? Result<void>()
                                          : fail(ErrorCode::usage, different, "only --gpu and --zone may differ"));
}

namespace {

/// Warns of noisy block times, on which the quality of plans depends.
void warn_of_noise(const ProfileData& data) {
  constexpr double noisy = 0.25;
  double worst = 0.0;
  for (const LayerTime& row : data.layer_times)
    if (row.key.kind == LayerKind::block)
      worst = std::max({worst, row.forward.relative_spread(), row.backward.relative_spread()});
  if (worst > noisy)
    log_warning(
        "block times spread by {:.0f}% (p10 to p90): was something else running on the nodes? measure again when "
        "they are quiet",
        worst * 100.0);
}

}  // namespace

Result<void> store_and_print(const MeasuringOptions& options, const Environment& environment, runtime::Control& control,
                             const runtime::Device& device, ProfileData data, const std::string& summary) {
  std::set<std::string> nodes;
  for (std::string& node : control.gather(node_name(environment, control))) nodes.insert(std::move(node));
  Result<void> done;
  if (control.rank() == 0) {
    if (data.sessions.empty()) data.sessions.emplace_back();
    data.sessions.front().provenance = {.tool = fmt::format("sailor-profile {}", version()),
                                        .command = profile_command_line(),
                                        .host = join(nodes, ","),
                                        .device = device.name(),
                                        .versions = fmt::format("{}, {}", device.versions(), MpiSession::version())};
    auto path = add_to_store(*options.store, data);
    if (path) {
      fmt::print("{}\nadded {}\n", fitted(summary.empty() ? reports::profile_tables(data) : summary), path->string());
      warn_of_noise(data);
    } else {
      done = fail(path.error());
    }
  }
  return agree(control, done);
}

#else

Result<void> needs_mpi() {
  return fail(ErrorCode::unavailable, "this Sailor was built without MPI and cannot measure",
              "build it with -DSAILOR_MPI=ON");
}

#endif

}  // namespace sailor::apps
